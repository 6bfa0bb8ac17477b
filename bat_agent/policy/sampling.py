"""Token-exact multi-turn sampling: many conversations, one batched forward per token.

The caller hands in whole contexts; what of them is already in the key/value cache is found here.
A row's random numbers depend on its seed alone, never on which rows share its batch.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from bat_agent.policy.kv_cache import RowCache, supports_row_cache


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One action to sample.

    Attributes:
        row: Identifies the conversation across turns.
        context: All tokens so far; never empty.
        seed: Entropy of this turn's random numbers.
        max_new_tokens: Cap of this turn (>= 1).
    """

    row: Hashable
    context: Sequence[int]
    seed: tuple[int, ...]
    max_new_tokens: int


@dataclass(slots=True)
class SampledTurn:
    """One sampled action.

    Attributes:
        ids: Sampled tokens, the stop token included when there is one.
        logprobs: Log-probability of each token at the sampling temperature (at 1 when greedy);
            ``None`` where the backend does not say.
        stopped: Whether the policy ended the turn itself; ``False``: the cap cut it.
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    stopped: bool = False


class Sampler(Protocol):
    """Where actions come from: a local model, or a trainer's generation backend."""

    def sample(self, requests: Sequence[TurnRequest], temperature: float) -> list[SampledTurn]:
        """Sample one action per request, in order."""

    def any_live(self, live: int) -> bool:
        """Whether another wave is needed. Backends with several ranks ask all of them."""

    def forget(self) -> None:
        """Drop cached state; must be called when the weights change."""


def turn_uniforms(seed: Sequence[int], count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The ``count`` uniform numbers in [0, 1) of one turn of one row."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(list(seed)))).random(count)


def choose(
    logits: torch.Tensor, uniforms: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick a token per row by inverting the cumulative distribution.

    Args:
        logits: Shape (rows, vocabulary), any float type.
        uniforms: Shape (rows,), float64 in [0, 1).
        temperature: 0 is greedy.

    Returns:
        Token ids (rows,) and their log-probabilities (rows,) float32.
    """
    scores = logits.float()
    if temperature > 0:
        logp = torch.log_softmax(scores / temperature, dim=-1)
        cdf = logp.double().exp().cumsum(dim=-1)
        target = (uniforms.unsqueeze(-1) * cdf[:, -1:]).contiguous()
        ids = torch.searchsorted(cdf, target, right=True).clamp_(max=logits.size(-1) - 1)
    else:
        logp = torch.log_softmax(scores, dim=-1)
        ids = scores.argmax(dim=-1, keepdim=True)
    return ids.squeeze(-1), logp.gather(-1, ids).squeeze(-1)


class ModelSampler:
    """Samples from a ``transformers`` causal language model in this process.

    Keys and values are kept across turns where every layer attends to the whole past; other
    architectures are prefilled again each turn.

    Args:
        model: The model; put in evaluation mode while sampling, and back.
        stop_ids: Tokens that end a turn.
        pad_id: Fills shorter rows; masked everywhere.
        reuse_cache: ``False`` prefills each turn anew (for comparison).
        prefill_tokens: Most tokens of one prefill forward, padding included.
    """

    def __init__(
        self,
        model: Any,
        stop_ids: Sequence[int],
        pad_id: int,
        *,
        reuse_cache: bool = True,
        prefill_tokens: int = 16384,
    ) -> None:
        self.model = model
        self.stop_ids = frozenset(stop_ids)
        self.pad_id = pad_id
        self._prefill_tokens = prefill_tokens
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        names = inspect.signature(type(base).forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._reuse = reuse_cache and supports_row_cache(base)
        self._cache: RowCache | None = None

    def any_live(self, live: int) -> bool:
        """One process: whether a row is live."""
        return live > 0

    def forget(self) -> None:
        """Drop the key/value cache."""
        self._cache = None

    def sample(self, requests: Sequence[TurnRequest], temperature: float) -> list[SampledTurn]:
        """See :meth:`Sampler.sample`."""
        if not requests:
            return []
        with torch.no_grad(), _evaluating(self.model):
            if self._reuse:
                return self._turn(requests, temperature)
            # Without a reusable cache the whole context is pending, in a cache for this turn only.
            self._cache = None
            turns = self._turn(requests, temperature)
            self._cache = None
            return turns

    def _turn(self, requests: Sequence[TurnRequest], temperature: float) -> list[SampledTurn]:
        cache = self._gather(requests) if self._reuse else None
        done = [0] * len(requests) if cache is None else [len(c) for c in cache.ids]
        pending = [list(r.context[n:]) for r, n in zip(requests, done, strict=True)]
        caps = [r.max_new_tokens for r in requests]
        draws = [
            turn_uniforms(r.seed, r.max_new_tokens) if temperature > 0 else np.zeros(0)
            for r in requests
        ]
        turns = [SampledTurn() for _ in requests]
        live = list(range(len(requests)))
        step = _Stepper(self, cache, pending)
        for position in range(max(caps)):
            uniforms = [
                draws[i][position] if position < len(draws[i]) else 0.0 for i in range(len(turns))
            ]
            u = torch.tensor(uniforms, dtype=torch.float64, device=step.logits.device)
            ids, logps = choose(step.logits, u, temperature)
            chosen, values = ids.tolist(), logps.tolist()
            still = []
            for i in live:
                turn = turns[i]
                turn.ids.append(chosen[i])
                assert turn.logprobs is not None
                turn.logprobs.append(values[i])
                turn.stopped = chosen[i] in self.stop_ids
                if not turn.stopped and len(turn.ids) < caps[i]:
                    still.append(i)
            live = still
            if not live:
                break
            alive = set(live)
            step.forward([[chosen[i]] if i in alive else [] for i in range(len(turns))])
        if cache is not None:
            self._cache = cache
        return turns

    def _gather(self, requests: Sequence[TurnRequest]) -> RowCache:
        """A compact cache with one row per request: what is known, and new contexts prefilled."""
        known = {} if self._cache is None else {r: i for i, r in enumerate(self._cache.rows)}
        picked: list[tuple[RowCache, int]] = []
        fresh: dict[tuple[int, ...], int] = {}
        places: list[tuple[bool, int]] = []
        for request in requests:
            index = known.get(request.row)
            if index is not None and self._cache is not None:
                ids = self._cache.ids[index]
                if len(ids) < len(request.context) and list(request.context[: len(ids)]) == ids:
                    places.append((True, index))
                    continue
            # Members of a group share their first context: it is prefilled once.
            key = tuple(request.context[:-1])
            places.append((False, fresh.setdefault(key, len(fresh))))
        parts = self._prefill([list(key) for key in fresh])
        for old, index in places:
            if old and self._cache is not None:
                picked.append((self._cache, index))
            else:
                picked.append(parts[index])
        return RowCache.join(picked, [r.row for r in requests])

    def _prefill(self, contexts: list[list[int]]) -> list[tuple[RowCache, int]]:
        """Caches of whole contexts, in chunks of similar length; (cache, row) per context."""
        out: dict[int, tuple[RowCache, int]] = {}
        order = sorted(range(len(contexts)), key=lambda i: (len(contexts[i]), i))
        while order:
            widest, take = 0, 0
            for i in order:
                widest = max(widest, len(contexts[i]), 1)
                if take and widest * (take + 1) > self._prefill_tokens:
                    break
                take += 1
            chunk, order = order[:take], order[take:]
            cache = RowCache.empty(list(range(len(chunk))))
            if any(contexts[i] for i in chunk):
                _Stepper(self, cache, [contexts[i] for i in chunk])
            out.update({i: (cache, row) for row, i in enumerate(chunk)})
        return [out[i] for i in range(len(contexts))]


class _Stepper:
    """Feeds ragged tokens to the model; ``logits`` are those after each row's last token."""

    def __init__(self, owner: ModelSampler, cache: RowCache | None, first: list[list[int]]) -> None:
        self._owner = owner
        self._rows = cache
        self._own: Any = None
        self._lengths = [0] * len(first) if cache is None else [len(i) for i in cache.ids]
        self._mask: torch.Tensor | None = None
        self.logits: torch.Tensor
        self.forward(first)

    def forward(self, new: list[list[int]]) -> None:
        """Append ``new[i]`` to row *i*; an empty list leaves the row as it is."""
        owner = self._owner
        device = owner.model.device
        width = max(1, *(len(n) for n in new))
        ids = torch.tensor([[owner.pad_id] * (width - len(n)) + n for n in new], device=device)
        valid = torch.tensor([[0] * (width - len(n)) + [1] * len(n) for n in new], device=device)
        base = torch.tensor(self._lengths, device=device).unsqueeze(1)
        positions = (base + valid.cumsum(dim=1) - 1).clamp_(min=0)
        kwargs: dict[str, Any] = {"use_cache": True, "logits_to_keep": 1}
        if self._rows is not None:
            mask = self._rows.append(new, valid)
            kwargs[owner._cache_name] = self._rows.as_cache()
        else:
            self._mask = valid if self._mask is None else torch.cat([self._mask, valid], dim=1)
            mask = self._mask
            if self._own is not None:
                kwargs[owner._cache_name] = self._own
        out = owner.model(input_ids=ids, attention_mask=mask, position_ids=positions, **kwargs)
        if self._rows is None:
            self._own = out[owner._cache_name]
        self._lengths = [n + len(more) for n, more in zip(self._lengths, new, strict=True)]
        self.logits = out.logits[:, -1]


@contextlib.contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
