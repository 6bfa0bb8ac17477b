"""What an agent wrote reaches a terminal as text: it steers and hides nothing, and words stay."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from bat_env.cli import app
from bat_env.env import AutoMedEnv
from bat_env.plain import visible
from bat_env.play import Player
from bat_env.terminal import Terminal, plain_text

CODES = "\x1b[2J\x1b]0;owned\x9b31m\u202egnp.\u2066"
HOSTILE = f"{CODES}\x07\x00\x08\u200f\u2028\ufeff"
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069]")


def printed(renderable: Any, width: int = 80) -> str:
    stream = io.StringIO()
    Terminal(file=stream, width=width).print(renderable)
    return stream.getvalue()


@given(st.text(st.characters(codec="utf-8")))
def test_nothing_acts_in_visible_text(text: str) -> None:
    shown = visible(text)
    assert not ACTING.search(shown) and visible(shown) == shown
    assert shown == text or ACTING.search(text) or "\ufeff" in text


def test_every_text_is_made_plain_however_deep_it_lies() -> None:
    table = Table(title=HOSTILE, caption=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE, style="red"))
    table.add_row(Panel(Text(HOSTILE), title=Text(HOSTILE), subtitle=HOSTILE))
    shown = printed(Group(table, Text.assemble(("a", "bold"), HOSTILE), HOSTILE))
    assert not ACTING.search(shown) and shown.count("owned") >= 6
    assert "\\x1b[2J" in shown and "\\u202e" in shown
    stream = io.StringIO()
    Console(file=stream).print(Text(HOSTILE))
    assert "\x1b" in stream.getvalue()  # rich alone lets it through


def test_styles_keep_their_places() -> None:
    text = Text.assemble("a\x1b", ("b\u202ec", "red"), "d")
    made = plain_text(text)
    assert made.plain == "a\\x1bb\\u202ecd"
    (span,) = made.spans
    assert made.plain[span.start : span.end] == "b\\u202ec" and span.style == "red"
    untouched = Text("plain\ttext\n")
    assert plain_text(untouched) is untouched


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An episode whose file names, failures and claims hold terminal codes."""
    folder = tmp_path_factory.mktemp("hostile")
    env = AutoMedEnv(size="mini", sandbox="local", trajectory_dir=folder, render_mode="ansi")
    env.reset(seed=3)
    failing = f"raise ValueError({CODES!r})"
    record = json.dumps({"model": HOSTILE, "case_count": 3})
    for code in (
        f"import os\nos.makedirs('plan')\nopen('plan/facts.json', 'w').write({record!r})\n"
        f"open('plan/plan.md', 'w').write({HOSTILE!r})",
        f"import os\nos.makedirs('pipeline')\nos.makedirs('outputs/\\x1b[2J')\n"
        f"open('pipeline/predict.py', 'w').write({failing!r})\n"
        "open('outputs/\\x1b[2J/dseg.nii.gz', 'w').write('x')\nprint('\\x1b[2J\\u202e')",
    ):
        env.step({"name": "execute_code", "arguments": {"language": "python", "code": code}})
    env.step({"name": "submit_results", "arguments": {}})
    board = str(env.render())
    assert "\x1b[2J" not in board and "\u202e" not in board
    env.close()
    (path,) = folder.glob("*.json")
    return path


def test_explain_shows_codes_as_text(hostile: Path) -> None:
    done = CliRunner().invoke(app, ["explain", str(hostile)], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert not ACTING.search(done.stdout) and "owned" in done.stdout


def test_explain_breaks_no_word_at_80_columns(hostile: Path) -> None:
    done = CliRunner().invoke(app, ["explain", str(hostile)], env={"COLUMNS": "80"})
    assert max(map(len, done.stdout.splitlines())) <= 80
    told = json.loads(CliRunner().invoke(app, ["explain", str(hostile), "--json"]).stdout)
    shown = set(re.split(r"[\s│┃]+", done.stdout))
    for row in told["items"]:
        words = [row["item"], *row["message"].split()]
        lost = [w for w in words if len(w) <= 30 and not ACTING.search(w) and w not in shown]
        assert not lost, row


def test_what_a_cell_prints_steers_no_players_terminal() -> None:
    stream = io.StringIO()
    said = iter(["print('\\x1b[2J')", ".", "/quit"])

    class Env:
        def step(self, action: Any) -> Any:
            return {"text": HOSTILE}, 0.0, True, False, {"result": None}

    console = Terminal(file=stream, force_terminal=True, color_system=None, width=80)
    Player(Env(), HOSTILE, console, lambda prompt: next(said)).play()  # type: ignore[arg-type]
    assert not ACTING.search(stream.getvalue()) and stream.getvalue().count("owned") == 2
