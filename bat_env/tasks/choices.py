"""Decisions with their lines: what an author of a task's scripts writes.

Code carries the values (they come from headers, the model card and task/spec.json), and a line is
never good in one decision and a mistake in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from bat_env.stages import Stage
from bat_env.tasks.scripts import Decision


@dataclass(frozen=True)
class Choice:
    """A decision with its lines.

    Attributes:
        id: Decision id.
        stage: The stage whose cell carries it.
        options: Option name -> lines of code; the first option is the good one.
    """

    id: str
    stage: Stage
    options: Mapping[str, tuple[str, ...]]

    @property
    def decision(self) -> Decision:
        """The decision without its lines."""
        return Decision(self.id, self.stage, tuple(self.options))


Line: TypeAlias = "str | Choice"
Lines: TypeAlias = "tuple[Line, ...]"


def choice(name: str, stage: Stage, **options: str | tuple[str, ...]) -> Choice:
    """A decision; the first option is the good one.

    Args:
        name: Decision id.
        stage: The stage whose cell carries it.
        options: Option name -> a line, or several; ``()`` for an option that leaves the line out.
    """
    lines = {key: (value,) if isinstance(value, str) else value for key, value in options.items()}
    return Choice(name, stage, MappingProxyType(lines))


def checkpoint(model: str, network: str) -> Choice:
    """``checkpoint``: a network with its weights, or (``loose``) as it was initialised.

    The loose variant seeds the initial weights, so that it scores the same in every run.

    Args:
        model: Name of the bundle.
        network: Line that makes ``net``.
    """
    file = f"/models/{model}/models/model.pt"
    return choice(
        "checkpoint",
        Stage.S2,
        strict=(network, f'net.load_state_dict(torch.load("{file}")["model"])'),
        loose=(
            "torch.manual_seed(0)",
            network,
            f'net.load_state_dict(torch.load("{file}"), strict=False)',
        ),
    )


MODE = choice("mode", Stage.S2, eval="net.eval()", train="net.train()")
PILOT_CASES = choice("pilot_cases", Stage.S3, one="pilots = cases[:1]", two="pilots = cases[:2]")
REPAIR = Decision("repair", Stage.S3, ("rewrite", "skip"))
PILOT_ORDER = Decision("pilot_order", Stage.S3, ("before", "after"))

OPEN_SPEC: Final = 'spec = json.load(open("/workspace/task/spec.json"))'
LIST_CASES: Final = 'cases = sorted(os.listdir("/data"))'
OPEN_PREDICT: Final = 'predict = runpy.run_path("pipeline/predict.py")["predict"]'
