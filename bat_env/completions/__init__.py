"""The one client of OpenAI-compatible chat endpoints: for the judge, the teacher and chat agents.

It asks once and says what came of it; when to ask again is up to who asks.
"""

from __future__ import annotations

from bat_env.completions.client import (
    Answer,
    EndpointError,
    KeyRefused,
    Refused,
    complete,
    jittered,
)
from bat_env.completions.config import EndpointConfig, checked_url

__all__ = [
    "Answer",
    "EndpointConfig",
    "EndpointError",
    "KeyRefused",
    "Refused",
    "checked_url",
    "complete",
    "jittered",
]
