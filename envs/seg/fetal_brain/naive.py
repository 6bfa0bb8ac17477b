"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "facts": "assumed",
    "signal_fact": "stored",
    "declared": "habit",
    "pilot_check": "litres",
    "candidates": "one",
    "setup_claims": "memory",
    "mode": "train",
    "orient": "none",
    "resample": "none",
    "channels": "raw",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
