"""Agents: the protocol, the scripted ones, and the look-up by name or checkpoint."""

from __future__ import annotations

from bat_agent.agents.base import Agent, AgentSource, ToolCall, agent_names, load_agent

__all__ = ["Agent", "AgentSource", "ToolCall", "agent_names", "load_agent"]
