"""Observations: bounded, complete, and honest about what was cut."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.feedback import budget_text, cell_text, clip, delta_text, notice_text
from bat_env.sandbox.base import CellResult, Delta, FileEntry
from bat_env.spaces import Unicode


@given(st.text(max_size=300), st.integers(0, 400), st.integers(0, 10_000))
def test_clip_keeps_the_limit_and_counts_what_is_gone(text: str, limit: int, dropped: int) -> None:
    out = clip(text, limit, dropped)
    assert len(out) <= max(limit, 0)
    if out != text and limit > 60:
        match = re.search(r"\n\[\.\.\. (\d+) characters cut \.\.\.\]\n", out)
        assert match
        head, tail = out[: match.start()], out[match.end() :]
        assert text.startswith(head) and text.endswith(tail)
        assert int(match[1]) == dropped + len(text) - len(head) - len(tail)


entries = st.builds(
    FileEntry,
    st.sampled_from(["file", "dir", "symlink", "special", "unread"]),
    st.integers(0, 10**9),
)
trees = st.dictionaries(st.text(min_size=1, max_size=300), entries, max_size=40)
deltas = st.builds(Delta, trees, trees, st.lists(st.text(max_size=80), max_size=20).map(tuple))


@settings(max_examples=60)
@given(
    st.text(max_size=5000),
    st.text(max_size=5000),
    deltas,
    st.sampled_from([None, "timeout", "memory", "pids", "disk", "output"]),
    st.integers(256, 4096),
    st.integers(0, 99_999),
)
def test_every_observation_fits(out, err, delta, limit, chars, dropped) -> None:  # type: ignore[no-untyped-def]
    result = CellResult(1, out, err, dropped, 0, limit, delta)
    text = cell_text(result, turns_left=3, calls_left=2, limit=chars)
    assert len(text) <= chars
    assert text in Unicode()
    assert text.startswith("exit code: 1\n")
    if chars >= 512:
        assert text.endswith("left: 3 turns, 2 calls")


def test_long_output_keeps_head_tail_and_errors() -> None:
    result = CellResult(1, "A" * 9000 + "Z", "Traceback\n" + "e" * 3000 + "ValueError: last")
    text = cell_text(result, turns_left=3, calls_left=2, limit=2048)
    assert "stdout:\nAAA" in text and "Z\nstderr:\nTraceback" in text
    assert "ValueError: last\nfiles: unchanged" in text
    assert 1900 < len(text) <= 2048
    assert len(re.findall(r"characters cut", text)) == 2


def test_short_streams_stay_whole() -> None:
    text = cell_text(CellResult(0, "1\n"), turns_left=23, calls_left=22, limit=2048)
    assert text == "exit code: 0\nstdout:\n1\nfiles: unchanged\nleft: 23 turns, 22 calls"


def test_listing_is_bounded_and_names_folders_only_when_empty() -> None:
    created = {"a": FileEntry("dir"), "a/x.txt": FileEntry("file", 3), "empty": FileEntry("dir")}
    created["bad\nname"] = FileEntry("file", 1)
    text = delta_text(Delta(created=created, deleted=("gone",)))
    assert text == "created: a/x.txt (3 B), empty/, bad\\nname (1 B)\ndeleted: gone"
    many = {f"outputs/{i}.txt": FileEntry("file", i) for i in range(500)}
    text = delta_text(Delta(created=many), 300)
    assert len(text) <= 300
    assert re.search(r", \.\.\. and \d+ more$", text)


def test_notice_and_budget() -> None:
    assert budget_text(1, 0).endswith("only submit_results remains")
    text = notice_text("x" * 5000, turns_left=1, calls_left=1, limit=300)
    assert len(text) <= 300 and text.endswith("left: 1 turn, 1 call")
