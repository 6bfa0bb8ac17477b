"""TRL's GRPO trainer without the padding: rows of like length are computed together.

TRL pads a batch to its longest prompt plus its longest completion. Rows of seven tracks and six
kinds of start differ tenfold in length, so that most of what is computed then is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn import functional
from trl.trainer.grpo_trainer import GRPOTrainer

MOST_PADDED: Final = 1.2
"""Greatest share of computed to real tokens in a bundle of several rows."""


class TrimmedTrainer(GRPOTrainer):
    """Computes log-probabilities in bundles of rows with about equal lengths.

    Only text on one process: several processes must call the model equally often.
    """

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **media: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        ask = super()._get_per_token_logps_and_entropies
        images = any(value is not None for value in media.values())
        if images or compute_aux_loss or self.accelerator.num_processes > 1:
            return ask(  # type: ignore[no-any-return]
                model, input_ids, attention_mask, logits_to_keep, batch_size,
                compute_entropy, compute_aux_loss, **media,
            )  # fmt: skip
        border = input_ids.size(1) - logits_to_keep
        before = attention_mask[:, :border].sum(1).tolist()
        after = attention_mask[:, border:].sum(1).tolist()
        order: list[int] = []
        parts: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        for rows in bundles(before, after, batch_size or len(before)):
            order += rows
            # A row without a completion still has one place, which its mask leaves out.
            keep = max(1, *(after[row] for row in rows))
            seen = slice(border - max(before[row] for row in rows), border + keep)
            logps, entropies, _ = ask(
                model, input_ids[rows, seen], attention_mask[rows, seen], keep,
                compute_entropy=compute_entropy,
            )  # fmt: skip
            lacking = (0, logits_to_keep - keep)
            wide = None if entropies is None else functional.pad(entropies, lacking)
            parts.append((functional.pad(logps, lacking), wide))
        back = torch.tensor(order, device=input_ids.device).argsort()
        entropy = (
            torch.cat([part for _, part in parts if part is not None])[back]
            if compute_entropy
            else None
        )
        return torch.cat([part for part, _ in parts])[back], entropy, None


def bundles(before: Sequence[int], after: Sequence[int], most: int) -> list[list[int]]:
    """Put rows together that need little padding.

    Args:
        before: Prompt tokens of each row; a bundle pads them on the left.
        after: Completion tokens of each row; padded on the right.
        most: Most rows of a bundle.

    Returns:
        Row numbers, each once. The same lengths give the same bundles.
    """
    found: list[list[int]] = []
    for row in sorted(range(len(before)), key=lambda i: (before[i], after[i], i)):
        if found and len(found[-1]) < most:
            rows = [*found[-1], row]
            width = max(before[i] for i in rows) + max(1, *(after[i] for i in rows))
            real = sum(before[i] + after[i] for i in rows)
            if width * len(rows) <= MOST_PADDED * real:
                found[-1].append(row)
                continue
        found.append([row])
    return found
