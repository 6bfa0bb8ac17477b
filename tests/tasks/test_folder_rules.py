"""Rules over all folders at once, and new folders: one passes as soon as it is copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bat_env.errors import TaskError, UnknownNameError
from bat_env.task_rules import FOLDER_RULES
from bat_env.tasks import Task, load_task, task_ids
from bat_env.tasks.fiction import all_fiction, make_fiction
from bat_env.tasks.scaffold import new_task
from bat_env.testing import check_task, task_findings

RULES = {rule.__name__: rule for rule in FOLDER_RULES}


def test_fiction_of_all_tasks_is_disjoint_over_splits() -> None:
    """What one task holds out must not be another one's training name."""
    specs = [load_task(name).spec for name in task_ids()]
    values = {
        split: {v for spec in specs for row in spec.fiction[split] for v in row.values()}  # type: ignore[index]
        for split in ("train", "dev", "heldout")
    }
    assert sum(map(len, values.values())) == len(set().union(*values.values()))


def test_at_most_one_lite_task_a_track() -> None:
    lite = [name.split("/")[0] for name in task_ids() if load_task(name).spec.lite]
    assert len(set(lite)) == len(lite)


@pytest.mark.parametrize("task_id", task_ids())
def test_bundle_loads_with_monai_and_gives_the_private_answer(task_id: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from monai.bundle import ConfigParser

    task = load_task(task_id)
    for path, data in task.model_files().items():
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
    assert sum(p.numel() for p in net.parameters()) == task.spec.model.parameters
    net.eval()
    with torch.no_grad():
        out = net(torch.from_numpy(np.load(root / task.spec.model.probe_input)))
    assert float(out.mean()) == pytest.approx(task.probe_expected["mean"], abs=1e-4)
    assert float(out.std()) == pytest.approx(task.probe_expected["std"], abs=1e-4)


# ------------------------------------------------------------------------------- new folders


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAT_TASKS_PATH", str(tmp_path))
    return tmp_path


def test_a_new_task_passes_and_is_another_one(root: Path) -> None:
    folder = new_task("cls/mole_map", root)
    task, source = load_task("cls/mole_map"), load_task("cls/skin_lesion")
    assert task.folder == folder and not task.spec.lite
    assert task.spec.model.name == "mole_map_net" and source.id not in _texts(folder)
    assert not all_fiction([task.spec]) & all_fiction([load_task(n).spec for n in _others()])
    assert set(task.instance("dev", 0, "mini").cases).isdisjoint(
        source.instance("dev", 0, "mini").cases
    )
    check_task(task)


TRACKS = sorted({name.split("/")[0] for name in task_ids()})


def _edited(root: Path, track: str) -> Task:
    """A scaffolded task whose author has begun to change its own files."""
    folder = new_task(f"{track}/my_task", root)
    for name, old, new in (
        ("task.yaml", "\ntitle: ", "\ntitle: My own "),
        ("README.md", "Not for clinical use", "A task of my own.\n\nNot for clinical use"),
        ("skills/S1.md", "", "Begin with the README of the study.\n"),
    ):
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1) if old else text + new)
    brief = folder / "briefs" / "lite.md.j2"
    brief.write_text(brief.read_text() + "{% block notes %}\nMind the study.\n{% endblock %}\n")
    return load_task(f"{track}/my_task")


@pytest.mark.parametrize("track", TRACKS)
def test_a_scaffold_of_every_track_passes_after_only_its_own_files_changed(
    root: Path, track: str
) -> None:
    # Episodes of one track here, of all of them in the slow test below.
    check_task(_edited(root, track), depth="quick" if track == "vqa" else "files", sandbox="local")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("track", TRACKS)
def test_episodes_of_a_scaffold_keep_the_rules_too(root: Path, track: str) -> None:
    check_task(_edited(root, track), depth="quick", sandbox="local")


def _others() -> list[str]:
    return [name for name in task_ids() if name != "cls/mole_map"]


def _texts(folder: Path) -> str:
    files = (p for p in folder.rglob("*") if p.suffix in (".py", ".yaml", ".md", ".json"))
    return "".join(p.read_text() for p in files)


def test_new_task_refuses_what_cannot_be(root: Path) -> None:
    for name in ("mole_map", "xyz/mole", "cls/Mole", "cls/../x", "cls/1st"):
        with pytest.raises(TaskError, match="Expected a task id"):
            new_task(name, root)
    with pytest.raises(TaskError, match="exists already"):
        new_task("cls/skin_lesion", root)
    with pytest.raises(UnknownNameError, match="skin_lesion"):
        new_task("cls/mole_map", root, like="skin_leson")
    assert not list(root.iterdir())


def test_fiction_is_deterministic_disjoint_and_new() -> None:
    first = make_fiction("cls/a", set())
    assert first == make_fiction("cls/a", set())
    values = [v for rows in first.values() for row in rows for v in row.values()]
    assert len(set(values)) == len(values) == 4 * 22
    again = make_fiction("cls/a", set(values))
    assert not set(values) & {v for rows in again.values() for row in rows for v in row.values()}


def test_rules_say_what_is_broken(root: Path) -> None:
    folder = new_task("cls/broken", root)

    def broken(rule: str) -> str:
        with pytest.raises(AssertionError) as caught:
            RULES[rule](Task(folder))
        return str(caught.value)

    card = folder / "model" / "broken_net" / "docs" / "README.md"
    text = card.read_text()
    card.write_text(text.replace("0.68", "0.70"))
    assert "The card does not name mean 0.68" in broken("bundle")
    card.write_text(text)
    readme = folder / "README.md"
    readme.write_text(readme.read_text().replace("Not for clinical use", ""))
    assert "Not for clinical use" in broken("bundle")
    spec = folder / "task.yaml"
    text = spec.read_text()
    spec.write_text(text.replace("all_nevus: ", "all_moles: "))
    assert "must be measured" in broken("floors")
    spec.write_text(text.replace("format: class-table", "format: class-tables"))
    assert "output.format 'class-tables'" in broken("contract")
    spec.write_text(text)
    brief = folder / "briefs" / "lite.md.j2"
    text = brief.read_text()
    for line, message in (
        ("You have 24 turns.", "' 24 turns' of its own"),
        ("Look at the first 17 pictures.", "'17', which no contract names"),
        ("Read /data/readme.txt first.", "'/data/readme.txt', which no contract names"),
    ):
        brief.write_text(f"{text}{{% block notes %}}\n{line}\n{{% endblock %}}\n")
        assert message in broken("briefs")
    brief.write_text(text)
    meta = folder / "model" / "broken_net" / "configs" / "metadata.json"
    value = json.loads(meta.read_text())
    del value["preprocessing"]["size_px"]
    meta.write_text(json.dumps(value))
    assert "lacks size_px" in broken("contract")


def test_a_missing_network_is_told_once_with_what_to_do(tmp_path: Path) -> None:
    folder = new_task("seg/untrained_kidney", tmp_path)
    shutil.rmtree(folder / "model")
    found = dict(task_findings(Task(folder), depth="files"))
    told = [wrong for wrong in found.values() if "Run train.py" in wrong]
    assert len(told) == 1 and "metadata.json" in told[0] and "missing" in told[0]
    assert found["bundle"].endswith("run train.py.")
    assert list(found.values()).count("as contract") >= 5
    assert not any("Errno" in wrong for wrong in found.values())
