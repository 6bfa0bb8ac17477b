"""Plays the verifiers door with verifiers' own environment; run where verifiers is installed."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import scripted_harness
import verifiers.v1 as vf

from bat_agent.integrations.verifiers import load_environment


async def episode(calls: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    environment = load_environment(
        starts=1,
        seed=3,
        env_kwargs=kwargs,
        agent={"harness": {"id": "scripted_harness", "calls": calls}},
    )
    (task,) = environment.taskset
    context = vf.ModelContext(
        model="none", client=vf.EvalClientConfig(base_url="http://127.0.0.1:9/v1", api_key_var="NO")
    )
    async with environment.serving():
        (slot,) = environment.slots(task)
        done = await environment.run_slot(slot, context)
    (trace,) = done.traces
    return {
        "ok": done.ok,
        "reward": trace.reward,
        "errors": [e.model_dump(mode="json") for e in [*done.errors, *trace.errors]],
        "start": task.data.start,
    }


async def side_by_side(asked: dict[str, Any]) -> dict[str, Any]:
    scripts: dict[str, list[Any]] = asked["scripts"]
    done = await asyncio.gather(*(episode(c, asked["env_kwargs"]) for c in scripts.values()))
    return dict(zip(scripts, done, strict=True))


def main() -> None:
    played = asyncio.run(side_by_side(json.loads(sys.stdin.read())))
    print(json.dumps({"played": played, "log": scripted_harness.LOG}))


if __name__ == "__main__":
    main()
