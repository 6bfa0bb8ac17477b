"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "sizes": "assumed",
    "grey_scales": "assumed",
    "range_fact": "habit",
    "declared": "habit",
    "pilot_check": "many",
    "candidates": "one",
    "setup_claims": "memory",
    "photometric": "ignored",
    "window": "extremes",
    "classes": "alphabetical",
    "scale_back": "network",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
