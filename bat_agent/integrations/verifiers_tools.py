"""The tools of our verifiers taskset: a server that verifiers starts for each rollout.

It is thin on purpose: the episode lives in the process of the taskset, where its score stays.
"""

# No annotations as strings here: verifiers reads those of the tools from a wrapper of its own,
# where our names mean nothing.

import asyncio
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import verifiers.v1 as vf

from bat_agent.integrations.host import call_host
from bat_env.tools import EXECUTE, SUBMIT, TOOLS


class BatState(vf.State):  # type: ignore[misc]
    """What host and tools share of a rollout; the agent sees none of it.

    Attributes:
        door: Address of the episode while it runs.
        score: Its score in [0, 1] when it is over.
    """

    door: str = ""
    score: float | None = None


Method = TypeVar("Method", bound=Callable[..., Any])


def described(name: str) -> Callable[[Method], Method]:
    """Gives a method the description of our tool, and marks it as a tool."""

    def mark(method: Method) -> Method:
        method.__doc__ = TOOLS[name]["description"]
        marked: Method = vf.tool(method)
        return marked

    return mark


class BatTools(vf.Toolset[vf.ToolsetConfig, BatState]):  # type: ignore[misc]
    """``execute_code`` and ``submit_results``, under these very names."""

    TOOL_PREFIX = None

    @described(EXECUTE)
    async def execute_code(self, language: Literal["python", "bash"], code: str) -> str:  # noqa: D102
        arguments = {"language": language, "code": code}
        return await asyncio.to_thread(call_host, self.state.door, EXECUTE, arguments)

    @described(SUBMIT)
    async def submit_results(self) -> str:  # noqa: D102
        return await asyncio.to_thread(call_host, self.state.door, SUBMIT, {})


if __name__ == "__main__":
    BatTools.run()
