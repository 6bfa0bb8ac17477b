"""Hand-made episode records: what the host would have seen of a careful agent."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest

from bat_env.episode import CellRecord, Episode, GradeResult, RerunResult
from bat_env.rubric import Context, RubricResult, Verdict, compile_contract
from bat_env.sandbox.base import CellResult, Delta, FileEntry
from bat_env.stages import Stage
from bat_env.tasks import Task, load_task
from bat_env.tasks.instance import Instance

PNG = {"readable": True, "width": 640, "height": 120, "colours": 7}
VERSIONS = {"python": "3.11.9", "torch": "2.13.0", "monai": "1.6.1", "nibabel": "5.4.2"}
PROBE = {"mean": -1.65, "std": 7.07}


def entry(data: bytes) -> FileEntry:
    """A regular file's manifest entry."""
    return FileEntry("file", len(data), hashlib.sha256(data).hexdigest())


class Story:
    """An episode written cell by cell.

    Attributes:
        files: Workspace path -> content now.
        episode: The record; evidence starts as that of a flawless hand-in.
    """

    def __init__(
        self,
        task: Task,
        instance: Instance,
        focus: Stage = Stage.E2E,
        *,
        tier: str = "lite",
        outcome: str | None = None,
        initial: Mapping[str, bytes] | None = None,
    ) -> None:
        self.task, self.instance = task, instance
        self.files: dict[str, bytes] = dict(initial or {})
        manifest = {path: entry(data) for path, data in self.files.items()}
        self.episode = Episode(
            task=task.spec.id,
            tier=tier,
            split="train",
            size="mini",
            instance_seed=instance.seed,
            seed=7,
            focus=focus,
            outcome=outcome,
            cases=instance.cases,
            initial=manifest,
            current=dict(manifest),
        )
        evidence = self.episode.evidence
        evidence.versions = VERSIONS
        evidence.probe_expected = PROBE
        evidence.plan_image = PNG
        evidence.probe_rerun = RerunResult(True, output=b"x")
        evidence.batch_rerun = RerunResult(True, output=b"x")
        evidence.batch_rerun_case = instance.cases[0]
        evidence.batch_agreement = 1.0
        evidence.grade = self.grade(0.8)
        evidence.pilot = self.host()

    @property
    def ctx(self) -> Context:
        return Context(self.task.spec, self.instance)

    def grade(self, score: float, invalid: tuple[str, ...] = ()) -> GradeResult:
        cases = self.instance.cases
        return GradeResult(
            score=score,
            per_case={c: 0.0 if c in invalid else score for c in cases},
            valid={c: c not in invalid for c in cases},
            messages=dict.fromkeys(invalid, "the output is missing"),
        )

    def host(self, **changes: Any) -> dict[str, Any]:
        case = self.instance.cases[0]
        return {
            "readable": True,
            "valid": True,
            "message": "",
            "shape": list(self.instance.facts["shape"][case]),
            "dtype": "uint8",
            "labels": [0, 1],
            "quantity": self.instance.facts["pilot_truth"][case],
            "case_score": 0.8,
            "score_before": 0.3,
            **changes,
        }

    def cell(self, files: Mapping[str, bytes | None], *, ok: bool = True) -> Story:
        """Run one cell that leaves ``files`` (None: deleted)."""
        before = self.episode.current
        created = {p: entry(d) for p, d in files.items() if d is not None and p not in before}
        changed = {
            p: entry(d)
            for p, d in files.items()
            if d is not None and p in before and before[p] != entry(d)
        }
        deleted = tuple(sorted(p for p, d in files.items() if d is None and p in before))
        now = {p: e for p, e in before.items() if p not in deleted} | created | changed
        self.episode.current = dict(sorted(now.items()))
        self.files = {p: d for p, d in self.files.items() if p not in deleted}
        self.files |= {p: d for p, d in files.items() if d is not None}
        call = len(self.episode.cells)
        result = CellResult(0 if ok else 1, delta=Delta(created, changed, deleted))
        self.episode.cells.append(CellRecord(call, call, "python", "...", result))
        self.episode.evidence.files = dict(self.files)
        return self

    def oracle(self, *stages: str, **edits: bytes | None) -> Story:
        """The careful cells of some stages (all by default)."""
        made = oracle_files(self.task, self.instance, self.episode.tier)
        for stage in stages or ("S1", "S2", "S3", "S4", "S5"):
            self.cell(made[stage])
        return self

    def edit(self, path: str, change: Any) -> Story:
        """Rewrite a JSON file in a further cell, through a function of its content."""
        value = copy.deepcopy(json.loads(self.files[path]))
        value = change(value) or value
        return self.cell({path: json.dumps(value).encode()})

    def result(self, final: bool = True) -> RubricResult:
        contract = compile_contract(
            self.task.spec,
            tier=self.episode.tier,
            focus=self.episode.focus,
            outcome=self.episode.outcome,
        )
        return contract.evaluate(self.episode, self.ctx, final)

    def verdict(self, item: str) -> Verdict:
        return next(v for v in self.result().verdicts if v.item == item)


def oracle_files(task: Task, instance: Instance, tier: str) -> dict[str, dict[str, bytes]]:
    """Stage -> the files that a careful agent writes in it."""
    facts = instance.facts
    spec = task.spec
    spacing = list(facts["spacing_mm"].values())
    plan = {
        "case_count": facts["case_count"],
        "orientations": facts["orientations"],
        "spacing_mm": {
            "min": [min(a) for a in zip(*spacing, strict=True)],
            "max": [max(a) for a in zip(*spacing, strict=True)],
        },
        "intensity_hu": facts["intensity_hu"],
        "model": spec.model.name,
        "preprocessing": {
            k: facts["model_card"][k] for k in ("orientation", "spacing_mm", "window_hu")
        },
        "postprocessing": {"restore_grid": True},
        "output": {
            "path": spec.output.path,
            "dtype": "uint8",
            "labels": {str(v): n for v, n in spec.output.labels.items()},
        },
        "pilot_check": {"quantity": spec.pilot.quantity, "range": [60.0, 900.0]},
        "candidates": [spec.model.name, "swin_unetr", {"name": "segresnet", "why": "small"}],
    }
    setup = {
        "versions": {**VERSIONS, "torch": "2.13.0+cpu"},
        "inputs": facts["inputs"],
        "model": {"name": spec.model.name, "parameters": spec.model.parameters},
        "probe": PROBE,
    }
    case = instance.cases[0]
    pilot = {
        "case": case,
        "shape": facts["shape"][case],
        "dtype": "uint8",
        "labels": [0, 1],
        spec.pilot.quantity: facts["pilot_truth"][case] * 1.01,
    }
    outputs = {spec.output.path.format(case=c): f"labels of {c}".encode() for c in instance.cases}
    manifest = {
        "format": spec.output.format,
        "files": [{"path": p, "sha256": hashlib.sha256(d).hexdigest()} for p, d in outputs.items()],
    }
    names = f"{spec.model.name}, swin_unetr and segresnet"
    text = f"Compare {names}; use the given one.".encode()

    def dump(value: Any) -> bytes:
        return json.dumps(value).encode()

    first = {"plan/plan.md": text, "plan/facts.json": dump(plan)}
    if tier != "lite":
        first["plan/plan.png"] = b"png"
    return {
        "S1": first,
        "S2": {"setup/setup.json": dump(setup), "pipeline/predict.py": b"print()"},
        "S3": {f"validation/pilot/{case}/dseg.nii.gz": b"p", "validation/pilot.json": dump(pilot)},
        "S4": outputs,
        "S5": {"outputs/manifest.json": dump(manifest)},
    }


@pytest.fixture(scope="session")
def task() -> Task:
    return load_task("kidney_tumor")


@pytest.fixture(scope="session")
def instance(task: Task) -> Instance:
    return task.instance("train", 3, "mini")


@pytest.fixture
def story(task: Task, instance: Instance) -> Any:
    """Start a story: ``story(focus, tier=..., outcome=..., initial=...)``."""

    def start(focus: Stage = Stage.E2E, **options: Any) -> Story:
        return Story(task, instance, focus, **options)

    return start
