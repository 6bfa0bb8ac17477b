"""Tokens a second of multi-turn sampling, against `generate` on the same batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import Row

ROUNDS = 3
_FLOOR = 0.9


@dataclass
class Recorder:
    """A sampler that notes what it was asked in each wave, and what came.

    Attributes:
        inner: Who samples.
        batches: Requests and turns of every call.
        seconds: Wall time of all calls.
    """

    inner: Any
    batches: list[tuple[list[Any], list[Any]]] = field(default_factory=list)
    seconds: float = 0.0

    def sample(self, requests: Sequence[Any], temperature: float) -> list[Any]:
        """See :class:`bat_agent.policy.sampling.Sampler`."""
        began = time.perf_counter()
        turns = self.inner.sample(requests, temperature)
        self.seconds += time.perf_counter() - began
        self.batches.append((list(requests), turns))
        return list(turns)

    def any_live(self, live: int) -> bool:
        """As the inner one."""
        return bool(self.inner.any_live(live))

    def forget(self) -> None:
        """As the inner one."""
        self.inner.forget()


def sampling_rows(checkpoint: Path, specs: Sequence[Any], what: str) -> list[Row]:
    """Play a wave, then sample its batches again both ways, in turns.

    `generate` gets each recorded batch as a user would give it: whole contexts, padded on the left,
    as many new tokens as the longest turn had. Only tokens that were sampled in the wave count.
    """
    from bat_agent.policy import load_policy
    from bat_agent.rollout.waves import run_rows

    policy = load_policy(checkpoint)
    recorder = Recorder(policy.sampler())
    run_rows(recorder, policy.codec, list(specs), limits=policy.limits, temperature=0.7, seed=(3,))
    tokens = sum(len(turn.ids) for _, turns in recorder.batches for turn in turns)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(tokens / _again(policy, recorder.batches))
        theirs.append(tokens / _generate(policy, recorder.batches))
    mine, other = sorted(ours)[ROUNDS // 2], sorted(theirs)[ROUNDS // 2]
    ratio = mine / other
    return [
        Row(
            f"{what}: sampled tokens a second, against `generate` on the same batches",
            mine,
            "tokens/s",
            other,
            ratio,
            f">= {_FLOOR}x",
            ratio >= _FLOOR,
        )
    ]


def _again(policy: Any, batches: Sequence[tuple[list[Any], list[Any]]]) -> float:
    """The recorded turns, sampled anew by our sampler: equal seeds give equal tokens."""
    sampler, took = policy.sampler(), 0.0
    for requests, turns in batches:
        began = time.perf_counter()
        found = sampler.sample(requests, 0.7)
        took += time.perf_counter() - began
        if [turn.ids for turn in found] != [turn.ids for turn in turns]:
            raise AssertionError("equal requests gave other tokens")
    return took


def _generate(policy: Any, batches: Sequence[tuple[list[Any], list[Any]]]) -> float:
    import torch

    model, pad, took = policy.model, policy.codec.stop_ids[0], 0.0
    for requests, turns in batches:
        began = time.perf_counter()
        width = max(len(r.context) for r in requests)
        rows = [[pad] * (width - len(r.context)) + list(r.context) for r in requests]
        mask = [[0] * (width - len(r.context)) + [1] * len(r.context) for r in requests]
        longest = max(len(turn.ids) for turn in turns)
        with torch.no_grad():
            model.generate(
                input_ids=torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                do_sample=True,
                temperature=0.7,
                top_k=0,
                max_new_tokens=longest,
                min_new_tokens=longest,
                pad_token_id=pad,
            )
        took += time.perf_counter() - began
    return took
