"""Times commands on SWE-ReX's local runtime. Runs in that package's own environment.

Reads one JSON request a line (``{"how": "execute" | "session", "command": [...]}``) and answers
with the seconds that the runtime took, measured here so that our pipe is not on its account.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time

from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime


async def serve() -> None:
    """Answer until the end of input."""
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60.0))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        if request["how"] == "session":
            action = BashAction(command=shlex.join(request["command"]), timeout=120.0)
            code = (await runtime.run_in_session(action)).exit_code
        else:
            code = (await runtime.execute(Command(command=request["command"]))).exit_code
        took = time.perf_counter() - began
        print(json.dumps({"seconds": took, "exit_code": code}), flush=True)
    await runtime.close()


asyncio.run(serve())
