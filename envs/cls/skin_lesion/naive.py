"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "sizes": "assumed",
    "colour_fact": "habit",
    "declared": "habit",
    "pilot_check": "percent",
    "candidates": "one",
    "setup_claims": "memory",
    "mode": "train",
    "colours": "as_read",
    "normalise": "habit",
    "classes": "alphabetical",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
