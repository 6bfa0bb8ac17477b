"""Published layouts: what each is called, where it comes from, and who reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

from bat_env.data.records import Scan
from bat_env.errors import DataError, unknown_name

READERS: Final = (
    "kits19",
    "msd",
    "totalsegmentator",
    "aeropath",
    "ldct",
    "paired",
    "synthrad2025",
    "ham10000",
    "grazpedwri",
    "vindr_cxr",
    "vqa_rad",
    "slake",
    "chexpert_plus",
    "mimic_cxr",
)
"""Modules of ``bat_env.data.readers``, one a layout, named like it."""


@dataclass(frozen=True)
class Layout:
    """One layout as its publishers ship it.

    Attributes:
        name: What ``bat-env data stage`` calls it.
        title: What the staged task is, in a line.
        track: Track of the staged task.
        licence: Of the data, as the publishers state it; a note, not advice.
        terms: Address of the terms.
        source: Address to get the data from.
        tree: The files that are looked for, one a line.
        goal: Clinical aim, a sentence.
        sibling: Phantom task whose model is given where the user gives none.
        input_file: Name of the input in a case folder.
        scan: Reads the layout under a folder; keyword arguments are the layout's options.
        options: Names of those options -> help.
        extra: Whether its files need the extra ``data``.
        group: What is never split between train, dev and held-out.
    """

    name: str
    title: str
    track: str
    licence: str
    terms: str
    source: str
    tree: tuple[str, ...]
    goal: str
    sibling: str
    input_file: str
    scan: Callable[..., Scan]
    options: Mapping[str, str]
    extra: bool = False
    group: str = "case"

    def wrong(self, root: Path, came: str) -> DataError:
        """The error for a folder that is not this layout."""
        return DataError(
            f"Expected {self.name} as published under {root}: {'; '.join(self.tree)}. {came} "
            f"Get it from {self.source} (terms: {self.terms}), unpack it, and give the folder "
            "that holds these files."
        )


def layout_names() -> tuple[str, ...]:
    """Names of all layouts."""
    return READERS


@cache
def load_layout(name: str) -> Layout:
    """A layout by name.

    Raises:
        UnknownNameError: With the nearest names.
    """
    if name not in READERS:
        raise unknown_name("data set", name, READERS, "`bat-env data list` describes them.")
    layout: Layout = import_module(f"bat_env.data.readers.{name}").LAYOUT
    return layout


# ------------------------------------------------------------------------- helpers of readers


def find_root(root: Path, *patterns: str) -> Path | None:
    """The folder at or up to two levels below ``root`` in which every pattern matches something.

    Archives differ in how many folders they wrap their content in.
    """
    for folder in (root, *sorted(root.glob("*/")), *sorted(root.glob("*/*/"))):
        if folder.name.startswith((".", "__MACOSX")):
            continue
        if all(any(True for _ in folder.glob(pattern)) for pattern in patterns):
            return folder
    return None


def visible(paths: Iterable[Path]) -> list[Path]:
    """Sorted paths without hidden ones: archives made on a Mac are full of ``._`` twins."""
    return sorted(path for path in paths if not path.name.startswith("."))


def pictures_by_stem(folders: Sequence[Path], suffixes: Sequence[str]) -> dict[str, Path]:
    """File name without ending -> path, over several folders."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in visible(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix.lower() in suffixes:
                found.setdefault(path.stem, path)
    return found
