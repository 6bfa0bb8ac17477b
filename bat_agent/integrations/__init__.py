"""Doors into other projects' trainers and harnesses: one module each, one extra each."""
