from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bat_agent.report import write_report

pytestmark = pytest.mark.browser


@pytest.fixture()
def browser(tmp_path: Path) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    names = ("chromium", "chromium-browser", "google-chrome")
    options.binary_location = next(p for p in map(shutil.which, names) if p)
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--window-size=1280,1000",
        f"--user-data-dir={tmp_path / 'profile'}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def visible(browser: Any, selector: str) -> list[Any]:
    return [e for e in browser.find_elements("css selector", selector) if e.is_displayed()]


def test_every_part_of_the_report_is_there(browser: Any, finished_run: Path) -> None:
    page = write_report(finished_run)
    browser.get(page.as_uri())

    rows = visible(browser, "#scoreboard tbody tr[data-agent]")
    keys = [row.get_attribute("data-agent") for row in rows]
    assert keys == ["base", "sft", "bat", "naive", "oracle"]
    for row in rows:
        assert row.find_element("css selector", "svg.whisker").size["width"] > 50
        assert "[" in row.text and "0." in row.text

    assert len(visible(browser, "#learning-curve g.point")) == 3
    assert len(visible(browser, "#learning-curve polyline")) == 3
    bars = visible(browser, "#stage-bars g.stage-bar rect")
    assert len(bars) == 25 and all(float(b.get_attribute("height")) >= 1 for b in bars)

    episodes = visible(browser, "#trajectories article.trajectory")
    assert len(episodes) == 2
    for episode in episodes:
        images = episode.find_elements("css selector", "figure img")
        assert images
        for image in images:
            assert browser.execute_script("return arguments[0].naturalWidth", image) > 0
        steps = episode.find_elements("css selector", "details.step")
        assert len(steps) == 5
        assert not steps[0].find_element("css selector", "pre.code").is_displayed()
        episode.find_element("css selector", "button").click()
        assert all(s.find_element("css selector", "pre.observation").is_displayed() for s in steps)
        assert episode.find_elements("css selector", "li.chip.pass")
        assert "+0." in steps[0].find_element("css selector", ".reward").text

    assert len(visible(browser, "#rounds article[data-round]")) == 2
    assert "bat-agent demo" in browser.find_element("id", "provenance").text

    # Nothing an agent wrote may run or reach out, and the page itself must be free of errors.
    assert browser.execute_script("return window.stolen === undefined")
    assert browser.title.startswith("Kidney tumour")
    assert [e for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []
    requests = [
        entry["message"]
        for entry in browser.get_log("performance")
        if "Network.requestWillBeSent" in entry["message"]
    ]
    assert not [m for m in requests if '"url":"http' in m or '"url":"ws' in m]


def test_page_fits_a_phone_and_prints(browser: Any, finished_run: Path) -> None:
    browser.set_window_size(500, 900)
    browser.get(write_report(finished_run).as_uri())
    overflow = browser.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    assert overflow <= 0
    assert browser.print_page()
