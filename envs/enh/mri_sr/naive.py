"""The careless script: it finishes, its files are valid, and it assumes instead of looking."""

from __future__ import annotations

CHOICES = {
    "shapes": "assumed",
    "intensity_fact": "by_type",
    "declared": "habit",
    "network_fact": "image",
    "pilot_check": "units",
    "candidates": "one",
    "setup_claims": "memory",
    "mode": "train",
    "divide": "bits",
    "order": "exchanged",
    "enlarge": "corners",
    "repair": "skip",
    "pilot_record": "assumed",
    "batch": "edited",
    "manifest": "names",
}
