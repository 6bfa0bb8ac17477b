"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "sizes": "assumed",
    "order_fact": "numbered",
    "display_fact": "assumed",
    "time_fact": "seconds",
    "declared": "habit",
    "pilot_check": "percent",
    "candidates": "one",
    "setup_claims": "memory",
    "mode": "train",
    "display": "ignored",
    "frames": "first",
    "negation": "ignored",
    "order": "numbered",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
