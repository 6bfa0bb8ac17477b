"""``bat-env data``: list published layouts, stage one, check a staged folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bat_env.data.manifest import Manifest
    from bat_env.data.stage import Progress

data_app = typer.Typer(help="Real data: list, stage, check.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_SHOWN = 5


@data_app.command("list")
def list_layouts(as_json: AsJson = False) -> None:
    """List the data sets that can be staged: files, licence, terms, where to get them."""
    from bat_env.data import layout_names, load_layout
    from bat_env.extras import install, missing

    layouts = [load_layout(name) for name in layout_names()]
    if as_json:
        rows = [
            {
                "name": one.name,
                "track": one.track,
                "title": one.title,
                "licence": one.licence,
                "terms": one.terms,
                "source": one.source,
                "files": list(one.tree),
                "options": dict(one.options),
                "extra": "data" if one.extra else None,
            }
            for one in layouts
        ]
        print(json.dumps({"schema_version": 1, "layouts": rows}))
        return
    for one in layouts:
        print(f"{one.name}  ({one.track})  {one.title}")
        print(f"    files:   {one.tree[0]}")
        for line in one.tree[1:]:
            print(f"             {line}")
        print(f"    from:    {one.source}")
        print(f"    licence: {one.licence}; terms: {one.terms}")
        for key, text in one.options.items():
            print(f"    --set {key}=...  {text}")
    lacking = missing("data")
    if lacking:
        print(f"DICOM and MetaImage need {', '.join(lacking)}: {install('data')}")


@data_app.command("stage")
def stage(
    name: Annotated[str, typer.Argument(help="A data set of `bat-env data list`.")],
    src: Annotated[Path, typer.Option("--src", help="Folder of the unpacked download.")],
    dest: Annotated[
        Path | None, typer.Option("--dest", help="Folder to make; default: under $BAT_HOME/data.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=2, help="Cases to stage; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Decides cases and splits.")] = 0,
    max_voxels: Annotated[int, typer.Option(min=4096, help="Voxels of a volume.")] = 1 << 21,
    max_side_px: Annotated[int, typer.Option(min=32, help="Longer side of a picture.")] = 1024,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of the data set; repeatable.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="MONAI bundle to hand out; default: a phantom task's."),
    ] = None,
    backend: Annotated[str, typer.Option(help="Sandbox that tries the bundle.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Stage a data set. Safe to interrupt: run it again and it goes on."""
    from bat_env.data import Bounds, stage_data

    with _progress(not as_json) as tell:
        staged = stage_data(
            name,
            src,
            dest,
            limit=limit,
            seed=seed,
            bounds=Bounds(max_voxels, max_side_px),
            options=_options(option or []),
            model=model,
            sandbox=backend,
            progress=tell,
        )
    if as_json:
        made = {"folder": str(staged.folder), "made": staged.made}
        print(json.dumps(made | _summary(staged.manifest)))
        return
    print(f"{staged.folder}: {staged.manifest.task}, {staged.made} cases converted now")
    _tell(staged.manifest)
    track = staged.manifest.task.split("/")[0]
    print(f'Play it: AutoMedEnv(track="{track}", data="{staged.folder}")')


@data_app.command("check")
def check(
    folder: Annotated[Path, typer.Argument(help="A staged folder.")], as_json: AsJson = False
) -> None:
    """Check every file of a staged folder against its manifest."""
    from bat_env.data import open_staged

    manifest = open_staged(folder).manifest
    if as_json:
        print(json.dumps({"folder": str(folder), **_summary(manifest)}))
        return
    print(f"{folder}: {manifest.task}, every file as it was staged")
    _tell(manifest)


def _options(given: list[str]) -> dict[str, str]:
    from bat_env.errors import ConfigError

    found = {}
    for text in given:
        key, mark, value = text.partition("=")
        if not mark or not key:
            raise ConfigError(f"Expected --set key=value, got {text!r}.")
        found[key.strip()] = value.strip()
    return found


def _summary(manifest: Manifest) -> dict[str, Any]:
    splits = [row.split for row in manifest.cases]
    return {
        "schema_version": 1,
        "task": manifest.task,
        "cases": {name: splits.count(name) for name in ("train", "dev", "heldout")},
        "bytes": sum(total.bytes for _, total in manifest.files()),
        "skipped": dict(manifest.skipped),
        "notes": list(manifest.notes),
        "licence": manifest.licence,
        "terms": manifest.terms,
        "digest": manifest.digest,
    }


def _tell(manifest: Manifest) -> None:
    said = _summary(manifest)
    counts = ", ".join(f"{count} {name}" for name, count in said["cases"].items())
    print(f"  {counts}; {said['bytes'] / 2**20:.1f} MiB")
    for note in manifest.notes:
        print(f"  {note}")
    for case, why in list(manifest.skipped.items())[:_SHOWN]:
        print(f"  left out {case}: {why}")
    if len(manifest.skipped) > _SHOWN:
        print(f"  and {len(manifest.skipped) - _SHOWN} more left out (manifest.json has them all)")
    print(f"  licence: {manifest.licence}; terms: {manifest.terms}")


@contextmanager
def _progress(wanted: bool) -> Iterator[Progress | None]:
    """A bar on stderr, where that is a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking", total=None)

        def tell(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:32].ljust(32))

        yield tell
