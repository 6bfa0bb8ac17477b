"""Where the judge answers and how long it is waited for, checked before any work starts."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bat_env.errors import ConfigError, shown, unknown_name

KEY_VARIABLE: Final = "BAT_JUDGE_API_KEY"
"""Environment variable of the API key unless ``api_key_env`` names another."""

_OURS: Final = frozenset({"model", "messages", "stream", "n", "tools"})
"""Keys of a request that ``body`` may not change."""


class JudgeConfig(BaseModel):
    """One OpenAI-compatible judge. It holds the name of the key's variable, never the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = Field(description="For example http://127.0.0.1:8000/v1.")
    model: str = Field(min_length=1, max_length=200, description="Name that the server knows.")
    api_key_env: str | None = Field(
        None, description=f"Environment variable that holds the API key; {KEY_VARIABLE} if any."
    )
    timeout_s: float = Field(60.0, gt=0, le=3600, description="Of one request, seconds.")
    deadline_s: float = Field(
        240.0, gt=0, le=7200, description="Of all requests of one hand-in with their retries."
    )
    tries: int = Field(4, ge=1, le=10, description="Requests for one answer.")
    backoff_s: float = Field(1.0, ge=0, le=60, description="First wait before a retry, seconds.")
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
    body: dict[str, Any] = Field(
        default_factory=dict, description="More keys of a request; null leaves one of ours out."
    )

    @field_validator("base_url")
    @classmethod
    def _url(cls, value: str) -> str:
        return checked_url(value)

    @field_validator("model")
    @classmethod
    def _model(cls, value: str) -> str:
        if not value.isprintable() or value != value.strip():
            raise ValueError("must be printable, without spaces around it")
        return value

    @field_validator("body")
    @classmethod
    def _body(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(_OURS & value.keys())
        if taken:
            raise ValueError(f"must not set {', '.join(taken)}")
        return value

    @property
    def local(self) -> bool:
        """Whether the judge runs on this machine."""
        host = urlsplit(self.base_url).hostname or ""
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def api_key(self) -> str | None:
        """The key from the environment, or ``None``.

        Raises:
            ConfigError: If the named variable is not set, or holds no key that a header can carry.
        """
        name = self.api_key_env or KEY_VARIABLE
        key = os.environ.get(name, "").strip()
        if not key:
            if self.api_key_env is None:
                return None
            raise ConfigError(
                f"judge: the environment variable {name} must hold the API key, but it is not "
                "set. Set it, or leave api_key_env out for a server that asks for none."
            )
        if not key.isascii() or not key.isprintable():
            raise ConfigError(f"judge: {name} holds characters that no API key has.")
        return key


def checked_url(value: str) -> str:
    """``value`` without its last slash, if requests can be sent below it.

    Raises:
        ValueError: If it is no plain http(s) address, or carries credentials.
    """
    try:
        parts: SplitResult = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError("must be an address like http://127.0.0.1:8000/v1") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("must be an address like http://127.0.0.1:8000/v1")
    if "@" in parts.netloc:
        raise ValueError("must hold no user name or password; give the key by api_key_env")
    if parts.query or parts.fragment or not value.isascii() or not value.isprintable():
        raise ValueError("must have no query, no fragment and only ASCII characters")
    if " " in value or "\\" in value:
        raise ValueError("must be an address like http://127.0.0.1:8000/v1")
    return value.rstrip("/")


def make_config(value: Mapping[str, Any]) -> JudgeConfig:
    """A checked configuration.

    Raises:
        ConfigError: Names the key, what was expected and what came.
    """
    for key in value:
        if key not in JudgeConfig.model_fields:
            raise unknown_name("key of judge", key, JudgeConfig.model_fields)
    for key in ("base_url", "model"):
        if key not in value:
            raise ConfigError(
                f"judge must name {key}, got {shown(sorted(value))}. Example: "
                '{"base_url": "http://127.0.0.1:8000/v1", "model": "my-model"}.'
            )
    try:
        config = JudgeConfig.model_validate(dict(value))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "judge"
        # An address may hold a password by mistake: what came is not repeated.
        came = "" if where == "base_url" else f", got {shown(first['input'])}"
        raise ConfigError(
            f"judge: {where}: {first['msg'].removeprefix('Value error, ')}{came}."
        ) from None
    config.api_key()
    return config
