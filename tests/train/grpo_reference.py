"""GRPO from the paper's equations, in plain tensors: what the trainer must agree with."""

from __future__ import annotations

import torch


def advantages(rewards: list[float | None], group: int) -> torch.Tensor:
    """r - mean of the group's valid rewards; 0 for an invalid rollout. No division by std."""
    out = []
    for start in range(0, len(rewards), group):
        members = rewards[start : start + group]
        valid = [r for r in members if r is not None]
        mean = sum(valid) / len(valid) if valid else 0.0
        out += [0.0 if r is None else r - mean for r in members]
    return torch.tensor(out)


def loss(
    logp: list[torch.Tensor],
    old: list[torch.Tensor],
    ref: list[torch.Tensor],
    mask: list[torch.Tensor],
    advantage: torch.Tensor,
    clip: float,
    beta: float,
) -> torch.Tensor:
    """Clipped surrogate + beta * KL(policy || start): mean over a sequence's trained tokens, then
    mean over sequences. Each list holds one vector per sequence."""
    per_sequence = []
    for lp, lo, lr, m, a in zip(logp, old, ref, mask, advantage, strict=True):
        ratio = (lp - lo).exp()
        surrogate = torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
        kl = (lr - lp).exp() - (lr - lp) - 1
        token_loss = (-surrogate + beta * kl) * m
        per_sequence.append(token_loss.sum() / m.sum().clamp(min=1))
    return torch.stack(per_sequence).mean()
