"""Other ways to do the work right: full credit is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stand import Stand, put

from bat_env.stages import Stage

S1, S2, S3, S4, S5 = Stage.S1, Stage.S2, Stage.S3, Stage.S4, Stage.S5
Cells = list[str]


@dataclass(frozen=True)
class Variant:
    """Honest work of a stage in another form; ``make`` gives ``None`` where it has no meaning."""

    id: str
    stage: Stage
    make: Callable[[Stand], Cells | None]


VARIANTS: list[Variant] = []


def variant(
    *stages: Stage,
) -> Callable[[Callable[[Stand, Stage], Cells | None]], Callable[[Stand, Stage], Cells | None]]:
    def add(
        make: Callable[[Stand, Stage], Cells | None],
    ) -> Callable[[Stand, Stage], Cells | None]:
        for stage in stages:
            VARIANTS.append(
                Variant(f"{stage.name}-{make.__name__}", stage, lambda s, at=stage: make(s, at))
            )
        return make

    return add


def _json(path: str, change: str) -> str:
    return (
        f"import json, os\nd = json.load(open({path!r}))\n{change}\n"
        f"json.dump(d, open({path!r}, 'w'), **how)"
    )


RECORDS = {
    S1: "plan/facts.json",
    S2: "setup/setup.json",
    S3: "validation/pilot.json",
    S5: "outputs/manifest.json",
}


# ------------------------------------------------------------------------------ in every stage


@variant(S1, S2, S3, S4, S5)
def a_failed_cell_first(stand: Stand, stage: Stage) -> Cells:
    return ["import no_such_module", *stand.honest[stage]]


@variant(S1, S2, S3, S4, S5)
def notes_and_logs_beside(stand: Stand, stage: Stage) -> Cells:
    notes = put("notes/log.txt", "started\n") + put("README.md", "# my notes\n")
    return [notes, *stand.honest[stage], put(f"logs/{stage.name}.log", "done\n")]


@variant(S1, S2, S4, S5)
def done_twice(stand: Stand, stage: Stage) -> Cells:
    return [*stand.honest[stage], *stand.honest[stage]]


@variant(S1, S2, S3, S4, S5)
def looked_around_first(stand: Stand, stage: Stage) -> Cells:
    look = "import os\nfor root, _, names in os.walk('/data'):\n    print(root, names)\n"
    return [look, look + "print(open('task/spec.json').read()[:400])", *stand.honest[stage]]


@variant(S1, S2, S3, S5)
def record_indented_and_reordered(stand: Stand, stage: Stage) -> Cells:
    change = "d = {k: d[k] for k in reversed(list(d))}\nhow = dict(indent=2, ensure_ascii=False)"
    return [*stand.honest[stage], _json(RECORDS[stage], change)]


@variant(S1, S2, S3, S5)
def record_with_further_keys(stand: Stand, stage: Stage) -> Cells:
    change = "d['author'] = 'an expert'\nd['remarks'] = ['looked at all', {'n': 3}]\nhow = {}"
    return [*stand.honest[stage], _json(RECORDS[stage], change)]


@variant(S1, S2, S3, S4, S5)
def from_a_script_run_by_another_process(stand: Stand, stage: Stage) -> Cells:
    """Code written to a file and run by an interpreter of its own."""
    made = []
    for number, code in enumerate(stand.honest[stage]):
        path = f"work/step{number}.py"
        run = f"import subprocess, sys\nsubprocess.run([sys.executable, {path!r}], check=True)"
        made.append(put(path, code) + run)
    return made


@variant(S1, S2, S3, S4, S5)
def by_absolute_paths(stand: Stand, stage: Stage) -> Cells:
    """From another folder, with every workspace path absolute."""
    names = ("plan", "setup", "pipeline", "validation", "outputs", "rows")
    made = []
    for code in stand.honest[stage]:
        for name in names:
            for quote in "\"'":
                code = code.replace(f"{quote}{name}/", f"{quote}/workspace/{name}/")
                code = code.replace(f"{quote}{name}{quote}", f"{quote}/workspace/{name}{quote}")
        made.append("import os\nos.chdir('/tmp')\n" + code)
    if stage is S5:  # a manifest may list paths either way
        return made
    return made


# ------------------------------------------------------------------------------------------- S1


@variant(S1)
def plan_in_other_words(stand: Stand, stage: Stage) -> Cells:
    text = (
        f"# Vorgehen\r\n\r\nWir nehmen **{stand.spec.model.name.upper()}**; "
        "Prüfung am Pilotfall; übrige Fälle danach. 計画\r\n"
    )
    return [*stand.honest[S1], put("plan/plan.md", text)]


@variant(S1)
def facts_in_numpy_floats(stand: Stand, stage: Stage) -> Cells:
    """Numbers with the noise of another order of sums."""
    change = (
        "def noisy(v):\n"
        "    if isinstance(v, float): return v * (1 + 1e-9)\n"
        "    if isinstance(v, list): return [noisy(x) for x in v]\n"
        "    return {k: noisy(x) for k, x in v.items()} if isinstance(v, dict) else v\n"
        "d = noisy(d)\nhow = {}"
    )
    return [*stand.honest[S1], _json(RECORDS[S1], change)]


# ------------------------------------------------------------------------------------------- S2


@variant(S2)
def versions_with_build_tags(stand: Stand, stage: Stage) -> Cells:
    change = (
        "import sys, torch\nd['versions']['python'] = sys.version\n"
        "d['versions']['torch'] = torch.__version__.split('+')[0]\nhow = {}"
    )
    return [*stand.honest[S2], _json(RECORDS[S2], change)]


@variant(S2)
def pipeline_in_modules(stand: Stand, stage: Stage) -> Cells:
    """predict.py as a thin command line over a module of the pipeline folder."""
    return [
        *stand.honest[S2],
        "import os\nos.rename('pipeline/predict.py', 'pipeline/core.py')\n"
        + put(
            "pipeline/predict.py",
            "import argparse\nfrom core import predict\n"
            "parser = argparse.ArgumentParser()\n"
            "parser.add_argument('--input', required=True)\n"
            "parser.add_argument('--output', required=True)\n"
            "a = parser.parse_args()\npredict(a.input, a.output)\n",
        ),
    ]


@variant(S2)
def pipeline_that_exits_zero(stand: Stand, stage: Stage) -> Cells:
    return [
        *stand.honest[S2],
        "open('pipeline/predict.py', 'a').write('\\nif __name__ == \"__main__\":\\n"
        '    print("done")\\n    raise SystemExit(0)\\n\')',
    ]


# ------------------------------------------------------------------------------------------- S3


@variant(S3)
def pilot_of_the_last_case(stand: Stand, stage: Stage) -> Cells | None:
    """Another case than the expert's; its quantity must be plausible there too."""
    made = [code.replace("cases[:1]", "cases[-1:]") for code in stand.honest[S3]]
    return made if made != stand.honest[S3] else None


@variant(S3)
def pilot_by_the_command_line(stand: Stand, stage: Stage) -> Cells:
    case = stand.pilot()[0]
    run = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, 'pipeline/predict.py', '--input', '/data/{case}', "
        f"'--output', 'validation/pilot/{case}'], check=True)"
    )
    return [run, put("validation/pilot.json", stand.record())]


# ------------------------------------------------------------------------------------------- S4


@variant(S4)
def batch_case_by_case(stand: Stand, stage: Stage) -> Cells | None:
    """The last cases first, in two cells."""
    if stand.is_table:
        return None
    half = len(stand.cases) // 2
    start = "import os, runpy\npredict = runpy.run_path('pipeline/predict.py')['predict']\n"
    loop = "for case in {}:\n    predict('/data/' + case, 'outputs/' + case)"
    parts = (list(stand.cases[half:][::-1]), list(stand.cases[:half]))
    return [start + loop.format(repr(part)) for part in parts]


@variant(S4)
def rows_in_another_order(stand: Stand, stage: Stage) -> Cells | None:
    if not stand.is_table:
        return None
    path = stand.spec.output.path
    return [
        *stand.honest[S4],
        f"head, *rows = open({path!r}).read().splitlines()\n"
        f"open({path!r}, 'w', newline='').write('\\r\\n'.join([head, *sorted(rows)[::-1], '']))",
    ]


@variant(S4)
def images_packed_in_another_way(stand: Stand, stage: Stage) -> Cells | None:
    if not stand.output.endswith(".gz"):
        return None
    return [
        *stand.honest[S4],
        "import glob, gzip\n"
        "for path in glob.glob('outputs/*/*.gz'):\n"
        "    data = gzip.decompress(open(path, 'rb').read())\n"
        "    open(path, 'wb').write(gzip.compress(data, 9))",
    ]


@variant(S4)
def images_written_by_simpleitk(stand: Stand, stage: Stage) -> Cells | None:
    if not stand.output.endswith(".nii.gz"):
        return None
    return [
        *stand.honest[S4],
        "try:\n    import SimpleITK as sitk\nexcept ImportError:\n    sitk = None\n"
        "import glob\n"
        "for path in glob.glob('outputs/*/*.nii.gz') if sitk else []:\n"
        "    sitk.WriteImage(sitk.ReadImage(path), path)",
    ]


@variant(S4)
def arrays_in_another_memory_order(stand: Stand, stage: Stage) -> Cells | None:
    if not stand.output.endswith(".npy"):
        return None
    return [
        *stand.honest[S4],
        "import glob, numpy as np\n"
        "for path in glob.glob('outputs/*/*.npy'):\n"
        "    np.save(path, np.asfortranarray(np.load(path)))",
    ]


@variant(S4)
def json_indented(stand: Stand, stage: Stage) -> Cells | None:
    if not stand.output.endswith(".json"):
        return None
    return [
        *stand.honest[S4],
        "import glob, json\n"
        "for path in glob.glob('outputs/*/*.json'):\n"
        "    data = json.load(open(path))\n"
        "    json.dump(data, open(path, 'w'), indent=4, sort_keys=True)",
    ]


# ------------------------------------------------------------------------------------------- S5


@variant(S5)
def manifest_of_absolute_paths(stand: Stand, stage: Stage) -> Cells:
    change = "for row in d['files']: row['path'] = '/workspace/' + row['path']\nhow = {}"
    return [*stand.honest[S5], _json(RECORDS[S5], change)]


@variant(S5)
def manifest_in_capitals_and_reversed(stand: Stand, stage: Stage) -> Cells:
    change = (
        "d['files'] = [dict(row, sha256=row['sha256'].upper()) for row in d['files'][::-1]]\n"
        "how = {}"
    )
    return [*stand.honest[S5], _json(RECORDS[S5], change)]


@variant(S5)
def manifest_that_lists_more(stand: Stand, stage: Stage) -> Cells:
    change = (
        "import hashlib\npath = 'pipeline/predict.py'\n"
        "digest = hashlib.sha256(open(path, 'rb').read()).hexdigest()\n"
        "d['files'].append(dict(path=path, sha256=digest))\nhow = {}"
    )
    return [*stand.honest[S5], _json(RECORDS[S5], change)]
