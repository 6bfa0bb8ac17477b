"""Plays the verifiers door with verifiers' own environment; run where verifiers is installed."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import scripted_harness
import verifiers.v1 as vf

from bat_agent.integrations.verifiers import load_environment


async def episodes(calls: list[Any], kwargs: dict[str, Any], n: int) -> dict[str, Any]:
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
        slots = environment.slots(task, n)
        done = await asyncio.gather(*(environment.run_slot(slot, context) for slot in slots))
    (trace,) = done[0].traces
    return {
        "ok": [episode.ok for episode in done],
        "rewards": [episode.traces[0].reward for episode in done],
        "errors": [e.model_dump(mode="json") for e in [*done[0].errors, *trace.errors]],
        "start": task.data.start,
        "key": task.key,
    }


def main() -> None:
    asked = json.loads(sys.stdin.read())
    played = {
        name: asyncio.run(episodes(calls, asked["env_kwargs"], 2 if name == "nop" else 1))
        for name, calls in asked["scripts"].items()
    }
    print(json.dumps({"played": played, "log": scripted_harness.LOG}))


if __name__ == "__main__":
    main()
