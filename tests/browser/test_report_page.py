from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bat_agent.files import read_json, write_json
from bat_agent.report import write_report
from bat_agent.report.text import visible
from bat_env.errors import ConfigError


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_page_is_self_contained_and_agent_text_stays_text(finished_run: Path) -> None:
    path = write_report(finished_run)
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert [a for t, a in page.tags if t == "script"] == [{}]
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, attributes)
    images = [a for t, a in page.tags if t == "img"]
    assert len(images) == 2 and all((a["src"] or "").startswith("data:image/png") for a in images)
    assert "url(" not in text and "@import" not in text
    assert "{{ 7 * 7 }}" in text and "\x1b" not in text and "\u202e" not in text
    assert "\\u202egnp.exe" in text


def test_page_is_deterministic(finished_run: Path, tmp_path: Path) -> None:
    first = write_report(finished_run).read_bytes()
    assert write_report(finished_run, tmp_path / "again.html").read_bytes() == first


def test_the_facts_say_what_the_run_cost(finished_run: Path) -> None:
    text = write_report(finished_run).read_text(encoding="utf-8")
    fact = re.search(r'id="cost"><b>(.*?)</b><span>(.*?)</span>', text)
    assert fact is not None and fact[1] == "16 min"
    assert fact[2] == "22 CPU minutes, 2.00 GiB of memory at the peak, 180 MiB on disk"
    results = read_json(finished_run / "results.json", schema_version=1)
    del results["usage"]  # a run of an earlier version
    write_json(finished_run / "results.json", results)
    assert 'id="cost"' not in write_report(finished_run).read_text(encoding="utf-8")


def test_unfinished_and_damaged_runs_are_named(finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run"):
        write_report(tmp_path / "nowhere")
    results = read_json(finished_run / "results.json", schema_version=1)
    (finished_run / "results.json").unlink()
    with pytest.raises(ConfigError, match="not finished"):
        write_report(finished_run)
    write_json(finished_run / "results.json", {**results, "schema_version": 99})
    with pytest.raises(ConfigError, match="schema version"):
        write_report(finished_run)
    write_json(finished_run / "results.json", {**results, "agents": [{"key": "bat"}]})
    with pytest.raises(ConfigError, match="damaged"):
        write_report(finished_run)
    outside = [{**results["trajectories"][0], "file": "../../etc/passwd"}]
    write_json(finished_run / "results.json", {**results, "trajectories": outside})
    with pytest.raises(ConfigError, match="inside the run"):
        write_report(finished_run)


@given(st.text() | st.binary().map(repr) | st.integers() | st.none())
def test_visible_text_holds_no_control_character(value: object) -> None:
    text = visible(value)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    text.encode("utf-8")


def test_visible_text_is_bounded() -> None:
    text = visible("a" * 100_000)
    assert len(text) < 13_000 and "88000 characters not shown" in text


def test_what_is_missing_is_named_and_the_rest_is_shown(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = read_json(finished_run / "results.json", schema_version=1)["trajectories"]
    picture = next(iter(first["images"].values()))
    (finished_run / picture).unlink()
    episode = finished_run / second["file"]
    episode.write_bytes(episode.read_bytes()[:200])
    page = write_report(finished_run).read_text(encoding="utf-8")
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and all(line.startswith("bat-agent: left out") for line in told)
    assert picture in told[0] and second["file"] in told[1]
    assert page.count("<strong>Missing:</strong>") == 2
    assert Path(picture).name in page and episode.name in page
    assert page.count('<article class="card trajectory"') == 1 and "Scoreboard" in page
