"""Policies: codecs, sampling, checkpoints, and the builder of a policy from nothing.

Light to import; :func:`load_policy` and :class:`Policy` load transformers when used.
"""

from __future__ import annotations

from bat_agent.policy.checkpoint import Policy, load_policy
from bat_agent.policy.codec import Codec, make_codec

__all__ = ["Codec", "Policy", "load_policy", "make_codec"]
