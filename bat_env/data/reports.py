"""Chest reports: which part of one is kept, and what the scorer will read in it.

The truth is what the project's own labeler reads in the report, so that the true report scores 1.
A report that it reads with doubt, or without a side where one belongs, is left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from bat_env.data.records import CaseError
from bat_env.metrics.findings import FindingSpec, claimed, claims

MIN_LETTERS: Final = 20
MAX_CHARS: Final = 8000
_HEADING: Final = re.compile(r"^\s*([A-Z][A-Z /]{3,40}):", re.M)

FINDINGS: Final[dict[str, FindingSpec]] = {
    "pleural_effusion": FindingSpec(terms=("pleural effusion", "effusion"), lateral=True),
    "pneumothorax": FindingSpec(terms=("pneumothorax", "pneumothoraces"), lateral=True),
    "consolidation": FindingSpec(terms=("consolidation", "airspace disease")),
    "opacity": FindingSpec(terms=("opacity", "opacities", "opacification", "infiltrate")),
    "atelectasis": FindingSpec(terms=("atelectasis", "atelectatic change", "volume loss")),
    "edema": FindingSpec(terms=("edema", "oedema", "vascular congestion")),
    "cardiomegaly": FindingSpec(
        terms=(
            "cardiomegaly",
            "enlarged heart",
            "enlarged cardiac silhouette",
            "enlargement of the cardiac silhouette",
        )
    ),
    "nodule_or_mass": FindingSpec(terms=("nodule", "mass", "masses")),
    "fracture": FindingSpec(terms=("fracture",)),
    "pneumonia": FindingSpec(terms=("pneumonia",)),
}
"""The vocabulary of staged chest reports."""


def vocabulary() -> dict[str, Any]:
    """The vocabulary as ``metric.params.findings`` of a task."""
    return {name: spec.model_dump(mode="json") for name, spec in FINDINGS.items()}


def tidy(*parts: str) -> str:
    """One text of several sections, blanks joined, printable.

    Raises:
        CaseError: If too little is left.
    """
    text = " ".join(" ".join(part.split()) for part in parts if part and part.strip())
    text = re.sub(r"[\x00-\x1f\x7f]", " ", text).strip()[:MAX_CHARS]
    if sum(character.isalpha() for character in text) < MIN_LETTERS:
        raise CaseError("its report has no findings and no impression")
    return text


def read_report(path: Path) -> str:
    """Findings and impression of a report whose headings are in capitals with a colon.

    Raises:
        CaseError: If the file is missing or has neither.
    """
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        raise CaseError(f"its report {path.name} is missing") from None
    pieces = _HEADING.split(text)
    sections = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return tidy(sections.get("FINDINGS", ""), sections.get("IMPRESSION", ""))


def read_findings(text: str) -> list[dict[str, str]]:
    """True findings of a report, with their sides.

    Raises:
        CaseError: If the labeler is in doubt about one.
    """
    said = claimed(claims(text, FINDINGS))
    doubtful = sorted({name for (name, _), worth in said.items() if worth != 1.0})
    if doubtful:
        raise CaseError(f"its report is in doubt about {', '.join(doubtful)}")
    sideless = sorted({name for name, side in said if FINDINGS[name].lateral and not side})
    if sideless:
        raise CaseError(f"its report gives no side of {', '.join(sideless)}")
    found: list[dict[str, str]] = []
    for name, side in sorted(said):
        found.append({"finding": name, **({"side": side} if side else {})})
    return found
