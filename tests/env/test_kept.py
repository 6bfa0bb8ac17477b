"""A value that many ask for at once is made once; failures and what may not be kept are not."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env import kept
from bat_env.kept import Kept


def test_threads_that_ask_at_once_share_one_making() -> None:
    store: Kept[str, int] = Kept(4)
    made: list[int] = []
    start = threading.Barrier(8)

    def make() -> int:
        time.sleep(0.05)
        made.append(1)
        return 7

    def ask(_: int) -> int:
        start.wait()
        return store.get("key", make)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == [7] * 8
    assert len(made) == 1


def test_a_failure_reaches_its_own_caller_only() -> None:
    store: Kept[str, str] = Kept(4)
    first, began = threading.Event(), threading.Event()

    def fails() -> str:
        began.set()
        first.wait(5)
        raise ValueError("mine")

    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(store.get, "key", fails)
        began.wait(5)
        two = threads.submit(store.get, "key", lambda: "other's")
        first.set()
        assert two.result(5) == "other's"
        with pytest.raises(ValueError, match="mine"):
            one.result(5)


def test_what_may_not_be_kept_is_made_by_all_at_once() -> None:
    """Four that wait for an answer that must not be repeated do not queue up behind each other."""
    store: Kept[str, int] = Kept(4)
    running, most = [0], [0]
    lock, start = threading.Lock(), threading.Barrier(4)

    def make() -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.1)
        with lock:
            running[0] -= 1
        return 1

    def ask(_: int) -> int:
        start.wait()
        return store.get("key", make, lambda _: False)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == [1] * 4
    assert most[0] == 3  # one alone, then the three that had waited for it


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maker may need what the waiting thread holds."""
    monkeypatch.setattr(kept, "PATIENCE_S", 0.05)
    store: Kept[str, int] = Kept(4)
    held, began = threading.Event(), threading.Event()

    def needs_what_the_other_holds() -> int:
        began.set()
        assert held.wait(5)
        return 1

    with ThreadPoolExecutor(1) as threads:
        one = threads.submit(store.get, "key", needs_what_the_other_holds)
        began.wait(5)
        assert store.get("key", lambda: 1) == 1
        held.set()
        assert one.result(5) == 1


def test_several_are_made_together_and_two_askers_never_block_each_other() -> None:
    store: Kept[str, str] = Kept(16)
    calls: list[list[str]] = []
    start = threading.Barrier(2)

    def make(names: object) -> dict[str, str]:
        names = list(names)  # type: ignore[call-overload]
        calls.append(names)
        time.sleep(0.05)
        return {name: name.upper() for name in names}

    def ask(names: str) -> dict[str, str]:
        start.wait()
        return store.get_all({name: name for name in names}, make)

    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(ask, ("abc", "cba"))
    assert one == two == {"a": "A", "b": "B", "c": "C"}
    assert sorted(name for call in calls for name in call) == ["a", "b", "c"]


def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    store: Kept[str, int] = Kept(4)
    release, began = threading.Event(), threading.Event()

    def slow() -> int:
        began.set()
        release.wait(5)
        return 1

    with ThreadPoolExecutor(1) as threads:
        threads.submit(store.get, "key", slow)
        began.wait(5)
        child = os.fork()
        if child == 0:
            clock = time.perf_counter()
            right = store.get("key", lambda: 2) == 2
            os._exit(0 if right and time.perf_counter() - clock < 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        release.set()


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=40),
    st.integers(1, 12),
)
def test_weights_stay_within_the_room_and_the_oldest_goes_first(
    asked: list[tuple[int, int]], room: int
) -> None:
    store: Kept[int, int] = Kept(room, lambda weight: weight)
    model: list[tuple[int, int]] = []
    for key, weight in asked:
        known = dict(model).get(key)
        assert store.get(key, lambda w=weight: w) == (known or weight)  # type: ignore[misc]
        model = [pair for pair in model if pair[0] != key] + [(key, known or weight)]
        while sum(w for _, w in model) > room and len(model) > 1:
            model.pop(0)
        for old, value in model:
            assert store._kept[old][0] == value
        assert len(store._kept) == len(model)
