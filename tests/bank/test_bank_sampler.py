from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.bank import Bank, StageState, balanced_order


@dataclass(frozen=True)
class Row:
    state_id: str
    cell: tuple[str, str, str]


cells = st.tuples(
    st.sampled_from(["seg", "det"]),
    st.sampled_from(["S1", "S2", "E2E"]),
    st.sampled_from(["success", "failure"]),
)
rows = st.lists(cells, max_size=30).map(
    lambda found: [Row(f"id{i:03d}", cell) for i, cell in enumerate(found)]
)


@settings(max_examples=80, deadline=None)
@given(rows=rows, seed=st.integers(0, 2**32 - 1), shuffle=st.randoms(use_true_random=False))
def test_order_is_a_permutation_deterministic_and_even(rows, seed, shuffle) -> None:  # type: ignore[no-untyped-def]
    order = balanced_order(np.random.default_rng(seed), rows)
    assert sorted(r.state_id for r in order) == [r.state_id for r in rows]
    shuffled = list(rows)
    shuffle.shuffle(shuffled)
    assert balanced_order(np.random.default_rng(seed), shuffled) == order
    totals = Counter(r.cell for r in rows)
    for length in range(len(order) + 1):
        counts = Counter(r.cell for r in order[:length])
        for cell, total in totals.items():
            # A cell falls behind another by more than one only when it has run out.
            assert counts[cell] == total or counts[cell] >= max(counts.values(), default=0) - 1


def test_different_seeds_give_different_orders() -> None:
    rows = [Row(f"id{i}", ("seg", f"S{i % 5}", "success")) for i in range(20)]
    orders = {
        tuple(r.state_id for r in balanced_order(np.random.default_rng(s), rows)) for s in range(5)
    }
    assert len(orders) == 5


def test_bank_samples_evenly_over_cells_not_states(tmp_path: Path) -> None:
    with Bank.open(tmp_path, create=True) as bank:
        for index in range(9):
            bank.add(
                StageState(
                    track="seg",
                    task="seg/t",
                    task_digest="d",
                    focus="S1" if index else "S2",  # type: ignore[arg-type]
                    outcome="success",
                    index=index,
                    instance_digest="x",
                ),
                {"f": bytes([index])},
            )
        rng = np.random.default_rng(3)
        draws = [bank.sample(rng) for _ in range(300)]
        share = sum(d.focus.name == "S2" for d in draws) / len(draws)
        assert 0.4 < share < 0.6
        assert len({d.state_id for d in draws}) == 9
        again = np.random.default_rng(3)
        assert [bank.sample(again).state_id for _ in range(20)] == [d.state_id for d in draws[:20]]
