"""Models behind an OpenAI-compatible endpoint, by function calls or in text."""

from __future__ import annotations

from bat_agent.agents.chat.agent import ChatAgent, chat_source
from bat_agent.agents.chat.config import KEY_VARIABLE, ChatConfig, make_chat_config

__all__ = ["KEY_VARIABLE", "ChatAgent", "ChatConfig", "chat_source", "make_chat_config"]
