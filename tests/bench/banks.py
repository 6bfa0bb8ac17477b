"""Stage Bank states put into warm sandboxes: read, checked, unpacked, laid down."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path

from contenders import IDLE_S, STATE, Contender, timed

from bat_env.bank import Bank, StageState
from bat_env.sandbox.base import Sandbox

_PREFIX = "workspace/"


def bank_contenders(stack: contextlib.ExitStack, sandbox: Sandbox, backend: str) -> list[Contender]:
    """A 20 MB state of a bank that this process has just opened, and the same one once more.

    Args:
        stack: Closes what is opened.
        sandbox: Started.
        backend: Its name.
    """
    folder = Path(tempfile.mkdtemp(prefix="bat-bench-bank-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    size = len(next(iter(STATE.values())))
    turn = 0

    def stored() -> str:
        """A state with contents that no worker has seen."""
        nonlocal turn
        turn += 1
        files = {
            path.removeprefix(_PREFIX): turn.to_bytes(4, "big") + data[: size - 4]
            for path, data in STATE.items()
        }
        with Bank.open(folder, create=True) as bank:
            for old in bank.query():
                bank.retire(old.state_id)
            bank.collect()
            row = bank.add(
                StageState(
                    track="seg",
                    task="seg/bench",
                    task_digest="0",
                    focus="S5",  # type: ignore[arg-type]
                    outcome="success",
                    index=turn,
                    instance_digest="",
                ),
                files,
            )
        return row.state_id

    def lay(bank: Bank, state_id: str) -> None:
        sandbox.reset(bank.files(state_id).under("workspace", {}))

    def new() -> list[float]:
        state_id = stored()
        with Bank.open(folder) as bank:
            time.sleep(IDLE_S)
            times = timed(lambda: lay(bank, state_id))
            sandbox.reset({})
        return times

    def again() -> list[float]:
        state_id = stored()
        with Bank.open(folder) as bank:
            lay(bank, state_id)
            lay(bank, state_id)  # a content is kept when it comes for the second time
            times = timed(lambda: lay(bank, state_id), 2, IDLE_S)
            sandbox.reset({})
        return times

    return [
        Contender(
            f"{backend}.bank20",
            f"{backend}: a 20 MB state of the Stage Bank, read, checked and laid down",
            new,
            turns=2,
            baseline="untar.20mb",
        ),
        Contender(
            f"{backend}.bank20.again",
            f"{backend}: the same state of the Stage Bank again",
            again,
            baseline="untar.20mb",
        ),
    ]
