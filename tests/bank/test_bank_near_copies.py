"""Held-out material in other clothes: pictures, briefs, answers, facts, canaries, completions."""

from __future__ import annotations

import gzip
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from bat_env.bank import Bank, Demonstration, StageState
from bat_env.bank.fingerprints import of_suites
from bat_env.bank.leakage import Scanner, scan, scan_files
from bat_env.bank.needles import machine_paths
from bat_env.bank.pictures import Gallery, pictures
from bat_env.bank.remembering import ScanMemory
from bat_env.env import AutoMedEnv
from bat_env.errors import LeakageError
from bat_env.stages import Stage
from bat_env.tasks import Suite, SuiteEntry, load_suite, load_task, render_brief

SEG, SKIN = "seg/kidney_tumor", "cls/skin_lesion"
REPORT, VQA, DET = "report/chest_findings", "vqa/radiograph_mc", "det/wrist_lesion"
TASKS = (SEG, SKIN, REPORT, VQA, DET)


@pytest.fixture(scope="module")
def suite() -> Suite:
    """Two held-out instances of five tasks, of the frozen suite."""
    entries: list[SuiteEntry] = []
    for entry in load_suite("lite-mini").entries:
        if entry.task in TASKS and sum(e.task == entry.task for e in entries) < 2:
            entries.append(entry)
    return Suite("part", "p" * 64, tuple(entries))


@pytest.fixture(scope="module")
def scanner(suite: Suite) -> Scanner:
    return Scanner(of_suites([suite]))


def heldout(suite: Suite, task: str, number: int = 0) -> Any:
    return [entry for entry in suite.entries if entry.task == task][number].instance()


def picture_of(tree: Any) -> np.ndarray[Any, Any]:
    """One picture of an instance."""
    data = next(data for path, data in tree.items() if path.endswith(".png"))
    return np.asarray(Image.open(io.BytesIO(data)).convert("F"))


def resized(picture: Any, scale: float) -> Any:
    size = (round(picture.shape[1] * scale), round(picture.shape[0] * scale))
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC))


def png(picture: Any) -> bytes:
    low, high = float(picture.min()), float(picture.max())
    out = io.BytesIO()
    Image.fromarray(np.rint((picture - low) * (255 / (high - low))).astype(np.uint8)).save(
        out, "PNG"
    )
    return out.getvalue()


def npy(picture: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, picture)
    return out.getvalue()


def nifti(volume: Any) -> bytes:
    return gzip.compress(nib.Nifti1Image(volume.astype(np.int16), np.eye(4)).to_bytes())


WAYS = {
    "re-encoded": lambda p: png(p),
    "shifted": lambda p: npy(0.8 * p + 25),
    "cropped": lambda p: npy(p[2:-3, 3:-1]),
    "smaller": lambda p: npy(resized(p, 0.75)),
    "larger": lambda p: npz(resized(p, 1.4)),
    "all at once": lambda p: png(resized(p[1:-2, 2:-2], 0.85)),
}


def npz(picture: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, a=picture)
    return out.getvalue()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("task", [SKIN, REPORT, VQA, DET])
def test_a_held_out_picture_is_found_in_other_clothes(
    suite: Suite, scanner: Scanner, task: str, way: str
) -> None:
    copy = WAYS[way](picture_of(heldout(suite, task).public))
    assert any("nearly shows the picture of held-out" in w for w in scanner.file(copy)), way


@pytest.mark.parametrize("way", ["re-encoded", "shifted", "cropped", "one slice"])
def test_a_held_out_volume_is_found_in_other_clothes(
    suite: Suite, scanner: Scanner, way: str
) -> None:
    data = next(iter(heldout(suite, SEG).public.values()))
    volume = nib.Nifti1Image.from_bytes(gzip.decompress(data)).get_fdata(dtype=np.float32)
    axis = int(np.argmin(volume.shape))
    middle = np.take(volume, volume.shape[axis] // 2, axis)
    copy = {
        "re-encoded": lambda: npy(volume.astype(np.float64)),
        "shifted": lambda: nifti(0.9 * volume + 30),
        "cropped": lambda: npz(volume[1:-2, 2:-1, 1:-1]),
        "one slice": lambda: png(np.clip(middle, -150, 300)),
    }[way]()
    assert any("nearly shows" in what for what in scanner.file(copy))


@pytest.mark.parametrize("task", TASKS)
def test_pictures_of_training_instances_are_no_copies(scanner: Scanner, task: str) -> None:
    instance = load_task(task).instance("train", 3, "mini")
    trees = (instance.public, instance.private)
    for data in [d for tree in trees for d in list(tree.values())[:4]]:
        assert list(scanner.file(data)) == []


def test_what_is_no_picture_gives_none() -> None:
    noise = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    assert len(pictures(npy(noise), 4)) == 1
    for data in (
        b"",
        b"\x89PNG\r\n\x1a\n broken",
        b"\x93NUMPY\x01\x00",
        b"PK\x03\x04 broken",
        gzip.compress(b"text"),
        npy(noise > 0),  # a label map
        npy(noise[:10]),
        npy(np.zeros((64, 64))),
        npy(np.full((64, 64), np.nan)),
    ):
        assert pictures(data, 4) == []
    assert Gallery.of([("a", npy(noise))]).recognise(npy(noise * 3 + 7)) == "a"
    assert Gallery().recognise(npy(noise)) is None


def state(task: str = SEG, **changes: Any) -> StageState:
    loaded = load_task(task)
    values = {
        "track": loaded.spec.track,
        "task": task,
        "task_digest": loaded.digest,
        "focus": "S3",
        "outcome": "success",
        "index": 77,
        "instance_digest": loaded.instance("train", 77, "mini").digest,
    }
    return StageState.model_validate({**values, **changes})


def whats(scanner: Scanner, *arguments: Any) -> str:
    return "; ".join(f"{f.place}: {f.what}" for f in scanner.state(*arguments))


@pytest.mark.parametrize("task", TASKS)
def test_a_held_out_brief_is_found_by_its_facts_and_a_training_brief_is_not(
    suite: Suite, scanner: Scanner, task: str
) -> None:
    loaded = load_task(task)
    for tier in loaded.spec.tiers:
        mine = render_brief(
            loaded, loaded.instance("train", 31, "mini"), tier=tier, focus=Stage.E2E
        )
        assert whats(scanner, state(task, brief=mine), {}, ()) == ""
    brief = render_brief(loaded, heldout(suite, task), tier="lite", focus=Stage.S3)
    # No word of it is spelled as it was: names in other case, ids in pieces, lines joined.
    copied = " ".join(brief.lower().replace("-", " ").split())
    assert "lite brief of held-out" in whats(scanner, state(task, exposed=copied), {}, ())


@pytest.mark.parametrize("task", [REPORT, VQA, DET, SKIN])
def test_held_out_answers_are_found_without_their_case_ids(
    suite: Suite, scanner: Scanner, task: str
) -> None:
    instance = heldout(suite, task)
    answers = [json.loads(d) for p, d in sorted(instance.private.items()) if p.endswith(".json")]
    for number, answer in enumerate(answers):
        answer["case"] = f"n{number}"
    lines = json.dumps(answers, indent=1).splitlines()
    text = "\n".join(line for line in lines if '"case"' not in line)
    files = {"notes/answers.json": text.encode()}
    assert "repeats the answers of held-out" in whats(scanner, state(task), files, ())
    if task == REPORT:  # a file a case, as outputs are
        pieces = {f"outputs/{i:02}/r.txt": a["report"].encode() for i, a in enumerate(answers)}
        assert "repeats the answers" in whats(scanner, state(task), pieces, ())
    train = load_task(task).instance("train", 77, "mini")
    own = {f"x/{path.replace('/', '-')}": data + b" " for path, data in train.private.items()}
    assert "repeats" not in whats(scanner, state(task), own, ())


def test_held_out_facts_are_found_in_any_order(suite: Suite, scanner: Scanner) -> None:
    facts = {k: v for k, v in heldout(suite, SEG).facts.items() if k != "model_card"}
    numbers = sorted(
        json.dumps(facts).replace("[", " ").replace("]", " ").replace(",", " ").split()
    )
    found = whats(scanner, state(), {"facts.txt": "\n".join(numbers).encode()}, ())
    assert "repeats the facts of held-out" in found
    mine = load_task(SEG).instance("train", 77, "mini").facts
    text = json.dumps({k: v for k, v in mine.items() if k != "model_card"}).encode()
    assert whats(scanner, state(), {"facts.json": text}, ()) == ""


def test_a_canary_is_found_and_travels_with_the_truth_only(suite: Suite, scanner: Scanner) -> None:
    instance = heldout(suite, SEG)
    word, number = instance.canaries
    assert len({c for e in suite.entries for c in e.instance().canaries}) == 2 * len(suite.entries)
    for text in (word, number):
        found = whats(scanner, state(), {"a.json": json.dumps({"x": text}).encode()}, ())
        assert "canary of held-out" in found
    env = AutoMedEnv(split="heldout", size="mini", sandbox="local")
    try:
        observation, info = env.reset(seed=0, options={"index": instance.index})
        *_, last = env.step({"name": "submit_results", "arguments": {}})
        assert env.instance.canaries == instance.canaries
        evidence = json.dumps(env.frozen_evidence())
        assert word in evidence and number in evidence
        seen = json.dumps([observation["text"], info, last], default=str)
        seen += "".join(env.workspace()) + str(env.workspace())
        assert word not in seen and number not in seen
    finally:
        env.close()


def test_a_reset_point_holds_no_completion(scanner: Scanner) -> None:
    """RL rows: no field could hold one, no text does, and a planted one is found anywhere."""
    fields = set(StageState.model_fields)
    assert fields == {
        *("schema_version", "state_id", "track", "task", "task_digest", "tier", "size", "focus"),
        *("outcome", "split", "index", "instance_digest", "fault", "exposed", "brief"),
        *("rubric_digest", "evidence", "skill", "workspace", "transcript", "provenance"),
        *("reduction", "admission"),
    }
    target = next(
        c for c in load_task(SEG).script(focus=Stage.S3, outcome="success") if len(c.code) > 200
    )
    before = load_task(SEG).script(focus=Stage.S1)[0]
    assert whats(scanner, state(), {"work.py": before.code.encode()}, [{"code": target.code}]) == ""
    for row, files in (
        (state(exposed=f"do this:\n{target.code}"), {}),
        (state(provenance={"note": target.code}), {}),
        (state(), {"work.py": b"# copied\n" + target.code.replace("    ", "\t").encode()}),
        (state(), {"a.json": json.dumps({"cell": target.code}).encode()}),
    ):
        assert "expert's cell of S3" in whats(scanner, row, files, ())
    for mark in ("<|im_start|>assistant\n", '{"role": "assistant"}', "<tool_call>"):
        assert "assistant's turn" in whats(scanner, state(), {"chat.txt": mark.encode()}, ())


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    monkeypatch.setenv("BAT_HOME", str(tmp_path / "home"))
    with Bank.open(tmp_path / "bank", create=True) as opened:
        yield opened


def test_a_scan_remembers_what_was_clean_and_nothing_else(bank: Bank, suite: Suite) -> None:
    part = suite.of_tasks([SEG])
    bank.add(state(), {"notes.txt": b"fine"})
    demo = {
        "source_trajectory": "tr",
        "track": "seg",
        "task": SEG,
        "task_digest": load_task(SEG).digest,
        "focus": "S1",
        "index": 77,
        "seed": 1,
        "choices": {},
        "score": 0.1,
        "turns": [{"observation": "fine", "action": {"name": "submit_results", "arguments": {}}}],
    }
    bank.add_demonstration(Demonstration.model_validate(demo))
    assert scan(bank, [part]).clean
    began = time.process_time()
    again = scan(bank, [part])
    assert again.clean and (again.states, again.demonstrations) == (1, 1)
    assert time.process_time() - began < 1.0
    case = heldout(suite, SEG).cases[0]
    bad = bank.add(state(index=78), {"notes.txt": case.encode()})
    for _ in range(2):  # a leak is found again and again
        assert any(bad.state_id in f.row for f in scan(bank, [part]).findings)
    victim = bank.blobs.path(bank.query(index=77)[0].workspace)
    victim.write_bytes(b"rubbish")
    assert scan(bank, [part]).unreadable == 1, "a clean row is still read through"
    kept = next((Path(str(bank.path)).parent / "home" / "scans").iterdir())
    kept.write_bytes(gzip.compress(b'{"schema_version":1,"clean":["forged"],"digest":"0"}'))
    memory = ScanMemory.of(of_suites([part]))
    assert not memory.clean("forged")


def test_files_of_a_run_are_scanned_too(suite: Suite, tmp_path: Path) -> None:
    fingerprint = of_suites([suite.of_tasks([SEG])])
    word, _ = heldout(suite, SEG).canaries
    (tmp_path / "clean.json").write_text('{"loss": 0.5}')
    (tmp_path / "log.txt").write_text(f"see {word}")
    found = scan_files(sorted(tmp_path.iterdir()), fingerprint)
    assert [Path(f.place).name for f in found] == ["log.txt"] and "canary" in found[0].what
    with pytest.raises(LeakageError, match="not proven clean"):
        scan_files([tmp_path / "none"], fingerprint)
    assert machine_paths()
