"""Where a model answers, and how a request to it looks; checked before any work starts."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bat_env.errors import ConfigError, shown, unknown_name


class EndpointConfig(BaseModel):
    """One model at one endpoint. It holds the name of the key's variable, never the key.

    A subclass says whose it is, and may narrow the bounds.

    Attributes:
        owner: Whose settings these are, as messages begin.
        kind: What a key of them is called.
        key_variable: Environment variable of the API key unless ``api_key_env`` names another.
        ours: Keys of a request that ``body`` may not change.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    owner: ClassVar[str] = "endpoint"
    kind: ClassVar[str] = "key of the endpoint"
    key_variable: ClassVar[str] = ""
    ours: ClassVar[frozenset[str]] = frozenset({"model", "messages", "stream", "n", "tools"})

    base_url: str = Field(description="For example http://127.0.0.1:8000/v1.")
    model: str = Field(min_length=1, max_length=200, description="Name that the server knows.")
    api_key_env: str | None = Field(
        None, description="Environment variable that holds the API key."
    )
    temperature: float = Field(0.7, ge=0, le=2)
    max_tokens: int = Field(4096, ge=16, le=1 << 20, description="Of one answer.")
    timeout_s: float = Field(60.0, gt=0, le=7200, description="Of one request, seconds.")
    tries: int = Field(4, ge=1, le=50, description="Requests for one answer.")
    backoff_s: float = Field(1.0, ge=0, le=60, description="First wait before a retry, doubled.")
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
        taken = sorted(cls.ours & value.keys())
        if taken:
            raise ValueError(f"must not set {', '.join(taken)}")
        return value

    @property
    def local(self) -> bool:
        """Whether the model runs on this machine."""
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
        name = self.api_key_env or self.key_variable
        key = os.environ.get(name, "").strip() if name else ""
        if not key:
            if self.api_key_env is None:
                return None
            raise ConfigError(
                f"{self.owner}: the environment variable {name} must hold the API key, but it is "
                "not set. Set it, or leave api_key_env out for a server that asks for none."
            )
        if not key.isascii() or not key.isprintable():
            raise ConfigError(f"{self.owner}: {name} holds characters that no API key has.")
        return key

    @classmethod
    def checked(cls, value: Mapping[str, Any]) -> Self:
        """Settings of a mapping, with a key that is there if one is named.

        Raises:
            ConfigError: Names the key, what was expected and what came.
        """
        for key in value:
            if key not in cls.model_fields:
                raise unknown_name(cls.kind, key, cls.model_fields)
        for key in ("base_url", "model"):
            if key not in value:
                raise ConfigError(
                    f"{cls.owner} must name {key}, got {shown(sorted(value))}. Example: "
                    '{"base_url": "http://127.0.0.1:8000/v1", "model": "my-model"}.'
                )
        try:
            config = cls.model_validate(dict(value))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "settings"
            # An address may hold a password by mistake: what came is not repeated.
            came = "" if where == "base_url" else f", got {shown(first['input'])}"
            said = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{cls.owner}: {where}: {said}{came}.") from None
        config.api_key()
        return config


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
