"""Executes the example notebook with nbclient."""

from __future__ import annotations

import json
import sys

import nbformat
from nbclient import NotebookClient


def main() -> None:
    asked = json.loads(sys.stdin.read())
    notebook = nbformat.read(asked["notebook"], as_version=4)
    nbformat.validate(notebook)
    stored = [cell["outputs"] for cell in notebook.cells if cell.cell_type == "code"]
    NotebookClient(notebook, timeout=500, kernel_name="python3").execute()
    texts = [
        "".join(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell["outputs"]
    ]
    print(json.dumps({"texts": texts, "stored": stored}))


if __name__ == "__main__":
    main()
