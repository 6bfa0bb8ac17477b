"""Rules of staging that hold for any data: splits, turns, options of questions, fused boxes."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_layouts import copied, isic2018, noisy_pair, series, vqa_rad, write

from bat_agent.agents.scripted import OracleAgent
from bat_env.data import Bounds, Staged, load_layout, open_staged, stage_data
from bat_env.data.choices import Asked, multiple_choice
from bat_env.data.records import BoxedPicture, CaseError, LabelledPicture
from bat_env.data.reports import FINDINGS, read_findings, read_report, tidy
from bat_env.data.splits import LEAST, assign, staging_order
from bat_env.data.task import shrink
from bat_env.metrics.findings import claimed, claims


@settings(max_examples=100, deadline=None)
@given(
    groups=st.dictionaries(st.text(min_size=1, max_size=6), st.integers(0, 12), max_size=40),
    seed=st.integers(0, 2**32),
)
def test_splits_keep_groups_and_leave_training_cases(groups: dict[str, int], seed: int) -> None:
    named = {case: f"g{group}" for case, group in groups.items()}
    split = assign(named, seed)
    assert set(split) == set(named) and split == assign(named, seed)
    by_group: dict[str, set[str]] = {}
    for case, name in split.items():
        by_group.setdefault(named[case], set()).add(name)
    assert all(len(names) == 1 for names in by_group.values())
    counts = Counter(split.values())
    assert all(count >= LEAST for name, count in counts.items() if name != "train")
    assert not named or counts["train"] >= min(LEAST, len(named))


def test_a_limit_takes_every_class_in_turn() -> None:
    labels = ["a"] * 90 + ["b"] * 8 + ["c"] * 2
    records = [
        LabelledPicture(f"{n}", f"{n}", Path("x.png"), label) for n, label in enumerate(labels)
    ]
    first = staging_order(records, 5)[:6]
    assert Counter(record.label for record in first) == {"a": 2, "b": 2, "c": 2}
    assert [r.case for r in staging_order(records[::-1], 5)] == [
        r.case for r in staging_order(records, 5)
    ]
    assert staging_order(records, 6) != staging_order(records, 5)


@settings(max_examples=50, deadline=None)
@given(
    answers=st.lists(
        st.sampled_from(["Yes", "no", "left lung", "Right lung", "CT", "MRI", "x-ray", "PET "]),
        min_size=1,
        max_size=30,
    )
)
def test_options_hold_the_answer_once(answers: list[str]) -> None:
    asked = [Asked(f"q{n}", "g", Path("x.png"), f"Q{n}?", a, "k") for n, a in enumerate(answers)]
    made, left = multiple_choice(asked)
    assert len(made) + left == len(asked)
    for question in made:
        texts = [text.casefold().strip() for text in question.options.values()]
        answer = answers[int(question.case[1:])].casefold().strip()
        assert len(set(texts)) == len(texts) in (2, 4) and texts.count(answer) == 1
        assert question.options[question.answer].casefold().strip() == answer
        assert (set(texts) == {"yes", "no"}) == (answer in ("yes", "no"))
    again, _ = multiple_choice(asked[::-1])
    assert again == made


def test_answers_are_spread_over_the_letters(tmp_path: Path) -> None:
    vqa_rad(tmp_path)
    scan = load_layout("vqa_rad").scan(tmp_path)
    counts = Counter(question.answer for question in scan.records)
    assert set(counts) >= {"A", "B"} and max(counts.values()) < 0.8 * len(scan.records)
    assert any("1 questions have long" in note for note in scan.notes)
    cases = {question.case for question in scan.records}
    assert "900" not in cases and "901" not in cases
    assert "900" in {q.case for q in load_layout("vqa_rad").scan(tmp_path, rephrased="yes").records}


def test_three_readers_of_vindr_become_one_truth(published: Callable[[str], Path]) -> None:
    scan = load_layout("vindr_cxr").scan(published("vindr_cxr"), part="train")
    assert len(scan.records) == 6
    for record in scan.records:
        assert isinstance(record, BoxedPicture)
        # Two readers drew the nodule at nearly one place; cardiomegaly has one reader.
        assert record.boxes == ({"class": "nodule_mass", "x1": 11, "y1": 10, "x2": 31, "y2": 30},)
    test = load_layout("vindr_cxr").scan(published("vindr_cxr"))
    assert sum(not record.boxes for record in test.records) == 4


def test_yolo_boxes_become_pixels_and_shrink_with_the_picture(
    staged: Callable[[str], Staged],
) -> None:
    done = staged("grazpedwri")
    task = open_staged(done.folder)
    row = next(row for row in done.manifest.cases if row.summary["boxes"] == 2)
    public = {"image.png": (done.folder / "public" / row.key / "image.png").read_bytes()}
    private = {"truth.json": (done.folder / "private" / row.key / "truth.json").read_bytes()}
    truth = json.loads(private["truth.json"])
    assert (truth["width"], truth["height"]) == (64, 80)
    corners = ("x1", "y1", "x2", "y2")
    assert [truth["boxes"][0][key] for key in corners] == [24, 32, 40, 48]
    small = json.loads(shrink({"max_side_px": 40}, task.spec, public, private)[1]["truth.json"])
    assert (small["width"], small["height"]) == (32, 40)
    assert [small["boxes"][0][key] for key in corners] == [12, 16, 20, 24]


def test_isic_tables_stage_like_ham10000(tmp_path: Path) -> None:
    isic2018(tmp_path)
    scan = load_layout("ham10000").scan(tmp_path)
    assert len(scan.records) == 28 and len(scan.labels) == 7
    assert "melanoma" in scan.labels.values()


def test_dataverse_tables_and_missing_class_lists(
    published: Callable[[str], Path], tmp_path: Path
) -> None:
    source = copied(published("ham10000"), tmp_path / "ham")
    plain = (source / "HAM10000_metadata.csv").read_text().splitlines()
    wanted = load_layout("ham10000").scan(source).records
    quoted = ["\t".join(f'"{cell}"' for cell in line.split(",")) for line in plain]
    (source / "HAM10000_metadata.csv").unlink()
    (source / "HAM10000_metadata.tab").write_text("\n".join(quoted))
    assert load_layout("ham10000").scan(source).records == wanted
    source = copied(published("grazpedwri"), tmp_path / "graz")
    labels = load_layout("grazpedwri").scan(source).labels
    (source / "folder_structure" / "yolov5" / "meta.yaml").unlink()
    assert load_layout("grazpedwri").scan(source).labels == labels


def test_the_grand_challenge_layout_pairs_by_patient_and_thickness(tmp_path: Path) -> None:
    for kind in ("full", "quarter"):
        for n in (1, 3):
            name = f"{kind}_{n}mm"
            series(tmp_path / name / "L067" / name, noisy_pair(n, (16, 16, 6))[kind == "full"])
    (record,) = load_layout("ldct").scan(tmp_path).records
    assert record.source.name == "quarter_1mm" and record.target.name == "full_1mm"


def test_reports_that_can_be_scored_and_others(tmp_path: Path) -> None:
    assert read_findings("Small left pleural effusion. No pneumothorax.") == [
        {"finding": "pleural_effusion", "side": "left"}
    ]
    for text, words in (
        ("Possible pneumonia in the right lung base.", "in doubt about pneumonia"),
        ("There is a pleural effusion.", "no side of pleural_effusion"),
    ):
        with pytest.raises(CaseError, match=words):
            read_findings(text)
    with pytest.raises(CaseError, match="no findings and no impression"):
        tidy("", " \n")
    path = tmp_path / "r.txt"
    path.write_text(
        " FINAL REPORT\n INDICATION: Left pneumothorax?\n\n FINDINGS: \n\n Cardiomegaly with"
        " clear lungs.\n\n IMPRESSION: \n 1. Cardiomegaly.\n"
    )
    text = read_report(path)
    assert "pneumothorax" not in text and text.startswith("Cardiomegaly with clear lungs.")
    # The true report is read as its own truth: it scores 1.
    assert claimed(claims(text, FINDINGS)) == {("cardiomegaly", ""): 1.0}


def test_reports_in_doubt_are_left_out_of_a_staging(staged: Callable[[str], Staged]) -> None:
    manifest = staged("chexpert_plus").manifest
    assert len(manifest.cases) == 16
    assert all("in doubt" in why or "no side" in why for why in manifest.skipped.values())
    assert len(manifest.skipped) == 8


def test_a_scripted_agent_finds_an_opened_task(staged: Callable[[str], Staged]) -> None:
    task = open_staged(staged("kits19").folder)
    agent = OracleAgent()
    agent.reset({}, {"task": task.id, "stage": "E2E", "tier": "standard"})
    call = agent.act({})
    code = call["arguments"]["code"]
    assert "plan/plan.png" in code and task.spec.model.alternatives[0] in code


def test_a_mask_is_given_and_judged_in(staged: Callable[[str], Staged]) -> None:
    done = staged("synthrad2025")
    spec = open_staged(done.folder).spec
    assert spec.extra_inputs == ("mask.nii.gz",) and spec.id == "synth/synthrad2025_task1"
    assert 0 < spec.metric.params["careful_ssim"] < 1
    assert any("without ct" in note for note in done.manifest.notes)


def test_the_denoising_reference_beats_the_trivial_methods(staged: Callable[[str], Staged]) -> None:
    spec = open_staged(staged("ldct").folder).spec
    assert spec.floor == 0.0 and spec.metric.params["data_range"] > 500
    assert spec.metric.params["careful_ssim"] > 0.3


def test_volumes_within_the_bound_are_staged_whole(tmp_path: Path) -> None:
    write("kits19", tmp_path / "src")
    whole = stage_data("kits19", tmp_path / "src", tmp_path / "a", limit=3)
    small = stage_data(
        "kits19", tmp_path / "src", tmp_path / "b", limit=3, bounds=Bounds(max_voxels=4096)
    )
    a, b = (open_staged(done.folder).instance("train", 0) for done in (whole, small))
    for drawn, most in ((a, 32 * 28 * 20), (b, 24**3)):
        for data in drawn.public.values():
            assert np.prod(nib.Nifti1Image.from_bytes(gzip.decompress(data)).shape) <= most
    for key, volumes in b.facts["volumes_ml"].items():
        assert volumes["kidney"] > 0, key
