"""`make bench-sandbox`: our cells and resets against what people do today, in one run.

Every round measures every contender, in a seeded random order, so that noise hits all alike; a
quick contender gets several turns in a round. Writes ``docs/bench.md`` and ``docs/bench.json``.
The exit code is 1 when a promise does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import banks
import cells
import contenders
import page
from contenders import Contender
from figures import Figure, Promise, make_figure
from rich.console import Console

from bat_env.errors import SandboxError

SCHEMA_VERSION = 1
BACKENDS = ("docker", "local")
GROUPS = ("containers", "swe-rex", "forks", "untar", *BACKENDS, "many", "memory")

PROMISES: dict[str, Promise] = {
    **{f"{b}.cell": Promise("<= 2x + 1 ms", lambda v, base: v <= 2 * base + 1) for b in BACKENDS},
    **{f"{b}.burst": Promise("<= 1.2x", lambda v, base: v <= 1.2 * base) for b in BACKENDS},
    **{
        f"{b}.reset20{kind}": Promise("<= 2x", lambda v, base: v <= 2 * base)
        for b in BACKENDS
        for kind in ("", ".new")
    },
    **{f"{b}.bank20": Promise("<= 2.5x", lambda v, base: v <= 2.5 * base) for b in BACKENDS},
    **{f"{b}.sixteen": Promise(">= 1.7x", lambda v, base: v >= 1.7 * base) for b in BACKENDS},
}
AGAINST_RUN = Promise("<= 1/200x", lambda v, base: 200 * v <= base)


def _prepare(
    stack: contextlib.ExitStack,
    groups: list[str],
    rex: Path | None,
    console: Console,
    busy: dict[str, list[float]],
) -> list[Contender]:
    def log(text: str) -> None:
        console.print(f"[dim]{text} ...[/]")

    found: list[Contender] = []
    makers = {
        "containers": lambda: contenders.containers(stack),
        "swe-rex": lambda: contenders.swe_rex(stack, rex),
        "forks": lambda: contenders.forks(stack),
        "untar": lambda: contenders.untar(stack),
    }
    for name, make in makers.items():
        if name in groups:
            log(f"preparing {name}")
            try:
                found += make()
            except OSError as error:
                console.print(f"{name} is left out: {error}")
    for backend in BACKENDS:
        if backend not in groups:
            continue
        log(f"preparing {backend}")
        try:
            sandbox = cells.opened(stack, backend)
            found += cells.cell_contenders(sandbox, backend)
            found += banks.bank_contenders(stack, sandbox, backend)
            if "many" in groups:
                found += cells.many_contenders(stack, backend, log, busy)
        except SandboxError as error:
            console.print(f"{backend} is left out: {error}")
    return found


def _measure(
    field: list[Contender], rounds: int, seed: int, budget_s: float, console: Console
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {contender.key: [] for contender in field}
    order = random.Random(seed)
    began = time.monotonic()
    for contender in list(field):  # once without counting: caches, spares, first calls
        console.print(f"[dim]warming {contender.key}[/]")
        try:
            contender.turn()
        except Exception as error:
            console.print(f"{contender.key} is left out: {error}")
            field.remove(contender)
            del samples[contender.key]
    for number in range(1, rounds + 1):
        turns = [contender for contender in field for _ in range(contender.turns)]
        order.shuffle(turns)
        for contender in turns:
            if contender not in field:
                continue
            time.sleep(contenders.IDLE_S)
            try:
                samples[contender.key] += contender.turn()
            except OSError as error:  # another runtime's; ours raise SandboxError, which ends all
                console.print(f"{contender.key} is left out: {error}")
                field.remove(contender)
                del samples[contender.key]
        spent = time.monotonic() - began
        console.print(f"[dim]round {number} of {rounds}, {spent:.0f} s[/]")
        if number < rounds and spent * (number + 1) / number > budget_s:
            console.print(f"the time is up after {number} of {rounds} rounds")
            break
    return samples


def _figures(field: list[Contender], samples: dict[str, list[float]]) -> list[Figure]:
    middle = {key: statistics.median(values) for key, values in samples.items()}
    figures = []
    for contender in field:
        key = contender.key
        figures.append(
            make_figure(
                key,
                contender.name,
                contender.unit,
                samples[key],
                baseline=contender.baseline,
                base=middle.get(contender.baseline),
                promise=PROMISES.get(key),
            )
        )
        if key in {f"{b}.cell" for b in BACKENDS} and "run.monai" in middle:
            figures.append(
                make_figure(
                    f"{key}.run",
                    f"{contender.name}, against `docker run` with MONAI",
                    contender.unit,
                    samples[key],
                    baseline="run.monai",
                    base=middle["run.monai"],
                    promise=AGAINST_RUN,
                )
            )
    return figures


def _memory(groups: list[str], console: Console) -> list[Figure]:
    figures = []
    for backend in [b for b in BACKENDS if b in groups and "memory" in groups]:
        console.print(f"[dim]memory of {backend} sandboxes ...[/]")
        try:
            seen = cells.memory_samples(backend)
        except (SandboxError, OSError) as error:
            console.print(f"memory of {backend} is left out: {error}")
            continue
        names = {"first": "first idle sandbox", "extra": "each further idle sandbox"}
        first = seen["first"]
        for part, name in names.items():
            figures.append(
                make_figure(
                    f"{backend}.pss.{part}",
                    f"{backend}: memory of the {name} (PSS)"
                    if part == "first"
                    else f"{backend}: memory of {name} (PSS)",
                    "MiB",
                    [seen[part]],
                    baseline="" if part == "first" else f"{backend}.pss.first",
                    base=None if part == "first" else first,
                )
            )
    return figures


def _cores(field: list[Contender], busy: dict[str, list[float]]) -> list[Figure]:
    """How much of the machine the rows of one and sixteen used: why their ratio is what it is."""
    return [
        make_figure(f"{c.key}.cores", f"{c.name}: cores in use", "cores", busy[c.key])
        for c in field
        if c.key in busy
    ]


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5.0, help="begin no round after this")
    parser.add_argument("--swe-rex", type=Path, help="interpreter with requirements/bench.txt")
    parser.add_argument("--out", type=Path, default=Path("docs/bench.json"))
    arguments = parser.parse_args()
    console = Console(stderr=True)
    machine = page.machine()
    with contextlib.ExitStack() as stack:
        stack.callback(cells.close_all)
        # Before anything else runs: a worker that others share would hide what the first costs.
        memory = _memory(arguments.only, console)
        busy: dict[str, list[float]] = {}
        field = _prepare(stack, arguments.only, arguments.swe_rex, console, busy)
        samples = _measure(field, arguments.rounds, arguments.seed, 60 * arguments.minutes, console)
    figures = [*_figures(field, samples), *_cores(field, busy), *memory]
    console.print(page.table(figures))
    report = {
        "schema_version": SCHEMA_VERSION,
        "command": "make bench-sandbox",
        "date": datetime.now(UTC).date().isoformat(),
        "seed": arguments.seed,
        "machine": machine,
        "rows": [figure.to_json() for figure in figures],
    }
    if set(arguments.only) == set(GROUPS):
        page.write(arguments.out, json.dumps(report, indent=1) + "\n")
        page.write(arguments.out.with_suffix(".md"), page.markdown(report))
    return int(any(figure.holds is False for figure in figures))


if __name__ == "__main__":
    raise SystemExit(main())
