"""Which model answers, how long it is waited for, and what it may cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bat_env.errors import ConfigError, shown, unknown_name
from bat_env.judge.config import checked_url

KEY_VARIABLE: Final = "BAT_CHAT_API_KEY"
"""Environment variable of the API key unless ``api_key_env`` names another."""

_OURS: Final = frozenset({"model", "messages", "stream", "n", "tools", "max_tokens"})


class ChatConfig(BaseModel):
    """One model at one endpoint. It holds the name of the key's variable, never the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = Field(description="For example http://127.0.0.1:8000/v1.")
    model: str = Field(min_length=1, max_length=200, description="Name that the server knows.")
    api_key_env: str | None = Field(
        None, description=f"Environment variable of the API key; {KEY_VARIABLE} if any."
    )
    tools: Literal["auto", "native", "text"] = Field(
        "auto",
        description="Function calling, or calls written in text; auto: text where a server "
        "refuses the tools.",
    )
    temperature: float = Field(0.7, ge=0, le=2)
    max_tokens: int = Field(4096, ge=16, le=1 << 20, description="Of one answer.")
    context_tokens: int = Field(
        32_768, ge=512, description="Of the model; older results are cut to stay below."
    )
    timeout_s: float = Field(300.0, gt=0, le=7200, description="Of one request, seconds.")
    tries: int = Field(8, ge=1, le=50, description="Requests for one answer.")
    backoff_s: float = Field(1.0, ge=0, le=60, description="First wait before a retry, doubled.")
    max_wait_s: float = Field(120.0, ge=0, le=3600, description="Longest wait before a retry.")
    rpm: int | None = Field(None, ge=1, description="Requests a minute, over all episodes.")
    tpm: int | None = Field(None, ge=1, description="Tokens a minute, in and out.")
    price_in: float = Field(0.0, ge=0, description="US dollars for a million prompt tokens.")
    price_out: float = Field(0.0, ge=0, description="US dollars for a million answer tokens.")
    max_cost: float | None = Field(None, gt=0, description="US dollars; work stops before it.")
    body: dict[str, Any] = Field(default_factory=dict, description="More keys of a request.")

    @field_validator("base_url")
    @classmethod
    def _url(cls, value: str) -> str:
        return checked_url(value)

    @field_validator("body")
    @classmethod
    def _body(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(_OURS & value.keys())
        if taken:
            raise ValueError(f"must not set {', '.join(taken)}")
        return value

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
                f"The environment variable {name} must hold the API key, but it is not set. Set "
                "it, or leave it out for a server that asks for none."
            )
        if not key.isascii() or not key.isprintable():
            raise ConfigError(f"{name} holds characters that no API key has.")
        return key

    def settings(self) -> dict[str, Any]:
        """What scores depend on, for the file of an evaluation."""
        names = ("model", "tools", "temperature", "max_tokens", "context_tokens", "body")
        return {name: getattr(self, name) for name in names}


def make_chat_config(value: Mapping[str, Any]) -> ChatConfig:
    """A checked configuration; unset values come from BAT_CHAT_BASE_URL and BAT_CHAT_MODEL.

    Raises:
        ConfigError: Names the key, what was expected and what came.
    """
    known = ChatConfig.model_fields
    for key in value:
        if key not in known:
            raise unknown_name("setting of the chat agent", key, known)
    given = {key: part for key, part in value.items() if part is not None}
    for key, option in (("base_url", "--base-url"), ("model", "--model")):
        variable = f"BAT_CHAT_{key.upper()}"
        if key not in given and os.environ.get(variable):
            given[key] = os.environ[variable]
        if key not in given:
            raise ConfigError(
                f"The chat agent needs {key}, came none. Give {option}, or set {variable}."
            )
    try:
        config = ChatConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "settings"
        # An address may hold a password by mistake: what came is not repeated.
        came = "" if where == "base_url" else f", got {shown(first['input'])}"
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"Chat agent: {where}: {said}{came}.") from None
    config.api_key()
    if config.max_cost is not None and not (config.price_in or config.price_out):
        raise ConfigError("A cost limit needs prices; give --price IN,OUT (USD a million tokens).")
    return config
