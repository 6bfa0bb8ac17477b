"""Staging: from a published folder to ``public/``, ``private/``, a task and a manifest.

Everything is written whole or not at all, the manifest last. A staging that was killed goes on
with the same command: a case whose row is there is done.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

import bat_env
from bat_env.data.contract import contract, staged_name
from bat_env.data.convert import Frame, convert
from bat_env.data.folder import write_task
from bat_env.data.layout import Layout, load_layout
from bat_env.data.manifest import (
    MANIFEST,
    PART,
    PLAN,
    CaseRow,
    Manifest,
    Plan,
    file_digest,
    read_manifest,
    read_plan,
    sum_of,
    verify,
    write_model,
    write_whole,
)
from bat_env.data.model import Bundle, sibling_bundle, sibling_of, user_bundle, user_digest
from bat_env.data.records import AnyRecord, Bounds, CaseError, Prepared, Scan
from bat_env.data.splits import LEAST, assign, staging_order
from bat_env.data.task import open_staged
from bat_env.disk import named_if_full
from bat_env.errors import ConfigError, DataError, unknown_name
from bat_env.extras import require

ROWS: Final = "rows"
_OUTPUT_NAMES: Final = {
    "seg": "dseg.nii.gz",
    "enh": "enhanced.nii.gz",
    "synth": "synth.nii.gz",
}

Progress = Callable[[int, int, str], None]
"""Called with cases done, cases wanted, and what is going on."""


@dataclass(frozen=True)
class Staged:
    """What a staging gave.

    Attributes:
        folder: The staged folder.
        manifest: What is in it.
        made: Cases that this call converted; the others were there.
    """

    folder: Path
    manifest: Manifest
    made: int


def default_folder(name: str) -> Path:
    """``$BAT_HOME/data/<name>``, else ``~/.cache/automed-bat/data/<name>``."""
    home = os.environ.get("BAT_HOME")
    return Path(home or Path.home() / ".cache" / "automed-bat") / "data" / name


def stage_data(
    name: str,
    src: str | Path,
    dest: str | Path | None = None,
    *,
    limit: int | None = None,
    seed: int = 0,
    bounds: Bounds | None = None,
    options: Mapping[str, str] | None = None,
    model: str | Path | None = None,
    sandbox: str = "auto",
    progress: Progress | None = None,
) -> Staged:
    """Stage a published data set.

    Args:
        name: Layout, one of :func:`~bat_env.data.layout.layout_names`.
        src: Folder of the unpacked download; it is only read.
        dest: Folder to make; default: :func:`default_folder`.
        limit: Cases to stage; default: all.
        seed: Decides which cases a limit takes, and the splits.
        bounds: Sizes that inputs are reduced to.
        options: Options of the layout.
        model: Folder of a MONAI bundle; default: the phantom sibling's.
        sandbox: Backend in which the bundle's weights are tried.
        progress: Told of every case.

    Returns:
        The staged folder. Where it was complete already, it is checked and left as it is.

    Raises:
        UnknownNameError: If there is no such layout or option.
        DataError: If the folder is not that layout, or nothing in it can be used.
        ConfigError: If a package is missing, or a number is out of range.
        DiskFullError: If the disk is full; the same command goes on.
    """
    layout = load_layout(name)
    bounds = bounds or Bounds()
    if limit is not None and limit < LEAST:
        raise ConfigError(
            f"limit must be at least {LEAST} (a case and one to re-run), got {limit}."
        )
    if bounds.max_voxels < 4096 or bounds.max_side_px < 32:
        raise ConfigError(
            f"max_voxels must be at least 4096 and max_side_px at least 32, got {bounds}."
        )
    if layout.extra:
        require("data", f"Staging {name}")
    root = Path(src).expanduser()
    if not root.is_dir():
        raise DataError(
            f"Expected the folder of {name}, there is no folder {root}. Get the data from "
            f"{layout.source} (terms: {layout.terms}) and unpack it."
        )
    scan = _scanned(layout, root.resolve(), options or {})
    track = scan.track or layout.track
    records = staging_order(scan.records, seed)
    plan = Plan(
        layout=name,
        options=dict(options or {}),
        limit=limit,
        seed=seed,
        max_voxels=bounds.max_voxels,
        max_side_px=bounds.max_side_px,
        model=user_digest(Path(model)) if model else sibling_of(track, layout.sibling).id,
        cases=hashlib.sha256("\0".join(r.case for r in records).encode()).hexdigest(),
    )
    folder = Path(dest).expanduser() if dest else default_folder(staged_name(layout, scan))
    folder = folder.resolve()
    _claim(folder, root.resolve(), plan)
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
        verify(folder, manifest)
        return Staged(folder, manifest, 0)
    with named_if_full(folder):
        bundle = user_bundle(Path(model), sandbox) if model else sibling_bundle(
            track, layout.sibling
        )  # fmt: skip
        write_model(folder / PLAN, plan)
        return _Staging(folder, layout, scan, plan, bundle, progress).run(records)


def _scanned(layout: Layout, root: Path, options: Mapping[str, str]) -> Scan:
    for key in options:
        if key not in layout.options:
            raise unknown_name(f"option of {layout.name}", key, layout.options)
    return layout.scan(root, **options)


def _claim(folder: Path, root: Path, plan: Plan) -> None:
    """Check that a folder may be written: new, empty, or begun with the same plan."""
    if folder == root or root in folder.parents or folder in root.parents:
        raise DataError(
            f"Expected a destination outside the source, got {folder} for {root}. Give another "
            "folder with --dest."
        )
    if not folder.exists() or all(p.name.startswith(PART) for p in folder.iterdir()):
        return
    begun = read_plan(folder)
    if begun is None:
        raise DataError(
            f"Expected a new folder, or one that was begun by `bat-env data stage`; {folder} "
            "holds other things. Give another folder with --dest."
        )
    if begun != plan:
        differs = [
            f"{key} {old!r} (now {new!r})"
            for (key, old), (_, new) in zip(
                begun.model_dump().items(), plan.model_dump().items(), strict=True
            )
            if old != new
        ]
        raise DataError(
            f"{folder} was begun with {', '.join(differs)[:300]}. Give the same options to go on, "
            "or another folder with --dest."
        )


class _Staging:
    """One call: converts what is missing, then makes the task and the manifest."""

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        scan: Scan,
        plan: Plan,
        bundle: Bundle,
        progress: Progress | None,
    ) -> None:
        self.folder, self.layout, self.scan, self.plan = folder, layout, scan, plan
        self.bundle = bundle
        self.tell: Progress = progress or (lambda done, wanted, what: None)
        track = scan.track or layout.track
        self.frame = Frame(
            track=track,
            input_file=scan.input_file or layout.input_file,
            output_name=_OUTPUT_NAMES.get(track, ""),
            labels=scan.labels,
            bounds=Bounds(plan.max_voxels, plan.max_side_px),
        )
        self.skipped: dict[str, str] = {}
        self.made = 0

    def run(self, records: Sequence[AnyRecord]) -> Staged:
        """Convert, assign splits, write task and manifest."""
        for left in self.folder.glob(f"{PART}*"):
            left.unlink()  # of a call that was killed
        rows = self._rows(records)
        if len(rows) < LEAST:
            why = "; ".join(f"{case}: {text}" for case, text in list(self.skipped.items())[:3])
            raise DataError(
                f"Expected at least {LEAST} usable cases of {self.layout.name}, {len(rows)} of "
                f"{len(records)} are. {why or 'Stage more.'}"
            )
        splits = assign({row.case: row.group for row in rows}, self.plan.seed)
        rows = [row.model_copy(update={"split": splits[row.case]}) for row in rows]
        self.tell(len(rows), len(rows), "writing the task")
        manifest = self._manifest(rows, {})
        spec = contract(
            self.layout,
            self.scan,
            rows,
            self.bundle,
            max_voxels=self.plan.max_voxels,
            max_side_px=self.plan.max_side_px,
        )
        files = write_task(self.folder, manifest, spec, self.layout, self.bundle)
        manifest = self._manifest(rows, files).sealed()
        write_model(self.folder / MANIFEST, manifest)
        shutil.rmtree(self.folder / ROWS, ignore_errors=True)
        open_staged(self.folder)
        return Staged(self.folder, manifest, self.made)

    def _manifest(self, rows: Sequence[CaseRow], files: Mapping[str, bytes]) -> Manifest:
        layout, scan = self.layout, self.scan
        own = f" The download itself says: {scan.licence}" if scan.licence else ""
        return Manifest(
            name=staged_name(layout, scan),
            task=f"{self.frame.track}/{staged_name(layout, scan)}",
            plan=self.plan,
            title=scan.title or layout.title,
            licence=layout.licence + own,
            terms=layout.terms,
            source=layout.source,
            made_by=f"automed-bat {bat_env.__version__}",
            notes=scan.notes,
            skipped=self.skipped,
            cases=tuple(rows),
            task_files={name: sum_of(data) for name, data in sorted(files.items())},
        )

    # ------------------------------------------------------------------------------------ cases

    def _rows(self, records: Sequence[AnyRecord]) -> list[CaseRow]:
        """Rows of usable cases, up to the limit, in staging order."""
        wanted = min(self.plan.limit or len(records), len(records))
        rows: list[CaseRow] = []
        seen: dict[str, str] = {}
        keys: set[str] = set()
        for record in records:
            if len(rows) == wanted:
                break
            self.tell(len(rows), wanted, record.case)
            key = _key(record.case, keys)
            row = self._there(key, record)
            if row is None:
                try:
                    row = self._convert(key, record)
                except CaseError as error:
                    self.skipped[record.case] = str(error)
                    continue
            if row.content in seen:
                self.skipped[record.case] = f"its content equals that of {seen[row.content]}"
                for tree in ("public", "private"):
                    shutil.rmtree(self.folder / tree / key, ignore_errors=True)
                (self.folder / ROWS / f"{key}.json").unlink(missing_ok=True)
                continue
            seen[row.content] = record.case
            rows.append(row)
        return rows

    def _there(self, key: str, record: AnyRecord) -> CaseRow | None:
        """The row of a case that an earlier call finished, its files checked."""
        try:
            row = CaseRow.model_validate_json((self.folder / ROWS / f"{key}.json").read_bytes())
        except (OSError, ValidationError):
            return None
        for tree, sums in (("public", row.public), ("private", row.private)):
            for name, total in sums.items():
                path = self.folder / tree / key / name
                if not path.is_file() or file_digest(path) != total.sha256:
                    return None
        return row if row.case == record.case else None

    def _convert(self, key: str, record: AnyRecord) -> CaseRow:
        prepared: Prepared = convert(record, self.frame)
        for tree, files in (("public", prepared.public), ("private", prepared.private)):
            target = self.folder / tree / key
            shutil.rmtree(target, ignore_errors=True)
            for name, data in files.items():
                write_whole(target / name, data)
        row = CaseRow(
            key=key,
            case=record.case,
            group=record.group,
            public={name: sum_of(data) for name, data in prepared.public.items()},
            private={name: sum_of(data) for name, data in prepared.private.items()},
            content=prepared.content,
            summary=dict(prepared.summary),
        )
        write_model(self.folder / ROWS / f"{key}.json", row)
        self.made += 1
        return row


def _key(case: str, taken: set[str]) -> str:
    """A folder name for a case id: its safe characters, and a number where two collide."""
    bare = re.sub(r"[^A-Za-z0-9_.-]+", "_", case).strip("._-")[:80] or "case"
    key, n = bare, 1
    while key.casefold() in taken:
        n += 1
        key = f"{bare}-{n}"
    taken.add(key.casefold())
    return key
