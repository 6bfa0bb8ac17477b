"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "geometry": "assumed",
    "intensity_fact": "stored",
    "declared": "habit",
    "pilot_check": "shares",
    "candidates": "one",
    "setup_claims": "memory",
    "window": "habit",
    "order": "as_is",
    "base": "repeated",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
