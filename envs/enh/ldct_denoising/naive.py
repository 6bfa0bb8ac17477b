"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "geometry": "assumed",
    "intensity_fact": "stored",
    "declared": "habit",
    "network_fact": "image",
    "pilot_check": "units",
    "candidates": "one",
    "setup_claims": "memory",
    "mode": "train",
    "orient": "none",
    "window": "lung",
    "units": "offset",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
