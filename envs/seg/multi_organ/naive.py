"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "facts": "assumed",
    "intensity_fact": "stored",
    "declared": "habit",
    "candidates": "one",
    "setup_claims": "memory",
    "orient": "none",
    "resample": "none",
    "channels": "raw",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
