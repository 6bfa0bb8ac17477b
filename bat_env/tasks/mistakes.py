"""Listed mistakes that many tasks share, and the cells that expose them.

A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict. The
decisions behind the shared mistakes have fixed names: ``declared=habit``, ``setup_claims=memory``,
``checkpoint=loose``, ``mode=train``, ``pilot_record=assumed``, ``pilot_check=<unit>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bat_env.tasks.choices import LIST_CASES
from bat_env.tasks.scripts import Mistake

if TYPE_CHECKING:
    from bat_env.tasks.workflow import Workflow

_MODULES: Final[Mapping[str, str]] = {
    "torch": "torch",
    "monai": "monai",
    "pillow": "PIL",
    "nibabel": "nibabel",
    "numpy": "numpy",
    "scipy": "scipy",
    "scikit-image": "skimage",
}
"""Distribution -> module that has ``__version__``."""


@dataclass(frozen=True)
class Checks:
    """Cells that expose mistakes of one task, and the mistakes that most tasks share.

    Attributes:
        model: Name of the bundle.
        imports: Import lines beside json, os, runpy, torch and ``numpy as np``.
        inputs: Lines that open the inputs of ``cases``, for checks of the plan and the set-up.
        run: Lines that run ``module["predict"]`` into /tmp/check and print what it gives; there are
            ``source`` (the text of predict.py), ``card`` (the bundle's metadata) and ``cases``.
    """

    model: str
    imports: str
    inputs: str
    run: str

    def of_plan(self, lines: str) -> str:
        """Lines that look at ``facts`` and the opened inputs."""
        return _joined(
            "import json, os, numpy as np",
            self.imports,
            'facts = json.load(open("plan/facts.json"))',
            LIST_CASES,
            self.inputs,
            'print("check of plan/facts.json")',
            lines,
        )

    def of_pipeline(self, lines: str) -> str:
        """Lines that look closer at predict.py after it has run."""
        return _joined(
            "import json, os, runpy, torch, numpy as np",
            self.imports,
            'source = open("pipeline/predict.py").read()',
            f"card = json.load(open({self._card!r}))",
            LIST_CASES,
            'module = runpy.run_path("pipeline/predict.py")',
            self.run,
            lines,
        )

    def against(self, what: str, wanted: str, word: str) -> str:
        """What the card says, and the lines of predict.py that deal with it.

        Args:
            what: Name of it, printed.
            wanted: Expression for it; ``card`` is there.
            word: Text that the lines hold.
        """
        return self.of_pipeline(
            f"print({what!r}, {wanted})\n"
            f"print([line.strip() for line in source.splitlines() if {word!r} in line])"
        )

    @property
    def _card(self) -> str:
        return f"/models/{self.model}/configs/metadata.json"

    # ------------------------------------------------------------------------ shared mistakes

    def preprocessing_by_habit(self, source: str = "common") -> Mistake:
        """``declared=habit``."""
        return Mistake(
            "preprocessing_by_habit",
            "The plan declares the usual preprocessing, not the model card's.",
            source,
            {"declared": "habit"},
            {"S1": 0.1},
            self.of_plan(
                f'card = json.load(open({self._card!r}))["preprocessing"]\n'
                'print("plan", facts["preprocessing"])\n'
                'print("card", card)'
            ),
        )

    def pilot_check_in(self, unit: str, recorded: str, known: str) -> Mistake:
        """``pilot_check=<unit>``.

        Args:
            unit: The wrong unit, also the option's name: ``percent``.
            recorded: What is recorded instead, with its verb: ``a share is``.
            known: What anybody knows of the quantity: ``a probability lies between 0 and 1``.
        """
        return Mistake(
            f"check_in_{unit}",
            f"The range of the pilot check is in {unit} where {recorded} recorded.",
            "common",
            {"pilot_check": unit},
            {"S1": 0.1},
            self.of_plan(f'print("plan", facts["pilot_check"])\nprint({known!r})'),
        )

    def versions_from_memory(self, packages: tuple[str, ...], show: str) -> Mistake:
        """``setup_claims=memory``.

        Args:
            packages: The task's packages.
            show: Lines that print what the inputs are.
        """
        modules = [_MODULES[name] for name in packages]
        here = ", ".join(f"{module}.__version__" for module in modules)
        return Mistake(
            "versions_from_memory",
            "Versions and input types are reported from memory.",
            "common",
            {"setup_claims": "memory"},
            {"S2": 0.3},
            _joined(
                f"import json, os, platform, {', '.join(modules)}, numpy as np",
                self.imports,
                'setup = json.load(open("setup/setup.json"))',
                LIST_CASES,
                self.inputs,
                'print("check of setup/setup.json")',
                'print("setup", setup["versions"], setup["inputs"])',
                f'print("here", platform.python_version(), {here})',
                show,
            ),
        )

    def loose_checkpoint(self, costs: Mapping[str, float]) -> Mistake:
        """``checkpoint=loose``."""
        return Mistake(
            "loose_checkpoint",
            "The checkpoint is loaded without its key and not strictly: no weight arrives.",
            "MedSAM#200",
            {"checkpoint": "loose"},
            costs,
            self.of_pipeline(
                f'state = torch.load("/models/{self.model}/models/model.pt")["model"]\n'
                'loaded = module["net"].state_dict()\n'
                "same = sum(torch.equal(loaded[key], state[key]) for key in loaded)\n"
                'print("tensors equal to the checkpoint", same, "of", len(state))'
            ),
        )

    def training_mode(self, title: str, costs: Mapping[str, float], lines: str = "") -> Mistake:
        """``mode=train``.

        Args:
            title: What training mode does to this network.
            costs: What it costs.
            lines: Lines that show it; default: the network's mode.
        """
        shown = lines or 'print("network in training mode:", module["net"].training)'
        return Mistake(
            "training_mode",
            title,
            "MedSAM#200",
            {"mode": "train"},
            costs,
            self.of_pipeline(shown),
        )


def _joined(*parts: str) -> str:
    return "\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


CLAIMS_HARD_CODED: Final = Mistake(
    "claims_hard_coded",
    "What the pilot's file should hold is written down without looking.",
    "common",
    {"pilot_record": "assumed"},
    {"S3": 0.3},
)
"""``pilot_record=assumed``."""


def frame_mistakes(
    flow: Workflow | str, compare: str = "", edited: float = 0.4
) -> tuple[Mistake, ...]:
    """The mistakes that lie in a workflow's frame, the same for every task.

    Args:
        flow: The workflow, or its output path: with ``{case}``, or of one table.
        compare: Cell lines that print how outputs differ from a new run of predict.py: the check
            of ``edited_by_hand``. Without it that mistake serves no recovery state.
        edited: What ``edited_by_hand`` costs in the task score at least.
    """
    output = flow if isinstance(flow, str) else flow.output
    missing = (
        'present = [os.path.exists(f"outputs/{case}/NAME") for case in cases]'
        if "{case}" in output
        else 'present = [line.split(",")[0] for line in open("PATH").read().splitlines()[1:]]'
    )
    missing = missing.replace("NAME", output.rsplit("/", 1)[-1]).replace("PATH", output)
    shown = "sum(present)" if "{case}" in output else "len(present)"
    return (
        Mistake(
            "one_candidate",
            "No alternatives are compared and no picture of the plan is drawn.",
            "common",
            {"candidates": "one"},
            {"S1": 0.4},
            tier="standard",
        ),
        Mistake(
            "no_repair",
            "A pipeline that nobody verified is trusted as it is.",
            "common",
            {"repair": "skip"},
            {"S3": 0.1},
            outcome="recovery",
        ),
        Mistake(
            "two_pilots",
            "The pilot covers two cases.",
            "common",
            {"pilot_cases": "two"},
            {"S3": 0.9},
        ),
        Mistake(
            "pilot_after_batch",
            "The pilot is run after the batch that it was to protect.",
            "common",
            {"pilot_order": "after"},
            {"S3": 0.9},
        ),
        Mistake(
            "first_case_only",
            "Only the first case is predicted.",
            "nnUNet#729",
            {"batch": "first"},
            {"task": 0.4, "S4": 0.7},
            f"""\
import os
print("check of outputs/")
{LIST_CASES}
{missing}
print("outputs", {shown}, "of", len(cases), "cases")
""",
        ),
        Mistake(
            "edited_by_hand",
            "Outputs are changed by hand after prediction: a re-run gives others.",
            "common",
            {"batch": "edited"},
            {"task": edited, "S4": 0.9},
            compare,
        ),
        Mistake(
            "names_hashed",
            "The manifest holds digests of file names instead of file contents.",
            "common",
            {"manifest": "names"},
            {"S5": 0.4},
        ),
        Mistake(
            "manifest_incomplete",
            "The manifest does not list every output.",
            "common",
            {"manifest": "first"},
            {"S5": 0.4},
        ),
    )
