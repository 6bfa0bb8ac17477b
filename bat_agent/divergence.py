"""How far a policy has moved: mean per-token KL over held-out Stage Bank prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bat_agent.curriculum.fallback import KL_PROMPTS
from bat_agent.policy.checkpoint import Policy, load_policy
from bat_agent.policy.sampling import TurnRequest
from bat_agent.sft import build_row, split_rows
from bat_env.errors import BankError

_BATCH = 32


def held_out_prompts(
    bank_path: Path, policy: Policy, *, max_tokens: int, share: float, seed: int, count: int
) -> list[list[int]]:
    """Prompts of demonstrations that the supervised start did not train on.

    Args:
        bank_path: The Stage Bank.
        policy: Renders them.
        max_tokens: Longest row, as in the supervised start.
        share: Its validation share.
        seed: Its seed: the same split.
        count: Most prompts; they are spread evenly over all there are.

    Returns:
        Token ids up to the beginning of a response.

    Raises:
        BankError: If the split holds no demonstration.
    """
    from bat_env.bank import Bank

    with Bank.open(bank_path) as bank:
        built = [build_row(demo, policy.codec, max_tokens)[0] for demo in bank.demonstrations()]
    _, validation = split_rows([row for row in built if row is not None], share, seed)
    prompts = [prompt for row in validation for prompt in _prompts(row.input_ids, row.labels)]
    if not prompts:
        raise BankError(
            "Expected demonstrations held out from the supervised start, came none. Build more "
            "demonstrations or raise sft.validation_share."
        )
    step = max(1.0, len(prompts) / count)
    return [prompts[int(i * step)] for i in range(min(count, len(prompts)))]


def _prompts(ids: Sequence[int], labels: Sequence[int]) -> Iterator[list[int]]:
    for i in range(1, len(ids)):
        if labels[i] != -100 and labels[i - 1] == -100:
            yield list(ids[:i])


def mean_token_kl(
    candidate: Path,
    best: Path,
    bank_path: Path,
    *,
    max_tokens: int,
    share: float,
    temperature: float,
    seed: int,
    count: int = KL_PROMPTS,
) -> float:
    """Mean KL(candidate || best) per token of responses that the candidate samples, in nats.

    The divergence at a token is exact, over the whole vocabulary.

    Args:
        candidate: Checkpoint that answers.
        best: Checkpoint compared with.
        bank_path: Where the prompts come from.
        max_tokens: Longest row of the supervised start.
        share: Its validation share.
        temperature: Of the sampling and of both distributions.
        seed: Of split and sampling.
        count: Most prompts.
    """
    import torch

    mine, other = load_policy(candidate), load_policy(best)
    prompts = held_out_prompts(
        bank_path, mine, max_tokens=max_tokens, share=share, seed=seed, count=count
    )
    sampler = mine.sampler()
    total, tokens = 0.0, 0
    for start in range(0, len(prompts), _BATCH):
        part = prompts[start : start + _BATCH]
        requests = [
            TurnRequest(
                row=(start + i, 0),
                context=prompt,
                seed=(seed, start + i),
                max_new_tokens=mine.limits.turn,
            )
            for i, prompt in enumerate(part)
        ]
        turns = sampler.sample(requests, temperature)
        sampler.forget()
        for prompt, turn in zip(part, turns, strict=True):
            with torch.no_grad():
                p = _log_probs(mine.model, prompt, turn.ids, temperature)
                q = _log_probs(other.model, prompt, turn.ids, temperature)
            total += float((p.exp() * (p - q)).sum())
            tokens += len(turn.ids)
    return total / max(1, tokens)


def _log_probs(model: Any, prompt: list[int], response: Sequence[int], temperature: float) -> Any:
    """Log-probabilities ``[len(response), vocabulary]`` at the response's positions, float32."""
    import torch

    ids = torch.tensor([[*prompt, *response]], device=model.device)
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / (temperature or 1.0), dim=-1)
