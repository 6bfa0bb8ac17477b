"""One module a published layout; each gives a ``LAYOUT``. Nothing here reads a pixel."""
