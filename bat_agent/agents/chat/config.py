"""Which model answers, how long it is waited for, and what it may cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from bat_env.completions import EndpointConfig
from bat_env.errors import ConfigError

KEY_VARIABLE: Final = "BAT_CHAT_API_KEY"
"""Environment variable of the API key unless ``api_key_env`` names another."""


class ChatConfig(EndpointConfig):
    """One model at one endpoint. It holds the name of the key's variable, never the key."""

    owner: ClassVar[str] = "Chat agent"
    kind: ClassVar[str] = "setting of the chat agent"
    key_variable: ClassVar[str] = KEY_VARIABLE
    ours: ClassVar[frozenset[str]] = EndpointConfig.ours | {"max_tokens"}

    api_key_env: str | None = Field(
        None, description=f"Environment variable of the API key; {KEY_VARIABLE} if any."
    )
    tools: Literal["auto", "native", "text"] = Field(
        "auto",
        description="Function calling, or calls written in text; auto: text where a server "
        "refuses the tools.",
    )
    context_tokens: int = Field(
        32_768, ge=512, description="Of the model; older results are cut to stay below."
    )
    timeout_s: float = Field(300.0, gt=0, le=7200, description="Of one request, seconds.")
    tries: int = Field(8, ge=1, le=50, description="Requests for one answer.")
    max_wait_s: float = Field(120.0, ge=0, le=3600, description="Longest wait before a retry.")
    rpm: int | None = Field(None, ge=1, description="Requests a minute, over all episodes.")
    tpm: int | None = Field(None, ge=1, description="Tokens a minute, in and out.")
    price_in: float = Field(0.0, ge=0, description="US dollars for a million prompt tokens.")
    price_out: float = Field(0.0, ge=0, description="US dollars for a million answer tokens.")
    max_cost: float | None = Field(None, gt=0, description="US dollars; work stops before it.")

    def settings(self) -> dict[str, Any]:
        """What scores depend on, for the file of an evaluation."""
        names = ("model", "tools", "temperature", "max_tokens", "context_tokens", "body")
        return {name: getattr(self, name) for name in names}


def make_chat_config(value: Mapping[str, Any]) -> ChatConfig:
    """A checked configuration; unset values come from BAT_CHAT_BASE_URL and BAT_CHAT_MODEL.

    Raises:
        ConfigError: Names the key, what was expected and what came.
    """
    given = {key: part for key, part in value.items() if part is not None}
    for key, option in (("base_url", "--base-url"), ("model", "--model")):
        variable = f"BAT_CHAT_{key.upper()}"
        if key not in given and os.environ.get(variable):
            given[key] = os.environ[variable]
        if key not in given:
            raise ConfigError(
                f"The chat agent needs {key}, came none. Give {option}, or set {variable}."
            )
    config = ChatConfig.checked(given)
    if config.max_cost is not None and not (config.price_in or config.price_out):
        raise ConfigError("A cost limit needs prices; give --price IN,OUT (USD a million tokens).")
    return config
