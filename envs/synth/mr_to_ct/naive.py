"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "geometry": "assumed",
    "signal": "stored",
    "region": "volume",
    "declared": "habit",
    "pilot_check": "shares",
    "candidates": "one",
    "setup_claims": "memory",
    "mode": "train",
    "normalise": "volume",
    "orient": "file",
    "unit": "shifted",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
