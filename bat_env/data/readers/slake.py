"""SLAKE: ``imgs/xmlab0/source.jpg`` and ``train.json``, ``validate.json``, ``test.json``."""

from __future__ import annotations

from pathlib import Path

from bat_env.data.choices import Asked, letters, multiple_choice
from bat_env.data.layout import Layout, find_root
from bat_env.data.records import Scan
from bat_env.data.tables import read_json
from bat_env.errors import DataError


def scan(root: Path, language: str = "en") -> Scan:
    """Questions of one language, as multiple choice.

    Args:
        root: The folder of the release.
        language: ``en`` or ``zh``.
    """
    folder = find_root(root, "imgs/xmlab*", "t*.json")
    if folder is None:
        raise LAYOUT.wrong(root, "No imgs/xmlab* beside train.json or test.json was found.")
    asked, missing = [], 0
    names = ("train.json", "validate.json", "validation.json", "test.json")
    for table in (folder / name for name in names if (folder / name).is_file()):
        for entry in read_json(table, list):
            try:
                if entry["q_lang"] != language:
                    continue
                image = folder / "imgs" / str(entry["img_name"])
                one = Asked(
                    qid=f"{table.stem}{entry['qid']}",
                    group=str(entry["img_name"]).split("/", 1)[0],
                    image=image,
                    question=str(entry["question"]),
                    answer=str(entry["answer"]),
                    kind=f"{entry['content_type']} {entry['answer_type']}".lower(),
                )
            except (KeyError, TypeError) as error:
                raise DataError(
                    "Expected qid, img_name, q_lang, question, answer, answer_type and "
                    f"content_type in every entry of {table}: {error!r}. Give it as published."
                ) from error
            if image.is_file():
                asked.append(one)
            else:
                missing += 1
    questions, left = multiple_choice(asked)
    if not questions:
        raise LAYOUT.wrong(
            root, f"No question in {language!r} can be asked; {missing} pictures are missing."
        )
    notes = [f"{left} questions have long or lonely answers."] if left else []
    notes += [f"{missing} questions lack their picture."] if missing else []
    return Scan(questions, letters(questions), "CT, MR and radiographs", notes=tuple(notes))


LAYOUT = Layout(
    name="slake",
    title="Questions about radiological pictures",
    track="vqa",
    licence="CC BY 4.0",
    terms="https://www.med-vqa.com/slake/",
    source="https://www.med-vqa.com/slake/",
    tree=("imgs/xmlab0/source.jpg", "train.json, validate.json, test.json"),
    goal="Answer a question about a picture by the letter of the right option.",
    sibling="vqa/radiograph_mc",
    input_file="question.json",
    scan=scan,
    options={"language": "en or zh"},
    group="picture",
)
