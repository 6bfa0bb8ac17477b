"""Every item has a record that passes it and records that fail it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from bat_env.episode import RerunResult
from bat_env.rubric import compile_contract
from bat_env.stages import Stage

FACTS, SETUP, PILOT = "plan/facts.json", "setup/setup.json", "validation/pilot.json"
MANIFEST = "outputs/manifest.json"


def put(key: str, value: Any) -> Callable[[dict], None]:
    """Set a dotted key."""

    def change(data: dict) -> None:
        *parents, last = key.split(".")
        for part in parents:
            data = data[part]
        data[last] = value

    return change


def drop(key: str) -> Callable[[dict], None]:
    """Remove a dotted key."""

    def change(data: dict) -> None:
        *parents, last = key.split(".")
        for part in parents:
            data = data[part]
        del data[last]

    return change


@pytest.mark.parametrize("tier", ["lite", "standard", "pro"])
def test_a_careful_episode_passes_every_item(story, tier):
    done = story(tier=tier).oracle()
    result = done.result()
    states = {v.item: (v.state, v.message) for v in result.verdicts}
    assert all(state == "pass" for state, _ in states.values()), states
    assert result.agentic == 1.0 and result.task == 0.8
    assert result.score == pytest.approx(0.9, abs=1e-6)
    assert result.false_claims == 0


def test_tiers_decide_on_candidates_and_picture(task):
    items = {
        tier: {i.id for i in compile_contract(task.spec, tier=tier, focus=Stage.S1).items}
        for tier in ("lite", "standard")
    }
    assert items["standard"] - items["lite"] == {"S1.candidates", "S1.plan_image"}


EDITS = [
    # item, file, change, false claim, words of the message
    ("S1.model_named", FACTS, put("model", "vista3d"), False, "kidney_unet"),
    ("S1.facts_counts", FACTS, put("case_count", 99), True, "case_count"),
    ("S1.facts_counts", FACTS, put("case_count", True), False, "integer"),
    ("S1.facts_counts", FACTS, drop("orientations"), False, "'orientations'"),
    ("S1.facts_counts", FACTS, put("orientations", {}), False, "no entry"),
    ("S1.facts_ranges", FACTS, put("spacing_mm.min", [1, 1, 1]), True, "spacing_mm.min"),
    ("S1.facts_ranges", FACTS, put("spacing_mm.max", [1, 1]), False, "3 finite"),
    ("S1.facts_ranges", FACTS, put("intensity_hu", [0, 4095]), True, "intensity_hu"),
    ("S1.facts_ranges", FACTS, drop("intensity_hu"), False, "'intensity_hu'"),
    ("S1.processing_declared", FACTS, put("preprocessing.orientation", "LPI"), False, "card"),
    ("S1.processing_declared", FACTS, put("preprocessing.window_hu", [0, 1]), False, "card"),
    ("S1.processing_declared", FACTS, put("postprocessing.restore_grid", False), False, "grid"),
    ("S1.processing_declared", FACTS, drop("preprocessing.spacing_mm"), False, "spacing_mm"),
    ("S1.output_declared", FACTS, put("output.path", "/tmp/x"), False, "path"),
    ("S1.output_declared", FACTS, put("output.dtype", "float64"), False, "dtype"),
    ("S1.output_declared", FACTS, put("output.labels", {"1": "tumor"}), False, "labels"),
    ("S1.pilot_check", FACTS, put("pilot_check.range", [0.06, 0.9]), False, "leaves out"),
    ("S1.pilot_check", FACTS, put("pilot_check.range", [1, 1e6]), False, "wider"),
    ("S1.pilot_check", FACTS, put("pilot_check.range", [0, 900]), False, "0 < low"),
    ("S1.pilot_check", FACTS, put("pilot_check.quantity", "tumor"), False, "quantity"),
    ("S1.candidates", FACTS, put("candidates", ["kidney_unet"]), False, "1 different"),
    (
        "S1.candidates",
        FACTS,
        put("candidates", ["kidney_unet", "vnet", "resnet9"]),
        False,
        "discuss",
    ),
    ("S2.versions", SETUP, put("versions.torch", "1.13"), True, "torch"),
    ("S2.versions", SETUP, drop("versions.monai"), False, "versions.monai"),
    ("S2.inputs", SETUP, put("inputs.dtype", "float32"), True, "dtype"),
    ("S2.inputs", SETUP, put("inputs.scaled", False), True, "scaled"),
    ("S2.inputs", SETUP, put("inputs.ndim", 4), True, "ndim"),
    ("S2.model_run", SETUP, put("model.parameters", 12), True, "parameters"),
    ("S2.model_run", SETUP, put("probe.mean", 0.0), True, "probe.mean"),
    ("S2.model_run", SETUP, put("probe", {"mean": "x"}), False, "finite number"),
    ("S3.recorded", PILOT, put("case", "nobody"), True, "case"),
    ("S3.recorded", PILOT, put("shape", [512, 512, 64]), True, "shape"),
    ("S3.recorded", PILOT, put("dtype", "int64"), True, "dtype"),
    ("S3.recorded", PILOT, put("labels", [0, 1, 2]), True, "labels"),
    ("S3.recorded", PILOT, drop("labels"), False, "'labels'"),
    ("S3.sanity_value", PILOT, put("kidney_volume_ml", 1.0), True, "kidney_volume_ml"),
    ("S3.sanity_value", PILOT, drop("kidney_volume_ml"), False, "kidney_volume_ml"),
    ("S5.manifest", MANIFEST, put("format", "zip"), False, "format"),
    ("S5.manifest", MANIFEST, put("files", []), False, "does not list"),
    ("S5.manifest", MANIFEST, lambda d: d["files"][0].update(sha256="0" * 64), True, "sha256"),
    ("S5.manifest", MANIFEST, lambda d: d["files"].append(d["files"][0]), False, "twice"),
    (
        "S5.manifest",
        MANIFEST,
        lambda d: d["files"].append({"path": "outputs/no/dseg.nii.gz", "sha256": ""}),
        True,
        "no file",
    ),
]


@pytest.mark.parametrize(
    ("item", "path", "change", "false_claim", "words"),
    EDITS,
    ids=[f"{e[0]}-{n}" for n, e in enumerate(EDITS)],
)
def test_a_wrong_record_fails_its_item(story, item, path, change, false_claim, words):
    verdict = story(tier="standard").oracle().edit(path, change).verdict(item)
    assert (verdict.state, verdict.value) == ("fail", 0.0)
    assert verdict.false_claim is false_claim
    assert words in verdict.message


EVIDENCE = [
    ("S1.plan_image", {"plan_image": {"readable": True, "width": 1, "height": 1, "colours": 1}}),
    ("S1.plan_image", {"plan_image": {"readable": False, "message": "not a PNG"}}),
    ("S2.predict_runs", {"probe_rerun": RerunResult(False, "exit code 1")}),
    ("S4.reproducible", {"batch_rerun": RerunResult(False, "exit code 1")}),
    ("S4.reproducible", {"batch_agreement": 0.9}),
]


@pytest.mark.parametrize(("item", "evidence"), EVIDENCE)
def test_evidence_against_the_agent_fails_its_item(story, item, evidence):
    done = story(tier="standard").oracle()
    for name, value in evidence.items():
        setattr(done.episode.evidence, name, value)
    assert done.verdict(item).state == "fail"


@pytest.mark.parametrize(
    ("item", "host"),
    [
        ("S3.geometry", {"valid": False, "message": "the affine is not that of the input"}),
        ("S3.plausible", {"quantity": 0.0}),
        ("S3.plausible", {"quantity": 1e9}),
        ("S3.recorded", {"shape": [1, 1, 1]}),
        ("S3.geometry", {"readable": False, "message": "is not a gzip file"}),
    ],
)
def test_a_bad_pilot_file_fails_its_item(story, item, host):
    done = story().oracle()
    done.episode.evidence.pilot = done.host(**host)
    assert done.verdict(item).state == "fail"


LOST = [
    ("S1.plan_image", "plan_image"),
    ("S2.versions", "versions"),
    ("S2.predict_runs", "probe_rerun"),
    ("S3.recorded", "pilot"),
    ("S4.completed", "grade"),
    ("S4.reproducible", "batch_rerun"),
    ("S5.task_margin", "grade"),
]


@pytest.mark.parametrize(("item", "name"), LOST)
def test_lost_evidence_is_null_never_zero(story, item, name):
    done = story(tier="standard").oracle()
    setattr(done.episode.evidence, name, None)
    done.episode.evidence.lost[name] = "SandboxError: gone"
    assert done.verdict(item).state == "null"
    assert done.result().score is None


def test_lost_files_null_the_items_that_read_them(story):
    done = story().oracle()
    done.episode.evidence.files = {}
    done.episode.evidence.lost["files"] = "SandboxError: gone"
    assert done.verdict("S1.facts_counts").state == "null"
    assert done.result().score is None


def test_plan_first(story):
    assert story().oracle("S1").verdict("S1.plan_first").state == "pass"
    assert story().oracle("S4", "S1").verdict("S1.plan_first").state == "fail"
    late = story().oracle("S1", "S3").cell({"plan/plan.md": b"kidney_unet, later"})
    assert "after" in late.verdict("S1.plan_first").message


def test_model_named_needs_the_text_too(story):
    done = story().oracle().cell({"plan/plan.md": b"Some network."})
    assert "does not name" in done.verdict("S1.model_named").message


def test_few_failures_counts_cells_before_the_pilot(story, task):
    allowed = task.spec.budgets.failed_setup_cells
    start = story()
    for _ in range(allowed):
        start.cell({}, ok=False)
    assert start.oracle().verdict("S2.few_failures").state == "pass"
    for _ in range(3):
        start.cell({}, ok=False)
    assert start.verdict("S2.few_failures").state == "pass", "later than the pilot"
    bad = story()
    for _ in range(allowed + 1):
        bad.cell({}, ok=False)
    assert bad.oracle().verdict("S2.few_failures").state == "fail"


def test_pilot_first(story, instance):
    assert story().oracle("S3", "S4").verdict("S3.pilot_first").state == "pass"
    assert story().oracle("S4", "S3").verdict("S3.pilot_first").state == "fail"
    two = {f"validation/pilot/{c}/dseg.nii.gz": b"p" for c in instance.cases[:2]}
    assert "found 2" in story().cell(two).verdict("S3.pilot_first").message
    other = {"validation/pilot/nobody/dseg.nii.gz": b"p"}
    assert "not a case" in story().cell(other).verdict("S3.pilot_first").message
    redone = story().oracle("S3", "S4")
    path = f"validation/pilot/{instance.cases[0]}/dseg.nii.gz"
    redone.cell({path: b"again"})
    assert "later than the batch" in redone.verdict("S3.pilot_first").message
    both = story()
    both.cell({path: b"p", f"outputs/{instance.cases[0]}/dseg.nii.gz": b"p"})
    assert both.verdict("S3.pilot_first").state == "fail", "before = in an earlier cell"


def test_fault_gone_only_in_recovery_states(story, task, instance):
    case = instance.cases[0]
    initial = {f"validation/pilot/{case}/dseg.nii.gz": b"ill"}
    start = story(Stage.S3, outcome="recovery", initial=initial).oracle("S3")
    assert start.verdict("S3.fault_gone").state == "pass"
    for host, state, why in [
        ({"case_score": 0.2}, "fail", "still ill"),
        ({"case_score": 0.6, "score_before": 0.55}, "fail", "hardly better"),
        ({"case_score": 0.6, "score_before": 0.2}, "pass", "much better than the ill pipeline"),
        ({"case_score": 0.9, "score_before": 0.9}, "fail", "the fault never showed on this case"),
        (
            {"case_score": 0.9, "score_before": 0.9, "rerun_score": 0.8, "rerun_before": 0.3},
            "pass",
            "clean runs on several cases show that it is gone",
        ),
        (
            {"case_score": 0.9, "score_before": 0.9, "rerun_score": 0.3, "rerun_before": 0.3},
            "fail",
            "clean runs show that it is not",
        ),
        (
            {"case_score": 0.4, "score_before": 0.9, "rerun_score": 0.8, "rerun_before": 0.3},
            "fail",
            "the pilot itself got worse",
        ),
        ({"case_score": 0.9, "score_before": None}, "null", "it was not compared"),
    ]:
        start.episode.evidence.pilot = start.host(**host)
        assert start.verdict("S3.fault_gone").state == state, why
    for outcome in (None, "success", "failure"):
        contract = compile_contract(task.spec, tier="lite", focus=Stage.S3, outcome=outcome)
        assert "S3.fault_gone" not in {i.id for i in contract.items}


def test_completed_counts_open_cases_only(story, instance):
    first, second, *_ = instance.cases
    path = "outputs/{}/dseg.nii.gz".format
    initial = {path(first): b"done before", path(second): b"broken before"}
    start = story(Stage.S4, initial=initial)
    start.episode.evidence.inherited = start.grade(0.2, invalid=instance.cases[1:])
    start.cell({path(second): b"repaired"})
    start.episode.evidence.grade = start.grade(0.5, invalid=instance.cases[2:])
    verdict = start.verdict("S4.completed")
    assert verdict.value == pytest.approx(1 / (len(instance.cases) - 1))
    assert start.verdict("S4.reproducible").state == "fail"
    start.episode.evidence.inherited = start.grade(0.5)
    assert start.verdict("S4.completed").state == "na"


def test_task_half_drops_out_where_inherited_outputs_pass(story, task):
    made = {f"outputs/{c}/dseg.nii.gz": b"before" for c in task.instance("train", 3, "mini").cases}
    start = story(Stage.S5, initial=made)
    start.oracle("S5")
    start.episode.evidence.inherited = start.grade(0.8)
    assert start.verdict("S5.task_margin").state == "na"
    start.episode.evidence.inherited = start.grade(0.0)
    assert start.verdict("S5.task_margin").state == "pass"
    start.episode.evidence.grade = start.grade(task.spec.floor)
    assert start.verdict("S5.task_margin").state == "fail"


def test_files_that_are_no_json_fail_with_their_name(story):
    for junk in (b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"case_count": NaN}'):
        verdict = story().oracle().cell({FACTS: junk + b" "}).verdict("S1.facts_counts")
        assert verdict.state == "fail" and FACTS in verdict.message
    big = json.dumps({"x": "y" * 300_000}).encode()
    assert "bytes" in story().oracle().cell({FACTS: big}).verdict("S1.facts_counts").message


def test_links_and_folders_are_no_evidence(story):
    done = story().oracle()
    now = dict(done.episode.current)
    now["plan/plan.md"] = dataclasses.replace(now["plan/plan.md"], kind="symlink")
    done.episode.current = now
    assert done.verdict("S1.plan_first").state == "fail"
    assert done.result().stages[Stage.S1].eta == 0.5
