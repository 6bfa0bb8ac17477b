"""The frame of a task's scripts: an author writes decisions, the cells of the stages are here.

A :class:`Workflow` puts lines and choices into the cells of the five stages, from scratch or from
a state of the Stage Bank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from bat_env.stages import Stage
from bat_env.tasks.choices import (
    LIST_CASES,
    OPEN_PREDICT,
    OPEN_SPEC,
    PILOT_CASES,
    PILOT_ORDER,
    REPAIR,
    Choice,
    Line,
    Lines,
    choice,
)
from bat_env.tasks.mistakes import frame_mistakes
from bat_env.tasks.scripts import Decision, ScriptCell

__all__ = ["Choice", "Line", "Lines", "Workflow", "choice", "frame_mistakes"]

S1, S2, S3, S4, S5 = Stage.S1, Stage.S2, Stage.S3, Stage.S4, Stage.S5


@dataclass(frozen=True)
class Workflow:
    """A task's workflow.

    Every cell starts with ``imports``; ``meta`` (the bundle's metadata), ``spec`` (task/spec.json)
    and ``cases`` are there in every cell that needs them.

    Attributes:
        model: Name of the bundle.
        alternatives: Further names that a plan may compare.
        output: The task's output path: with ``{case}``, or of one table.
        imports: One line that imports what cells use; must name json, os, platform, runpy, shutil,
            torch, monai and ``numpy as np``.
        steps: Words for the plan's picture.
        look: Lines that open the inputs.
        facts: Lines that fill ``facts`` with what the task asks of a plan: the facts themselves,
            ``preprocessing``, ``postprocessing`` and ``pilot_check``.
        network: Lines that make ``net`` (plan nothing, import nothing): used in S2 and predict.py.
        network_import: Line that imports the network's class.
        claims: Lines that make ``versions`` and ``inputs`` of setup.json.
        pipeline_imports: Import lines of predict.py beside json, os, sys, torch and numpy.
        predict: Body of ``def predict(source, target)``, indented by four blanks; it writes the
            output file into the folder ``target``.
        record: Lines that make ``record`` from the pilot's file, whose path is ``path``.
        edited: Lines that change the outputs by hand after the batch.
        output_fact: Line that declares the output in ``facts``.
        probe: Line that makes ``out``, the network's raw output on the probe input, where the
            network does not take it as it is stored.
    """

    model: str
    alternatives: tuple[str, ...]
    output: str
    imports: str
    steps: str
    look: Lines
    facts: Lines
    network: Lines
    network_import: str
    claims: Lines
    pipeline_imports: tuple[str, ...]
    predict: Lines
    record: Lines
    edited: tuple[str, ...]
    output_fact: str = 'facts["output"] = spec["output"]'
    probe: str = ""
    _frames: dict[str, Choice] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._frames.update(candidates=self._candidates(), batch=self._batch())
        self._frames.update(manifest=self._manifest())

    # ------------------------------------------------------------------------------- decisions

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All decisions, in the order in which cells meet them."""
        found: dict[str, Decision] = {}
        for choice_ in self._choices():
            found.setdefault(choice_.id, choice_.decision)
            if choice_.decision != found[choice_.id]:
                raise ValueError(f"Two different decisions have the id {choice_.id!r}.")
        ordered = sorted(found.values(), key=lambda d: d.stage)
        before = [d for d in ordered if d.stage < S3]
        return (*before, REPAIR, *(d for d in ordered if d.stage >= S3))

    def _choices(self) -> Iterator[Choice]:
        frames = self._frames
        for lines in (
            (*self.facts, frames["candidates"]),
            (*self.claims, *self.network, *self.predict),
            (PILOT_CASES,),
        ):
            yield from (line for line in lines if isinstance(line, Choice))
        yield Choice(PILOT_ORDER.id, S3, dict.fromkeys(PILOT_ORDER.options, ()))
        yield from (line for line in self.record if isinstance(line, Choice))
        yield from (frames["batch"], frames["manifest"])

    # ---------------------------------------------------------------------------------- script

    def script(
        self, choices: Mapping[str, str], *, focus: Stage, tier: str, outcome: str | None = None
    ) -> list[ScriptCell]:
        """The cells of a focus, made of a full set of choices."""
        late = choices["pilot_order"] == "after"
        pilot = self.validate_cell(choices)
        if focus is S1:
            return [self.plan_cell(choices, tier)]
        if focus is S2:
            return [self.setup_cell(choices), self.pipeline_cell(choices)]
        if focus is S3:
            first = [self.batch_cell(choices, S3)] if late else []
            return [*self._repaired(choices, S3, "validation"), *first, pilot]
        if focus is S4:
            return [*self._repaired(choices, S4, "outputs"), self.batch_cell(choices, S4)]
        if focus is S5:
            again = self._repaired(choices, S5, "outputs")
            again += [self.batch_cell(choices, S5)] if again else []
            return [*again, self.submit_cell(choices)]
        middle = [pilot, self.batch_cell(choices, S4)]
        return [
            self.plan_cell(choices, tier),
            self.setup_cell(choices),
            self.pipeline_cell(choices),
            *(reversed(middle) if late else middle),
            self.submit_cell(choices),
        ]

    def plan_cell(self, c: Mapping[str, str], tier: str) -> ScriptCell:
        """S1: measure the data, then write facts and plan."""
        text = self._frames["candidates"]
        return self._cell(
            S1,
            c,
            (
                self.imports,
                self._meta,
                OPEN_SPEC,
                LIST_CASES,
                *self.look,
                'facts = dict(case_count=len(cases), model=spec["model"]["name"])',
                *self.facts,
                self.output_fact,
                'os.makedirs("plan", exist_ok=True)',
                *(text.options[c["candidates"]] if tier != "lite" else text.options["one"]),
                'text = "Run " + facts["model"] + " on every case. " + text',
                'open("plan/plan.md", "w").write(text)',
                'json.dump(facts, open("plan/facts.json", "w"))',
            ),
        )

    def setup_cell(self, c: Mapping[str, str]) -> ScriptCell:
        """S2: report versions and inputs, load the network and run it on the probe."""
        return self._cell(
            S2,
            c,
            (
                self.imports,
                self.network_import,
                self._meta,
                *self.network,
                self.probe or self._probe,
                "probe = dict(mean=float(out.mean()), std=float(out.std()))",
                f'model = dict(name="{self.model}", '
                "parameters=sum(p.numel() for p in net.parameters()))",
                LIST_CASES,
                *self.look,
                *self.claims,
                "setup = dict(versions=versions, inputs=inputs, model=model, probe=probe)",
                'os.makedirs("setup", exist_ok=True)',
                'json.dump(setup, open("setup/setup.json", "w"))',
            ),
        )

    def pipeline_cell(
        self, c: Mapping[str, str], stage: Stage = S2, first: Iterable[str] = ()
    ) -> ScriptCell:
        """S2: write predict.py. Also the repair of S3-S5, after the lines ``first``."""
        return self._cell(
            stage,
            c,
            (
                "import os, shutil",
                *first,
                'os.makedirs("pipeline", exist_ok=True)',
                'open("pipeline/predict.py", "w").write("""',
                "import json, os, sys, torch, numpy as np",
                *self.pipeline_imports,
                self.network_import,
                self._meta,
                *self.network,
                "def predict(source, target):",
                *self.predict,
                'if __name__ == "__main__": predict(sys.argv[2], sys.argv[4])',
                '""")',
            ),
        )

    def validate_cell(self, c: Mapping[str, str]) -> ScriptCell:
        """S3: predict one pilot case and record what its file holds."""
        return self._cell(
            S3,
            c,
            (
                self.imports,
                'os.makedirs("validation", exist_ok=True)',
                OPEN_PREDICT,
                LIST_CASES,
                PILOT_CASES,
                "for case in pilots:",
                '    predict(f"/data/{case}", f"validation/pilot/{case}")',
                f'path = f"validation/pilot/{{case}}/{self._name}"',
                *self.record,
                'json.dump(record, open("validation/pilot.json", "w"))',
                "print(record)",
            ),
        )

    def batch_cell(self, c: Mapping[str, str], stage: Stage = S4) -> ScriptCell:
        """S4: predict the cases."""
        start = (self.imports, 'os.makedirs("outputs", exist_ok=True)', OPEN_PREDICT, LIST_CASES)
        return self._cell(stage, c, (*start, self._frames["batch"]))

    def submit_cell(self, c: Mapping[str, str]) -> ScriptCell:
        """S5: write the manifest."""
        return self._cell(
            S5,
            c,
            (
                self.imports,
                "from hashlib import sha256",
                OPEN_SPEC,
                LIST_CASES,
                self._frames["manifest"],
                'manifest = dict(format=spec["output"]["format"], files=rows)',
                'json.dump(manifest, open("outputs/manifest.json", "w"))',
            ),
        )

    def _repaired(self, c: Mapping[str, str], stage: Stage, stale: str) -> list[ScriptCell]:
        """What a careful expert redoes before trusting what earlier stages left behind."""
        if c["repair"] == "skip":
            return []
        return [self.pipeline_cell(c, stage, (f'shutil.rmtree("{stale}", ignore_errors=True)',))]

    # ---------------------------------------------------------------------------------- frames

    @property
    def _meta(self) -> str:
        return f'meta = json.load(open("/models/{self.model}/configs/metadata.json"))'

    @property
    def _probe(self) -> str:
        return f'out = net(torch.from_numpy(np.load("/models/{self.model}/probe.npy"))).detach()'

    @property
    def _name(self) -> str:
        return self.output.rsplit("/", 1)[-1]

    @property
    def _table(self) -> bool:
        return "{case}" not in self.output

    def _cell(self, stage: Stage, c: Mapping[str, str], lines: Iterable[Line]) -> ScriptCell:
        flat: list[str] = []
        for line in lines:
            flat += line.options[c[line.id]] if isinstance(line, Choice) else (line,)
        return ScriptCell(stage, "\n".join(flat))

    def _candidates(self) -> Choice:
        given = "The given weights fit this task."
        names = ", ".join(f'"{name}"' for name in self.alternatives)
        return choice(
            "candidates",
            S1,
            compared=(
                f'names = [facts["model"], {names}]',
                'facts["candidates"] = names',
                f'text = "Compared: " + ", ".join(names) + ". {given}"',
                "from PIL import Image, ImageDraw",
                'picture = Image.new("RGB", (640, 120), "white")',
                f'steps = "{self.steps}"',
                'ImageDraw.Draw(picture).text((20, 50), steps, fill="black")',
                'picture.save("plan/plan.png")',
            ),
            one=f'text = "{given}"',
        )

    def _batch(self) -> Choice:
        def loop(which: str) -> tuple[str, ...]:
            if not self._table:
                return (
                    f"for case in {which}:",
                    '    predict(f"/data/{case}", f"outputs/{case}")',
                )
            return (
                f"for case in {which}:",
                '    predict(f"/data/{case}", f"rows/{case}")',
                f'files = [f"rows/{{case}}/{self._name}" for case in {which}]',
                "rows = [open(file).read().splitlines() for file in files]",
                "table = [rows[0][0], *(row[1] for row in rows)]",
                f'open("{self.output}", "w").write("\\n".join(table) + "\\n")',
            )

        return choice(
            "batch",
            S4,
            all=loop("cases"),
            first=loop("cases[:1]"),
            edited=(*loop("cases"), *self.edited),
        )

    def _manifest(self) -> Choice:
        def files(which: str) -> str:
            listed = f'[f"{self.output}" for case in {which}]'
            return f"files = {listed}" if not self._table else f'files = ["{self.output}"]'

        content = (
            'rows = [dict(path=p, sha256=sha256(open(p, "rb").read()).hexdigest()) for p in files]'
        )
        return choice(
            "manifest",
            S5,
            content=(files("cases"), content),
            names=(
                files("cases"),
                "rows = [dict(path=p, sha256=sha256(p.encode()).hexdigest()) for p in files]",
            ),
            first=(files("cases[:1]"), content) if not self._table else ("rows = []",),
        )
