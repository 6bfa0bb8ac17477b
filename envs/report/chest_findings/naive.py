"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "sizes": "assumed",
    "polarity_fact": "assumed",
    "orientation_fact": "assumed",
    "range_fact": "habit",
    "declared": "habit",
    "pilot_check": "many",
    "candidates": "one",
    "setup_claims": "memory",
    "mode": "train",
    "photometric": "ignored",
    "orientation": "ignored",
    "window": "extremes",
    "channels": "alphabetical",
    "sides": "viewer",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
