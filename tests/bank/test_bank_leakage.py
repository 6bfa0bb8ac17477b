from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bat_env.bank import Bank, Demonstration, StageState, preflight
from bat_env.bank.fingerprints import content_hashes, of_suites
from bat_env.bank.leakage import Scanner, machine_paths, scan
from bat_env.errors import LeakageError
from bat_env.tasks import Suite, load_suite, load_task

TASK = "seg/kidney_tumor"


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite("seg-mini")


@pytest.fixture(scope="module")
def heldout(suite: Suite) -> Any:
    return suite.entries[0].instance()


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    with Bank.open(tmp_path / "bank", create=True) as opened:
        yield opened


def make_state(**changes: Any) -> StageState:
    task = load_task(TASK)
    values: dict[str, Any] = {
        "track": "seg",
        "task": TASK,
        "task_digest": task.digest,
        "focus": "S4",
        "outcome": "success",
        "index": 77,
        "instance_digest": task.instance("train", 77, "mini").digest,
    }
    return StageState.model_validate({**values, **changes})


def make_demo(observation: str, code: str = "print(1)") -> Demonstration:
    return Demonstration.model_validate(
        {
            "source_trajectory": "tr",
            "track": "seg",
            "task": TASK,
            "task_digest": load_task(TASK).digest,
            "focus": "S1",
            "index": 77,
            "seed": 1,
            "choices": {},
            "score": 0.1,
            "turns": [
                {
                    "observation": observation,
                    "action": {
                        "name": "execute_code",
                        "arguments": {"language": "python", "code": code},
                    },
                }
            ],
        }
    )


def test_a_clean_bank_passes(bank: Bank, suite: Suite) -> None:
    train = load_task(TASK).instance("train", 77, "mini")
    bank.add(
        make_state(brief=f"Segment {', '.join(train.cases)} of {train.fiction['institution']}."),
        {"plan/facts.json": b'{"case_count": 3}', **dict(train.public)},
        [{"code": "print('/data/x')", "stdout": "/workspace/plan"}],
    )
    bank.add_demonstration(make_demo("files: /workspace/outputs"))
    report = preflight(bank, [suite])
    assert report.clean and report.states == 1 and report.demonstrations == 1


def plant(place: str, text: str, bank: Bank) -> None:
    if place == "file name":
        bank.add(make_state(), {f"outputs/{text}/x": b"1"})
    elif place == "file":
        bank.add(make_state(), {"notes.txt": f"see ({text})".encode()})
    elif place == "zipped file":
        bank.add(make_state(), {"notes.gz": gzip.compress(f"see {text}".encode())})
    elif place == "brief":
        bank.add(make_state(brief=f"Cases: {text}."), {})
    elif place == "exposed":
        bank.add(make_state(exposed=f"wrong: {text}"), {})
    elif place == "transcript":
        bank.add(make_state(), {}, [{"stdout": f"line\n{text}\n"}])
    elif place == "observation":
        bank.add_demonstration(make_demo(f"created {text}/x"))
    elif place == "action":
        bank.add_demonstration(make_demo("ok", f"open('{text}')"))


PLACES = (
    "file name",
    "file",
    "zipped file",
    "brief",
    "exposed",
    "transcript",
    "observation",
    "action",
)


@pytest.mark.parametrize("place", PLACES)
def test_a_held_out_case_id_is_found_anywhere(
    bank: Bank, suite: Suite, heldout: Any, place: str
) -> None:
    plant(place, heldout.cases[0], bank)
    with pytest.raises(LeakageError, match="case id of held-out instance 0"):
        preflight(bank, [suite])


@pytest.mark.parametrize("place", ["brief", "file", "observation"])
def test_held_out_seeds_digests_and_fiction_are_found(
    bank: Bank, suite: Suite, heldout: Any, place: str
) -> None:
    for text, what in (
        (str(heldout.seed), "seed"),
        (f"{heldout.seed:x}", "seed"),
        (heldout.digest, "digest"),
        (heldout.probe_case, "case id"),
        (heldout.fiction["institution"], "fiction"),
        (load_task(TASK).spec.fiction["dev"][0]["institution"], "fiction"),
        ("index 3 of heldout", "held-out namespace"),
    ):
        plant(place, text, bank)
        assert any(what in finding.what for finding in scan(bank, [suite]).findings), text
        for state in bank.query():
            bank.retire(state.state_id)
        for demo in bank.demonstrations():
            bank.retire(demo.demo_id)
    assert preflight(bank, [suite]).clean


def test_held_out_files_are_found_also_recompressed(bank: Bank, suite: Suite, heldout: Any) -> None:
    for name, tree in (("input", heldout.public), ("truth", heldout.private)):
        data = next(iter(tree.values()))
        for index, copy in enumerate((data, gzip.compress(gzip.decompress(data), 1, mtime=5))):
            row = bank.add(make_state(index=index), {"a.bin": copy})
            found = [f for f in scan(bank, [suite]).findings if f.row == f"state {row.state_id}"]
            assert any(f"{name} of held-out" in finding.what for finding in found)


def test_the_truth_of_the_state_itself_is_found(bank: Bank, suite: Suite) -> None:
    train = load_task(TASK).instance("train", 77, "mini")
    bank.add(make_state(), {"outputs/x/dseg.nii.gz": next(iter(train.private.values()))})
    bank.add(make_state(focus="S5"), {"probe": next(iter(train.probe_public.values()))})
    findings = scan(bank, [suite]).findings
    assert len({f.row for f in findings}) == 2
    assert all("truth of train/77" in finding.what for finding in findings)


def test_same_voxels_under_another_header_are_the_same_truth() -> None:
    train = load_task(TASK).instance("train", 77, "mini")
    data = gzip.decompress(next(iter(train.private.values())))
    other = bytearray(data)
    other[148:158] = b"disguised!"
    assert set(content_hashes(data)) & set(content_hashes(bytes(other)))
    blank = data[:352] + bytes(len(data) - 352)
    assert len(content_hashes(blank)) == 1


@pytest.mark.parametrize("place", ["file", "transcript", "observation"])
@pytest.mark.parametrize(
    ("text", "what"),
    [
        # A name of its own: the path differs from one test process to the next.
        pytest.param(f"{machine_paths()[0]}/x.py", "path of this machine", id="machine"),
        ("/home/alice/data", "home directory"),
        ("/Users/alice/data", "home directory"),
        ("AKIA" + "ABCDEFGHIJKLMNOP", "credential"),
        ("hf_" + "a1" * 17, "credential"),
        ("-----BEGIN RSA PRIVATE " + "KEY-----", "credential"),
        ("https://user:" + "secret@example.org", "credential"),
    ],
)
def test_machine_paths_and_credentials_are_found(
    bank: Bank, suite: Suite, place: str, text: str, what: str
) -> None:
    plant(place, text, bank)
    with pytest.raises(LeakageError, match=what):
        preflight(bank, [suite])


def test_it_fails_closed(bank: Bank, suite: Suite) -> None:
    with pytest.raises(LeakageError, match="at least one held-out suite"):
        preflight(bank, [])
    with pytest.raises(LeakageError, match="cannot be fingerprinted"):
        preflight(bank, ["no-such-suite"])
    changed = suite.entries[0].model_copy(update={"digest": "0" * 64})
    with pytest.raises(LeakageError, match="cannot be fingerprinted"):
        preflight(bank, [Suite("x", "y" * 64, (changed,))])
    bank.add(make_state(task_digest="0" * 64), {})
    with pytest.raises(LeakageError, match="cannot be compared"):
        preflight(bank, [suite])


def test_a_scanner_remembers_only_clean_files(suite: Suite, heldout: Any) -> None:
    scanner = Scanner(of_suites([suite]))
    leak = heldout.cases[1].encode()
    assert list(scanner.file(leak)) and list(scanner.file(leak))
    assert not list(scanner.file(b"clean")) and not list(scanner.file(b"clean"))


def test_fingerprints_are_kept_on_disk(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAT_HOME", str(tmp_path))
    first = of_suites([suite])
    (kept,) = (tmp_path / "fingerprints").iterdir()
    assert of_suites([suite]) == first
    kept.write_bytes(b"garbage")
    assert of_suites([suite]) == first
