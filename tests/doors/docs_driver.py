"""Builds the documentation strictly, and checks CITATION.cff against its schema."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

os.environ["NO_MKDOCS_2_WARNING"] = "1"

from cffconvert.cli.create_citation import create_citation  # type: ignore[import-not-found]
from mkdocs.commands.build import build  # type: ignore[import-not-found]
from mkdocs.config import load_config  # type: ignore[import-not-found]
from mkdocs.utils import CountHandler  # type: ignore[import-not-found]

request = json.load(sys.stdin)
root, out = Path(request["root"]), Path(request["out"])
# Strictness is the command line's: it fails on any warning that was counted.
counts = CountHandler()
for handler in (counts, logging.StreamHandler()):
    handler.setLevel(logging.WARNING)
    logging.getLogger("mkdocs").addHandler(handler)
config = load_config(str(root / "mkdocs.yml"), site_dir=str(out), strict=True)
config.plugins.on_startup(command="build", dirty=False)
build(config)
config.plugins.on_shutdown()

citation = create_citation(str(root / "CITATION.cff"), None)
citation.validate()
print(json.dumps({"warnings": counts.get_counts(), "cff": citation.cffobj}, default=str))
