"""The first task in detail; test_folder_rules.py holds every task found to the common rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from bat_env.metrics import aggregate, score_case
from bat_env.stages import Stage
from bat_env.tasks import Task, load_task, public_spec, render_brief, stage_files, task_ids
from bat_env.tasks.instance import SPLITS, Instance


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("seg/kidney_tumor")


def minis(task: Task, split: str = "dev", count: int = 12) -> list[Instance]:
    return [task.instance(split, index, "mini") for index in range(count)]  # type: ignore[arg-type]


def test_the_kidney_task_is_found() -> None:
    assert "seg/kidney_tumor" in task_ids()


# ------------------------------------------------------------------------------- instances


def test_splits_are_disjoint(task: Task) -> None:
    seeds = {split: {task.seed(split, i) for i in range(2000)} for split in SPLITS}  # type: ignore[arg-type]
    assert len(set(chain(*seeds.values()))) == 6000
    for key in ("institution", "prefix", "study", "scanner"):
        values = [{row[key] for row in task.spec.fiction[split]} for split in SPLITS]  # type: ignore[index]
        assert sum(map(len, values)) == len(set().union(*values)), key
    ids = {split: set(chain(*(d.cases for d in minis(task, split, 8)))) for split in SPLITS}
    assert sum(map(len, ids.values())) == len(set().union(*ids.values()))


def test_lesion_free_and_lesion_cases_exist(task: Task) -> None:
    lesion = task.spec.metric.params["lesion"]
    for drawn in [*minis(task, count=6), task.instance("dev", 0, "full")]:
        volumes = [row[lesion] for row in drawn.facts["volumes_ml"].values()]
        assert 0 in volumes and any(v > 5 for v in volumes)


def test_geometry_and_intensity_vary(task: Task) -> None:
    drawn = minis(task)
    facts = [d.facts for d in drawn]
    assert len(set(chain(*(f["orientations"].values() for f in facts)))) >= 6
    assert len({tuple(s) for f in facts for s in f["spacing_mm"].values()}) >= 20
    assert len({tuple(s) for f in facts for s in f["shape"].values()}) >= 20
    assert all(len(set(s)) > 1 for f in facts for s in f["spacing_mm"].values()), "anisotropic"
    assert len({tuple(f["intensity_hu"]) for f in facts}) >= 4
    assert {f["inputs"]["scaled"] for f in facts} == {True}


def test_case_ids_are_random_and_the_probe_is_unseen(task: Task) -> None:
    for drawn in minis(task):
        assert drawn.probe_case not in drawn.cases
        assert len(set(drawn.cases)) == len(drawn.cases) >= 2
        prefix = drawn.fiction["prefix"]
        assert all(case.startswith(prefix + "-") for case in drawn.cases)
    tails = {case.split("-")[1] for d in minis(task) for case in d.cases}
    assert len(tails) >= 30


def test_facts_are_true_of_the_files(task: Task) -> None:
    import gzip

    import nibabel as nib

    drawn = task.instance("dev", 3, "mini")
    low, high = [], []
    for case in drawn.cases:
        image = nib.Nifti1Image.from_bytes(gzip.decompress(drawn.public[f"{case}/ct.nii.gz"]))
        truth = nib.Nifti1Image.from_bytes(gzip.decompress(drawn.private[f"{case}/dseg.nii.gz"]))
        assert "".join(nib.aff2axcodes(image.affine)) == drawn.facts["orientations"][case]
        np.testing.assert_allclose(
            image.header.get_zooms(), drawn.facts["spacing_mm"][case], rtol=1e-5
        )
        assert list(image.shape) == drawn.facts["shape"][case] == list(truth.shape)
        np.testing.assert_array_equal(image.affine, truth.affine)
        ml = np.prod(drawn.facts["spacing_mm"][case]) / 1000
        kidney = (np.asarray(truth.dataobj) == 1).sum() * ml
        assert kidney == pytest.approx(drawn.facts["pilot_truth"][case], rel=1e-4)
        values = image.get_fdata()
        low.append(values.min())
        high.append(values.max())
    assert [min(low), max(high)] == pytest.approx(drawn.facts["intensity_hu"])


_DIGESTS = """
import sys
from bat_env.tasks import load_task
task = load_task(sys.argv[1])
print([task.instance("dev", i, s).digest for i, s in ((0, "mini"), (5, "mini"), (0, "full"))])
"""


def test_generation_is_bit_deterministic_across_processes(task: Task) -> None:
    here = [task.instance("dev", i, s).digest for i, s in ((0, "mini"), (5, "mini"), (0, "full"))]
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _DIGESTS, task.id],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str(here)


def test_files_carry_no_time_stamp(task: Task) -> None:
    for data in chain(task.instance("dev", 0, "mini").public.values()):
        if data[:2] == b"\x1f\x8b":
            assert data[4:8] == bytes(4)


# ------------------------------------------------------------------------ scores of outputs


def test_truth_scores_one_and_trivial_outputs_land_at_the_floor(task: Task) -> None:
    totals: dict[str, list[float]] = {}
    for drawn in minis(task, "dev", 6):
        (name,) = {path.split("/")[1] for path in drawn.private}
        for method, files in task.trivial_outputs(drawn).items():
            scores = {
                case: score_case(
                    task.spec,
                    drawn.private[f"{case}/{name}"],
                    drawn.public[f"{case}/{task.spec.input_file}"],
                    files[task.spec.output.path.format(case=case)],
                )
                for case in drawn.cases
            }
            totals.setdefault(method, []).append(aggregate(drawn.cases, scores).score)
        case = drawn.cases[0]
        truth = drawn.private[f"{case}/{name}"]
        assert score_case(task.spec, truth, None, truth).score == 1.0
    assert set(totals) == set(task.spec.floors)
    for method, values in totals.items():
        assert float(np.mean(values)) <= 0.10, method
        assert float(np.mean(values)) <= task.spec.floors[method] + 0.02, method
    assert max(task.spec.floors.values()) <= 0.10


# ------------------------------------------------------------------------------- scripts


def test_decisions_and_mistakes_fit_together(task: Task) -> None:
    options = {d.id: d.options for d in task.decisions}
    assert len(options) == len(task.decisions) >= 12
    assert all(2 <= len(o) <= 4 and len(set(o)) == len(o) for o in options.values())
    assert len({m.id for m in task.mistakes}) == len(task.mistakes) >= 14
    listed = {(d, o) for m in task.mistakes for d, o in m.choices.items()}
    wrong = {(d, o) for d, every in options.items() for o in every[1:]}
    assert listed == wrong, "every wrong option is a listed mistake, and nothing else is"
    assert set(task.naive_choices.items()) <= listed
    for mistake in task.mistakes:
        assert mistake.costs and all(cost >= 0.05 for cost in mistake.costs.values())
        assert mistake.title and mistake.source


def test_cells_are_short_python(task: Task) -> None:
    variants = [{}, task.naive_choices, *(m.choices for m in task.mistakes)]
    for choices in variants:
        for focus in Stage:
            for tier in task.spec.tiers:
                cells = task.script(choices, focus=focus, tier=tier)
                assert 1 <= len(cells) <= 8
                for cell in cells:
                    compile(cell.code, "cell", "exec")
                    lines = cell.code.split("\n")
                    assert len(lines) <= 45
                    assert all(len(line) <= 110 for line in lines)
                    assert len(cell.code) <= task.spec.budgets.code_chars
    for mistake in task.mistakes:
        compile(mistake.check, mistake.id, "exec")


def test_scripts_name_no_case_and_only_the_stage_in_focus(task: Task) -> None:
    every = "\n".join(cell.code for cell in task.script())
    for drawn in minis(task, count=3):
        assert not any(case in every for case in drawn.cases)
    for focus in Stage:
        stages = {cell.stage for cell in task.script(focus=focus)}
        assert stages == ({focus} if focus is not Stage.E2E else set(Stage) - {Stage.E2E})


def test_options_change_the_script(task: Task) -> None:
    base = {tier: task.script(tier=tier) for tier in task.spec.tiers}
    focused = {f: task.script(focus=f) for f in Stage}
    for decision in task.decisions:
        for option in decision.options[1:]:
            choice = {decision.id: option}
            moved = any(task.script(choice, tier=t) != base[t] for t in base) or any(
                task.script(choice, focus=f) != focused[f] for f in focused
            )
            assert moved, (decision.id, option)


# --------------------------------------------------------------------- staging and briefs


def test_nothing_private_is_staged(task: Task) -> None:
    drawn = task.instance("heldout", 0, "mini")
    secrets = [str(task.probe_expected["std"])[:7], str(drawn.seed), drawn.probe_case]
    secrets += [f"{v['kidney']:.3f}" for v in drawn.facts["volumes_ml"].values()]
    truths = {*drawn.private.values(), *drawn.probe_private.values(), *drawn.probe_public.values()}
    for tier in task.spec.tiers:
        for focus in Stage:
            files = stage_files(task, drawn, tier, focus)
            assert all(
                path.split("/")[0] in ("data", "models", "skills", "workspace") for path in files
            )
            assert truths.isdisjoint(files.values())
            for path, data in files.items():
                text = data.decode("latin-1")
                assert not any(secret in text for secret in secrets), path
    contract = json.dumps(public_spec(task.spec))
    assert "floor" not in contract and "fiction" not in contract
    assert str(task.spec.model.parameters) not in contract


def test_tiers_grant_skills_and_card(task: Task) -> None:
    drawn = task.instance("dev", 0, "mini")
    card = f"models/{task.spec.model.name}/docs/README.md"
    for tier, granted in task.spec.tiers.items():
        files = stage_files(task, drawn, tier, Stage.E2E)
        assert {p for p in files if p.startswith("skills/")} == {
            f"skills/{name}" for name in granted.skills
        }
        assert (card in files) == granted.model_card
    assert {p for p in stage_files(task, drawn, "lite", Stage.S3) if "skills/" in p} == {
        "skills/S3.md"
    }


def test_brief_takes_numbers_and_paths_from_the_contract(task: Task) -> None:
    drawn = task.instance("dev", 0, "mini")
    changed = Task(task.folder)
    budgets = task.spec.budgets.model_copy(
        update={"turns": 91, "calls": 87, "cell_timeout_s": 77.0}
    )
    model = task.spec.model.model_copy(update={"probe_input": "other_probe.npy"})
    output = task.spec.output.model_copy(update={"path": "outputs/{case}/other.nii.gz"})
    changed.spec = task.spec.model_copy(
        update={"budgets": budgets, "model": model, "output": output, "input_file": "scan.nii"}
    )
    for tier in task.spec.tiers:
        text = render_brief(changed, drawn, tier=tier, focus=Stage.E2E)
        for wanted in ("91 turns", "87 cells", "77 s", "other.nii.gz", "scan.nii"):
            assert wanted in text, (tier, wanted)
        for stale in (" 24 ", " 23 ", "120 s", "dseg", "ct.nii.gz"):
            assert stale not in text, (tier, stale)


def test_briefs_differ_between_instances_only_where_they_must(task: Task) -> None:
    one, other = (task.instance("train", i, "mini") for i in (0, 1))
    for tier in task.spec.tiers:
        for focus in Stage:
            a, b = (
                render_brief(task, drawn, tier=tier, focus=focus).splitlines()
                for drawn in (one, other)
            )
            assert len(a) == len(b)
            moved = {x.split(" ")[0] for x, y in zip(a, b, strict=True) if x != y}
            assert moved <= {"Institution:", "Study:", "Scanner:", "-"}
            assert max(map(len, a)) <= 120
            assert all(case in "\n".join(a) for case in one.cases)


def test_brief_of_a_bank_state_shows_files_and_check(task: Task) -> None:
    drawn = task.instance("train", 0, "mini")
    text = render_brief(
        task,
        drawn,
        tier="lite",
        focus=Stage.S3,
        outcome="recovery",
        exposed="kidney ml 3\n",
        files=[f"f{i:03}" for i in range(60)],
    )
    assert "kidney ml 3" in text and "- f000" in text and "and 20 more" in text
    assert "Correct it first" in text and "S3" in text
    plain = render_brief(task, drawn, tier="lite", focus=Stage.S3, outcome="failure")
    assert "verified" in plain and "Output of the check" not in plain


# ------------------------------------------------------------------------------- the bundle


def test_bundle_loads_with_monai_and_is_what_the_card_says(task: Task, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from monai.bundle import ConfigParser

    files = task.model_files()
    assert sum(map(len, files.values())) < 1_000_000
    for path, data in files.items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    root = tmp_path / task.spec.model.name
    parser = ConfigParser()
    parser.read_config(str(root / "configs" / "inference.json"))
    parser.read_meta(str(root / "configs" / "metadata.json"))
    parser["bundle_root"] = str(root)
    net = parser.get_parsed_content("network_def")
    parser.get_parsed_content("load")
    meta = json.loads((root / "configs" / "metadata.json").read_text())
    wanted = json.loads((root / "configs" / "inference.json").read_text())["network_def"]
    assert {k: v for k, v in wanted.items() if k != "_target_"} == meta["network"]
    assert sum(p.numel() for p in net.parameters()) == task.spec.model.parameters
    net.eval()
    with torch.no_grad():
        out = net(torch.from_numpy(np.load(root / task.spec.model.probe_input)))
    assert float(out.mean()) == pytest.approx(task.probe_expected["mean"], abs=1e-4)
    assert float(out.std()) == pytest.approx(task.probe_expected["std"], abs=1e-4)
    definition = meta["network_data_format"]["outputs"]["pred"]["channel_def"]
    assert [definition[str(i)] for i in range(len(definition))] == meta["channels"]
    assert set(meta["channels"]) == set(task.spec.output.labels.values())
    card = (root / "docs" / "README.md").read_text()
    for value in (*meta["preprocessing"]["spacing_mm"], meta["preprocessing"]["orientation"]):
        assert str(value) in card
    for value in meta["preprocessing"]["window_hu"]:
        assert str(round(value)) in card
    for number, name in enumerate(meta["channels"]):
        assert f"{number} {name}" in card


def test_readme_says_what_it_mirrors_and_what_it_is_not(task: Task) -> None:
    text = (task.folder / "README.md").read_text()
    assert task.spec.mirrors in text and "Not for clinical use" in text


def test_training_is_deterministic(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from bat_env.tasks import load_sibling

    train = load_sibling(str(task.folder / "task.yaml"), "train")
    monkeypatch.setattr(train, "INSTANCES", {"mini": 2})
    monkeypatch.setattr(train, "STEPS", 10)
    model = task.folder / "model" / task.spec.model.name
    meta = json.loads((model / "configs" / "metadata.json").read_text())
    assert train.FIRST_INDEX > 10_000, "episodes draw small training indices"
    inputs, targets = train.dataset(task, meta)
    assert inputs.shape[1:] == (1, *train.CANVAS) and targets.shape[1:] == train.CANVAS
    assert set(targets.unique().tolist()) == set(range(len(meta["channels"])))
    weights = []
    for _ in range(2):
        torch.manual_seed(1)
        weights.append(train.fit(meta, inputs, targets).state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
