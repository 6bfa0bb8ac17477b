"""Drives the OpenEnv door with the real client; run by an interpreter that has openenv."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from typing import Any

from openenv.core.generic_client import GenericEnvClient

from bat_env.serve.openenv_client import BatEnvClient

MESSAGES: list[str] = []


class Watched(BatEnvClient):
    """Keeps every message."""

    async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
        answer = await super()._send_and_receive(message)
        MESSAGES.append(json.dumps(answer))
        return answer


def play(url: str, name: str, calls: list[Any], out: dict[str, Any], barrier: Any) -> None:
    with Watched(url).sync() as env:
        result = env.reset(seed=7)
        rewards, flags = [result.reward], []
        barrier.wait(120)  # all sessions are open at once
        for call in calls:
            result = env.step(call)
            rewards.append(result.reward)
            flags.append([result.done, result.observation.truncated, result.observation.status])
        state = env.state()
    out[name] = {
        "rewards": rewards,
        "flags": flags,
        "steps": state.step_count,
        "text": result.observation.text,
    }


def oddities(url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with GenericEnvClient(url).sync() as env:  # a stranger's client sees the same
        result = env.reset(seed=7, index=3)
        found["index"] = result.metadata["index"]
        result = env.step({"name": "execute_kode"})
        found["bad"] = [result.metadata["valid"], result.observation["text"]]
        for _ in range(23):
            result = env.step({"surprise": 1})
        found["truncated"] = [result.done, result.observation["truncated"], result.reward]
        for name, ask in (
            ("over", lambda: env.step({})),
            ("option", lambda: env.reset(indx=1)),
        ):
            try:
                ask()
            except Exception as error:
                found[name] = str(error)
    return found


def main() -> None:
    asked = json.loads(sys.stdin.read())
    command = [sys.executable, "-m", "bat_env.cli", "serve", "openenv", *asked["arguments"]]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    url = server.stderr.readline().strip()
    assert url.startswith("http://"), url + server.stderr.read()
    threading.Thread(target=server.stderr.read, daemon=True).start()
    played: dict[str, Any] = {}
    barrier = threading.Barrier(len(asked["scripts"]))
    threads = [
        threading.Thread(target=play, args=(url, name, calls, played, barrier))
        for name, calls in asked["scripts"].items()
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pages = {}
        for page in ("health", "metadata", "schema"):
            with urllib.request.urlopen(f"{url}/{page}", timeout=60) as answer:
                pages[page] = answer.read().decode()
        odd = oddities(url)
    finally:
        server.terminate()
        code = server.wait(60)
    answer = {"played": played, "odd": odd, "pages": pages, "code": code, "messages": MESSAGES}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
