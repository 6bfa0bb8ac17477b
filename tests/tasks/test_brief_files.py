"""The list of files in a brief: bounded, and every file counted."""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks import load_task, render_brief
from bat_env.tasks.brief import MAX_CASE_FILES


def lines(files: list[str], task_id: str) -> list[str]:
    task = load_task(task_id)
    instance = task.instance("train", 0, "mini")
    text = render_brief(task, instance, tier="lite", focus=Stage.S5, files=files)
    return text.partition("## Files in /workspace\n")[2].partition("\n## ")[0].split("\n")


def test_many_files_that_differ_in_the_case_share_a_line() -> None:
    cases = load_task("cls/skin_lesion").instance("train", 0, "mini").cases
    assert len(cases) > MAX_CASE_FILES + 1
    rows = [f"rows/{case}/predictions.csv" for case in cases[1:]]
    found = lines([*rows, "plan/plan.md", f"pilot/{cases[0]}/p.csv"], "cls/skin_lesion")
    wanted = [f"rows/<case>/predictions.csv for {len(cases) - 1} of {len(cases)} cases"]
    wanted += ["plan/plan.md", f"pilot/{cases[0]}/p.csv"]
    assert sorted(line[2:] for line in found if line) == sorted(wanted)


def test_few_files_are_listed_one_by_one() -> None:
    cases = load_task("seg/kidney_tumor").instance("train", 0, "mini").cases
    files = sorted(["plan/plan.md", *(f"outputs/{case}/dseg.nii.gz" for case in cases)])
    assert [line[2:] for line in lines(files, "seg/kidney_tumor") if line] == files


def test_more_than_the_list_holds_is_counted() -> None:
    files = [f"notes/{n:03}.txt" for n in range(60)]
    found = [line for line in lines(files, "seg/kidney_tumor") if line]
    assert len(found) == 41 and found[-1] == "- and 20 more"
