"""BaT environment suite."""
