"""Where the judge answers and how long it is waited for, checked before any work starts."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from pydantic import Field

from bat_env.completions import EndpointConfig

KEY_VARIABLE: Final = "BAT_JUDGE_API_KEY"
"""Environment variable of the API key unless ``api_key_env`` names another."""


class JudgeConfig(EndpointConfig):
    """One OpenAI-compatible judge. It holds the name of the key's variable, never the key."""

    owner: ClassVar[str] = "judge"
    kind: ClassVar[str] = "key of judge"
    key_variable: ClassVar[str] = KEY_VARIABLE

    api_key_env: str | None = Field(
        None, description=f"Environment variable that holds the API key; {KEY_VARIABLE} if any."
    )
    timeout_s: float = Field(60.0, gt=0, le=3600, description="Of one request, seconds.")
    deadline_s: float = Field(
        240.0, gt=0, le=7200, description="Of all requests of one hand-in with their retries."
    )
    tries: int = Field(4, ge=1, le=10, description="Requests for one answer.")
    max_tokens: int = Field(1024, ge=64, le=65536, description="Of one answer; doubled if cut.")
    temperature: float = Field(0.0, ge=0, le=2)
    structured: bool = Field(
        True, description="Send the answer's JSON schema; left out where a server refuses it."
    )
    system: bool = Field(
        True, description="Send the rules as a system message; false: at the head of the user's."
    )
    agreement: bool = Field(
        True, description="Also ask what the rules decide: for the agreement report, never scored."
    )
    cache: bool = Field(True, description="Keep answers on disk and use them again.")
    cache_dir: Path | None = Field(None, description="Folder; $BAT_HOME/judge if not given.")
    data_may_leave: bool = Field(
        False, description="With staged real data: allow a judge that is not on this machine."
    )
