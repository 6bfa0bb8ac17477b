"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "geometry": "assumed",
    "intensity_fact": "stored",
    "declared": "habit",
    "pilot_check": "percent",
    "candidates": "one",
    "setup_claims": "memory",
    "mode": "train",
    "intensity": "stored",
    "orient": "none",
    "resample": "none",
    "window": "soft_tissue",
    "classes": "alphabetical",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
