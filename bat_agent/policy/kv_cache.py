"""A key/value cache whose rows come, go and grow by different amounts.

Rows are left-aligned by a mask: a row that gets fewer tokens than its neighbours has masked holes,
which :meth:`RowCache.join` squeezes out at the next turn.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

_CHUNK = 64


def supports_row_cache(model: Any) -> bool:
    """Whether every layer of ``model`` attends to its whole past with plain keys and values.

    Linear attention and sliding windows fold the past into a state that cannot skip holes.
    """
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return all(kind == "full_attention" for kind in kinds)
    return getattr(config, "sliding_window", None) is None and hasattr(
        config, "num_attention_heads"
    )


class _GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A dynamic layer that writes into a buffer with room to spare, instead of concatenating."""

    def __init__(self, keys: torch.Tensor | None = None, values: torch.Tensor | None = None):
        super().__init__()  # type: ignore[no-untyped-call]
        self.used = 0
        if keys is not None and values is not None:
            self.used = keys.shape[-2]
            self.lazy_initialization(keys, values)
            self._buffers = (keys, values)
            self.keys, self.values = keys, values

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Note type and device; buffers are made by :meth:`update`."""
        self.device, self.dtype = key_states.device, key_states.dtype
        self._buffers = (key_states[..., :0, :], value_states[..., :0, :])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append along the sequence and return everything so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.used, self.used + key_states.shape[-2]
        if end > self._buffers[0].shape[-2]:
            self._buffers = (
                _grown(self._buffers[0], start, end + _CHUNK),
                _grown(self._buffers[1], start, end + _CHUNK),
            )
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., start:end, :] = states
        self.used = end
        self.keys, self.values = (b[..., :end, :] for b in self._buffers)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Used length."""
        return self.used


def _grown(buffer: torch.Tensor, used: int, capacity: int) -> torch.Tensor:
    shape = (*buffer.shape[:-2], capacity, buffer.shape[-1])
    out = buffer.new_zeros(shape)
    out[..., :used, :] = buffer[..., :used, :]
    return out


class _LazyCache(Cache):
    """A cache of growing layers, made as the model asks for them."""

    def __init__(self, layers: list[_GrowingLayer]) -> None:
        if layers:
            super().__init__(layers=list(layers))
        else:
            super().__init__(layer_class_to_replicate=_GrowingLayer)


class RowCache:
    """Keys and values of several conversations.

    Attributes:
        rows: Names of the rows.
        ids: Per row the tokens whose keys and values are held.
    """

    def __init__(
        self,
        rows: list[Hashable],
        ids: list[list[int]],
        mask: torch.Tensor | None,
        layers: list[_GrowingLayer],
    ) -> None:
        self.rows = rows
        self.ids = ids
        self._mask = mask
        self._cache: Any = _LazyCache(layers)

    @classmethod
    def empty(cls, rows: Sequence[Hashable]) -> RowCache:
        """A cache that holds nothing yet."""
        return cls(list(rows), [[] for _ in rows], None, [])

    def as_cache(self) -> Cache:
        """What the model's forward takes."""
        cache: Cache = self._cache
        return cache

    def append(self, new: Sequence[Sequence[int]], valid: torch.Tensor) -> torch.Tensor:
        """Note the tokens of the coming forward; returns the mask (rows, past + new)."""
        for ids, more in zip(self.ids, new, strict=True):
            ids.extend(more)
        self._mask = valid if self._mask is None else torch.cat([self._mask, valid], dim=1)
        return self._mask

    @classmethod
    def join(cls, picked: Sequence[tuple[RowCache, int]], rows: list[Hashable]) -> RowCache:
        """A compact, left-padded cache made of single rows of other caches.

        Args:
            picked: (cache, row index in it) per row; a row may be picked more than once.
            rows: Names of the new rows.
        """
        ids = [list(cache.ids[i]) for cache, i in picked]
        width = max(len(i) for i in ids)
        sources = list({id(c): c for c, _ in picked}.values())
        filled = [c for c in sources if c._mask is not None and any(c.ids)]
        if not filled or width == 0:
            return cls.empty(rows)
        device = filled[0]._cache.layers[0].keys.device
        lengths = torch.tensor([len(i) for i in ids], device=device)
        mask = (torch.arange(width, device=device) >= (width - lengths).unsqueeze(1)).long()
        layers = []
        for depth in range(len(filled[0]._cache.layers)):
            tensors = [
                torch.stack(_columns(picked, depth, kind, width)) for kind in ("keys", "values")
            ]
            layers.append(_GrowingLayer(*tensors))
        return cls(list(rows), ids, mask, layers)


def _columns(
    picked: Sequence[tuple[RowCache, int]], depth: int, kind: str, width: int
) -> list[torch.Tensor]:
    """Per picked row its valid states, left-padded with zeros: (heads, width, head size) each."""
    out = []
    like = next(getattr(c._cache.layers[depth], kind) for c, i in picked if c.ids[i])
    for cache, row in picked:
        column = like.new_zeros((like.shape[1], width, like.shape[-1]))
        if cache.ids[row] and cache._mask is not None:
            states = getattr(cache._cache.layers[depth], kind)[row]
            keep = cache._mask[row, : states.shape[1]].bool()
            kept = states[:, keep]
            column[:, width - kept.shape[1] :] = kept
        out.append(column)
    return out
