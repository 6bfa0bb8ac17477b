"""Styles of a teacher: the same careful work, written down as different people write it.

A style changes the form of a script's cells and nothing that they do: how cells are cut, what is
done in bash, where a look comes before the work. What a style gives is executed and judged like
everything else, so that a form which does not fit a task is found out, not believed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from bat_env.errors import unknown_name
from bat_env.stages import Stage
from bat_env.tasks import Task
from bat_env.tasks.choices import LIST_CASES
from bat_env.tasks.scripts import ScriptCell

USUAL: Final = "usual"
_PREDICT: Final = 'open("pipeline/predict.py", "w").write("""'
_PLAN: Final = 'open("plan/plan.md", "w").write('
_DUMP: Final = re.compile(r'^json\.dump\((\w+), open\("([^"]+)", "w"\)\)$')
_RMTREE: Final = re.compile(r'^shutil\.rmtree\("([\w/]+)", ignore_errors=True\)$')
_LOOKS: Final[Mapping[Stage, str]] = MappingProxyType(
    {
        Stage.S1: "ls /data | head -20\nls -R /models\ncat /models/*/configs/metadata.json",
        Stage.S2: "ls -R /workspace | head -40\ncat plan/facts.json",
        Stage.S3: "ls -R /workspace | head -40\ncat pipeline/predict.py",
        Stage.S4: "ls -R /workspace | head -40\ncat validation/pilot.json",
        Stage.S5: "ls -R /workspace | head -40",
    }
)


def _shell(task: Task, cells: Sequence[ScriptCell]) -> Iterable[ScriptCell]:
    """Looks around in bash first, and writes predict.py with a here-document."""
    if cells:
        first = min(cell.stage for cell in cells)
        yield ScriptCell(first, _LOOKS[first], "bash")
    for cell in cells:
        text = _predict_text(cell)
        if text is None:
            yield cell
            continue
        before = _before_predict(cell)
        lines = [f"rm -rf {m.group(1)}" for m in map(_RMTREE.match, before) if m]
        known = ("import ", "os.makedirs(")
        if any(not line.startswith(known) and not _RMTREE.match(line) for line in before):
            yield cell  # It does more than files: leave it in Python.
            continue
        lines += ["mkdir -p pipeline", "cat > pipeline/predict.py <<'PREDICT'", text.strip("\n")]
        yield ScriptCell(cell.stage, "\n".join([*lines, "PREDICT"]), "bash")


def _steps(task: Task, cells: Sequence[ScriptCell]) -> Iterable[ScriptCell]:
    """Goes in small steps: facts before the plan's text, a batch in halves, and reads back."""
    for cell in cells:
        if cell.stage is Stage.S1 and _PLAN in cell.code:
            yield from _plan_in_two(cell)
        elif (
            'predict(f"/data/{case}", f"outputs/{case}")' in cell.code
            and not task.spec.output.is_table
            and f"\n{LIST_CASES}\n" in cell.code
        ):
            for half in ("cases[: len(cases) // 2]", "cases[len(cases) // 2 :]"):
                code = cell.code.replace(LIST_CASES, f"{LIST_CASES}\ncases = {half}")
                yield ScriptCell(cell.stage, code, cell.language)
        else:
            yield cell
        written = [m.group(2) for m in map(_DUMP.match, cell.code.splitlines()) if m]
        if written and cell.language == "python":
            yield ScriptCell(cell.stage, f"cat {written[-1]}", "bash")


def _plan_in_two(cell: ScriptCell) -> Iterable[ScriptCell]:
    lines = cell.code.splitlines()
    late = [line for line in lines if line.startswith((_PLAN, "text = "))]
    early = [line for line in lines if line not in late]
    names = {node.id for node in ast.walk(ast.parse("\n".join(late))) if isinstance(node, ast.Name)}
    if not names <= {"open", "facts", "text"}:
        yield cell  # The text needs more than the facts.
        return
    yield ScriptCell(cell.stage, "\n".join(early))
    read = ("import json", 'facts = json.load(open("plan/facts.json"))')
    yield ScriptCell(cell.stage, "\n".join((*read, *late)))


def _functions(task: Task, cells: Sequence[ScriptCell]) -> Iterable[ScriptCell]:
    """Writes modules: one import a line, a function for the work, files closed after use."""
    for cell in cells:
        yield ScriptCell(cell.stage, _as_module(cell), cell.language)


def _as_module(cell: ScriptCell) -> str:
    if cell.language != "python":
        return cell.code
    imports: list[str] = []
    code, constant = cell.code, ""
    text = _predict_text(cell)
    if text is not None:
        head, _, tail = code.partition(_PREDICT)
        literal, _, after = tail.partition('""")')
        constant = f'SOURCE = """{literal}"""\n\n'
        code = (
            f'{head}with open("pipeline/predict.py", "w") as file:\n    file.write(SOURCE){after}'
        )
    body: list[str] = []
    for line in code.splitlines():
        dumped = _DUMP.match(line)
        if line.startswith("import "):
            imports += [f"import {name.strip()}" for name in line[7:].split(",")]
        elif line.startswith("from ") and " import " in line:
            imports.append(line)
        elif dumped:
            value, path = dumped.groups()
            body += [f'with open("{path}", "w") as file:', f"    json.dump({value}, file)"]
        else:
            body.append(line)
    title = f"{cell.stage.name} {cell.stage.title}"
    work = "\n".join(f"    {line}" if line else "" for line in body)
    lines = "\n".join(dict.fromkeys(imports))
    return f'{lines}\n\n{constant}def work():\n    """{title}."""\n{work}\n\nwork()'


def _predict_text(cell: ScriptCell) -> str | None:
    """The text of predict.py that a cell writes, or ``None``."""
    if cell.language != "python" or cell.code.count('"""') != 2 or _PREDICT not in cell.code:
        return None
    literal = cell.code.partition(_PREDICT)[2].partition('"""')[0]
    if "\nPREDICT\n" in literal or cell.code.partition(_PREDICT)[2].partition('""")')[2].strip():
        return None
    return str(ast.literal_eval(f'"""{literal}"""'))


def _before_predict(cell: ScriptCell) -> list[str]:
    return [line for line in cell.code.partition(_PREDICT)[0].splitlines() if line.strip()]


_STYLES: Final[Mapping[str, Callable[[Task, Sequence[ScriptCell]], Iterable[ScriptCell]]]] = (
    MappingProxyType(
        {
            USUAL: lambda task, cells: cells,
            "shell": _shell,
            "steps": _steps,
            "functions": _functions,
        }
    )
)
STYLES: Final = tuple(_STYLES)
"""Names of the styles; the first leaves the task's own script as it is."""


def styled(task: Task, cells: Sequence[ScriptCell], style: str) -> tuple[ScriptCell, ...]:
    """The same work in another style.

    Args:
        task: Whose script it is.
        cells: Part of a script, in order.
        style: One of :data:`STYLES`.

    Raises:
        UnknownNameError: If there is no such style.
    """
    if style not in _STYLES:
        raise unknown_name("teacher style", style, STYLES)
    return tuple(_STYLES[style](task, cells))
