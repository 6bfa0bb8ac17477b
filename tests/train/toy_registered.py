"""Registers the toy environment where it is imported."""

import toy_chain

toy_chain.register()
