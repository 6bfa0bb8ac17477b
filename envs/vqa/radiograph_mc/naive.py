"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "sizes": "assumed",
    "polarity_fact": "assumed",
    "asks_fact": "assumed",
    "mean_fact": "bytes",
    "declared": "habit",
    "pilot_check": "percent",
    "candidates": "one",
    "setup_claims": "memory",
    "mode": "train",
    "polarity": "ignored",
    "negation": "ignored",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
