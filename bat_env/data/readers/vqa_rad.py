"""VQA-RAD: ``VQA_RAD Dataset Public.json`` and ``VQA_RAD Image Folder``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bat_env.data.choices import Asked, letters, multiple_choice
from bat_env.data.layout import Layout, find_root
from bat_env.data.records import Scan
from bat_env.data.tables import read_json
from bat_env.errors import DataError

_TABLE: Final = "VQA_RAD Dataset Public.json"
_IMAGES: Final = "VQA_RAD Image Folder"


def scan(root: Path, rephrased: str = "no") -> Scan:
    """Questions of clinicians, as multiple choice.

    Args:
        root: The folder of the release.
        rephrased: ``yes`` to take the paraphrases of questions too.
    """
    folder = find_root(root, _TABLE, _IMAGES)
    if folder is None:
        raise LAYOUT.wrong(root, f"{_TABLE!r} beside {_IMAGES!r} was not found.")
    asked, missing = [], 0
    for entry in read_json(folder / _TABLE, list):
        try:
            image = folder / _IMAGES / str(entry["image_name"])
            phrase = str(entry["phrase_type"]).strip().lower()
            one = Asked(
                qid=str(entry["qid"]),
                group=image.stem,
                image=image,
                question=str(entry["question"]),
                answer=str(entry["answer"]),
                kind=str(entry["question_type"]).strip().lower(),
            )
        except (KeyError, TypeError) as error:
            raise DataError(
                f"Expected qid, phrase_type, image_name, question, question_type and answer in "
                f"every entry of {folder / _TABLE}: {error!r}. Give the file as published."
            ) from error
        if not image.is_file():
            missing += 1
        elif rephrased == "yes" or phrase in ("freeform", "test_freeform"):
            asked.append(one)
    questions, left = multiple_choice(asked)
    if not questions:
        raise LAYOUT.wrong(root, f"No question can be asked; {missing} pictures are missing.")
    notes = [f"{left} questions have long or lonely answers."] if left else []
    notes += [f"{missing} questions lack their picture."] if missing else []
    return Scan(questions, letters(questions), "Radiological pictures", notes=tuple(notes))


LAYOUT = Layout(
    name="vqa_rad",
    title="Questions about radiological pictures",
    track="vqa",
    licence="CC0 1.0",
    terms="https://osf.io/89kps/",
    source="https://osf.io/89kps/",
    tree=(_TABLE, f"{_IMAGES}/synpic100132.jpg"),
    goal="Answer a clinician's question about a picture by the letter of the right option.",
    sibling="vqa/radiograph_mc",
    input_file="question.json",
    scan=scan,
    options={"rephrased": "yes or no: paraphrased questions too"},
    group="picture",
)
