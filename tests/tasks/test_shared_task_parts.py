"""What task folders share: training, mistakes that most of them list, trivial outputs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bat_env.errors import TaskError
from bat_env.metrics.floors import trivial_outputs
from bat_env.tasks import load_task, task_of
from bat_env.tasks.mistakes import Checks, frame_mistakes

CHECKS = Checks("net", "import nibabel as nib", "images = [1 for case in cases]", "print(module)")


def test_modules_for_training_load_no_torch() -> None:
    code = (
        "import sys, bat_env.tasks.training, bat_env.tasks.mistakes\n"
        "assert not {'torch', 'monai', 'nibabel'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_module_finds_its_own_task(tmp_path: Path) -> None:
    folder = tmp_path / "cls" / "skin_lesion"
    shutil.copytree(load_task("cls/skin_lesion").folder, folder)
    task = task_of(str(folder / "train.py"))
    assert task.folder == folder.resolve() and task is task_of(str(folder / "oracle.py"))
    with pytest.raises(TaskError, match=r"task\.yaml"):
        task_of(str(tmp_path / "train.py"))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "cls" / "skin_lesion"
    shutil.copytree(load_task("cls/skin_lesion").folder, folder)
    return folder


def test_a_training_writes_a_bundle_that_agrees_with_itself(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    from monai.networks.nets import ResNet

    from bat_env.tasks.training import Training, descend, training_instances

    def trained() -> tuple[bytes, bytes]:
        run = Training(str(copied / "train.py"), seed=5)
        (drawn,) = training_instances(run.task, {"mini": 1})
        assert drawn.split == "train" and drawn.index == 1_000_000
        net = ResNet(**run.meta["network"])
        x = torch.rand(4, 3, 48, 48)
        descend(net, lambda step: net(x).square().mean() * (step + 1), steps=4, rate=1e-3, every=2)
        run.save(net, x)
        state = torch.load(run.bundle / "models" / "model.pt")[run.meta["checkpoint_key"]]
        again = ResNet(**run.meta["network"])
        again.load_state_dict(state)
        probe = torch.from_numpy(np.load(run.bundle / run.task.spec.model.probe_input))
        answer = json.loads((copied / "private" / "probe.json").read_text())
        with torch.no_grad():
            out = again.eval()(probe)
        assert answer["mean"] == pytest.approx(float(out.mean()), abs=1e-6)
        assert answer["std"] == pytest.approx(float(out.std()), abs=1e-6)
        return b"".join(v.numpy().tobytes() for v in state.values()), probe.numpy().tobytes()

    try:
        assert trained() == trained()
    finally:
        torch.use_deterministic_algorithms(False)
    said = capsys.readouterr().out
    assert "step 4 loss" in said and "parameters, as task.yaml says" in said
    assert not list(copied.rglob("*.new"))


def test_a_bundle_that_is_too_large_is_refused(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from bat_env.tasks import training

    monkeypatch.setattr(training, "MAX_BUNDLE_BYTES", 1000)
    try:
        run = training.Training(str(copied / "train.py"), seed=5)
        with pytest.raises(TaskError, match="at most 1000 bytes"):
            run.save(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    finally:
        torch.use_deterministic_algorithms(False)


def test_shared_mistakes_are_cells_of_the_task() -> None:
    shared = [
        CHECKS.preprocessing_by_habit(),
        CHECKS.pilot_check_in("litres", "millilitres are", "kidneys hold 300 ml"),
        CHECKS.versions_from_memory(("torch", "pillow", "scikit-image"), "print(images)"),
        CHECKS.loose_checkpoint({"task": 0.4}),
        CHECKS.training_mode("It drops out.", {"S2": 0.1}),
    ]
    for mistake in shared:
        compile(mistake.check, mistake.id, "exec")
        assert mistake.costs and mistake.check.count("import nibabel as nib") == 1
        assert max(map(len, mistake.check.splitlines())) <= 110
    assert "in litres where millilitres are recorded" in shared[1].title
    assert "PIL.__version__, skimage.__version__" in shared[2].check
    assert "/models/net/models/model.pt" in shared[3].check
    compile(CHECKS.against("it's", 'card["channels"]', '"a'), "x", "exec")


def test_the_frame_takes_an_output_path_too() -> None:
    by_case = {m.id: m for m in frame_mistakes("outputs/{case}/x.txt", "print(1)")}
    table = {m.id: m for m in frame_mistakes("outputs/table.csv")}
    assert set(by_case) == set(table) and len(table) == 8
    assert "outputs/{case}/x.txt" in by_case["first_case_only"].check
    assert "outputs/table.csv" in table["first_case_only"].check
    assert by_case["edited_by_hand"].check == "print(1)" and not table["edited_by_hand"].check


def test_trivial_outputs_are_those_of_the_metric() -> None:
    task = load_task("vqa/radiograph_mc")
    drawn = task.instance("dev", 0, "mini")
    made = trivial_outputs(str(task.folder / "trivial.py"), drawn)
    assert set(made) == {"all_A", "all_B", "all_C", "all_D", "longest", "prior_text"}
    rows = made["prior_text"]["outputs/answers.csv"].decode().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == list(drawn.cases)
