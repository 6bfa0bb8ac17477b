"""Room of the suite."""
