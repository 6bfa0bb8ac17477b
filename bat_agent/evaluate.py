"""Held-out evaluation: what is asked for, played by whom, scored how."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

from bat_agent.agents.base import Agent, AgentSource, load_agent, source_of
from bat_agent.agents.failures import StopEvaluation
from bat_agent.evaluation import CellScore, Evaluation, classify
from bat_agent.files import check_folder, digest_of
from bat_agent.journal import Journal
from bat_agent.rollout import AGENT_ERROR, EnvPool, EpisodeResult, ResetSpec, run_agent
from bat_agent.targets import Plan, Target, check_frozen, plan_targets, reset_spec, size_of
from bat_env.errors import ConfigError, unknown_name
from bat_env.extras import require, require_for_cells

Progress: TypeAlias = Callable[[int, int], None]
"""``(done, total)`` episodes."""

ATTEMPTS: Final = 3
"""Times that a cell without a score is tried in all."""

SPARE_SANDBOXES: Final = 2
"""Warm sandboxes beyond those of the running episodes: hand-in re-runs take one for a moment."""


@dataclass(frozen=True, slots=True)
class Request:
    """An evaluation whose arguments are known to work.

    Attributes:
        plan: What is played.
        source: Who plays.
        backend: Resolved sandbox backend.
        temperature: Sampling temperature of a policy; 0 takes its most likely token.
        tier: Brief and skills that are granted.
        workers: Parallel episodes of a scripted agent.
        max_live: Parallel episodes of a policy.
        seed: Of the sampling.
        trajectory_dir: Where to write the episodes, or ``None``.
        journal: File that keeps played episodes, so that an interrupted evaluation goes on, or
            ``None``.
    """

    plan: Plan
    source: AgentSource
    backend: str
    temperature: float
    tier: str
    workers: int
    max_live: int
    seed: int
    trajectory_dir: Path | None
    journal: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the scores depend on besides plan and agent."""
        return {
            "tier": self.tier,
            "backend": self.backend,
            "seed": self.seed,
            # Scripts sample nothing: their cells pair with either way of a policy.
            **({"temperature": self.temperature} if self.source.checkpoint else {}),
            **self.source.settings,
        }


def check_request(
    agent: str | Path | AgentSource | Agent | type[Agent],
    *,
    suite: str | None = None,
    task: str | None = None,
    repeats: int | None = None,
    temperature: float = 0.7,
    greedy: bool = False,
    tier: str = "lite",
    workers: int = 2,
    max_live: int = 16,
    sandbox: str = "auto",
    seed: int = 0,
    trajectory_dir: str | Path | None = None,
    journal: str | Path | None = None,
) -> Request:
    """Check what to evaluate; plays and writes nothing.

    Args:
        agent: Name, checkpoint folder, class or object with ``reset`` and ``act``, or what
            :func:`load_agent` gave.
        suite: Name of a frozen suite; or
        task: a task, at full size.
        repeats: Instances of each task; all frozen ones if ``None``.
        temperature: Sampling temperature of a policy; scripts ignore it.
        greedy: Whether a policy takes its most likely token instead.
        tier: Brief and skills that are granted.
        workers: Parallel episodes of a scripted agent.
        max_live: Parallel episodes of a policy.
        sandbox: Backend, or ``"auto"``.
        seed: Of the sampling.
        trajectory_dir: Where to write the episodes, or ``None``.
        journal: File that keeps played episodes until the evaluation is finished, or ``None``.

    Raises:
        ConfigError: If the request cannot work, or what it needs is not installed.
        UnknownNameError: If agent, suite, task, tier or backend does not exist.
        CheckpointError: If the agent is a folder without a policy.
    """
    from bat_env.sandbox import resolve_backend
    from bat_env.tasks import load_task

    for name, value, low in (("workers", workers, 1), ("max_live", max_live, 1), ("seed", seed, 0)):
        if value < low:
            raise ConfigError(f"Expected {name} >= {low}, got {value}; give a higher one.")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ConfigError(f"Expected a temperature >= 0, got {temperature}; 0 is greedy.")
    plan = plan_targets(suite=suite, task=task, repeats=repeats)
    for played in sorted({t.task for t in plan.targets}):
        tiers = load_task(played).spec.tiers
        if tier not in tiers:
            raise unknown_name(f"tier of {played}", tier, tiers)
    if isinstance(agent, str | Path):
        source = load_agent(agent)
    else:
        source = agent if isinstance(agent, AgentSource) else source_of(agent)
    if source.checkpoint is not None:
        require("train", f"The checkpoint {source.checkpoint}")
    backend = resolve_backend(sandbox)
    require_for_cells(backend)
    if trajectory_dir is not None:
        trajectory_dir = Path(trajectory_dir)
        check_folder(trajectory_dir, "a folder for trajectories")
    return Request(
        plan=plan,
        source=source,
        backend=backend,
        temperature=0.0 if greedy else temperature,
        tier=tier,
        workers=min(workers, source.most),
        max_live=max_live,
        seed=seed,
        trajectory_dir=trajectory_dir,
        journal=None if journal is None else Path(journal),
    )


def evaluate(
    agent: str | Path | AgentSource | Agent | type[Agent],
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> Evaluation:
    """Play an agent on a held-out suite or task.

    Args:
        agent: Name, checkpoint folder, class or object with ``reset`` and ``act``, or what
            :func:`load_agent` gave. An object plays one episode at a time.
        progress: Called after each episode.
        settings: As those of :func:`check_request`.

    Returns:
        As :func:`play`.

    Raises:
        BatError: As :func:`check_request` and :func:`play`.
    """
    return play(check_request(agent, **settings), progress)


def play(request: Request, progress: Progress | None = None) -> Evaluation:
    """Play what was asked for.

    Args:
        request: A checked request.
        progress: Called after each episode.

    Returns:
        The evaluation. A cell that infrastructure failed is played again; after the last attempt
        it stays without a score and is counted in ``invalid``. So is, at once, a cell in which the
        agent's own code raised: its status is ``agent_error``.

    Raises:
        TaskError: If an instance is not the frozen one.
        CheckpointError: If a checkpoint is damaged.
        StopEvaluation: If the agent stops, for example at its cost limit.
        ConfigError: If the journal is of another evaluation.
    """
    from bat_env.tasks import load_task

    plan, source, tier = request.plan, request.source, request.tier
    started = time.monotonic()
    for first in {t.task: t for t in reversed(plan.targets)}.values():
        # One instance of each task before anything is played; the others as they are.
        drawn = load_task(first.task).instance("heldout", first.index, size_of(first.size))
        check_frozen(first, drawn.digest)
    live = request.workers if source.checkpoint is None else request.max_live
    specs = [
        reset_spec(plan, t, tier=tier, sandbox=request.backend, pool_size=live + SPARE_SANDBOXES)
        for t in plan.targets
    ]
    run, checkpoint = _player(request)
    journal = _journal(request, specs)
    results = {} if journal is None else journal.known(specs)
    attempts: dict[int, int] = dict.fromkeys(range(len(specs)), 0) | dict.fromkeys(results, 1)
    number_of = {spec.to_json(): i for i, spec in enumerate(specs)}
    for _ in range(ATTEMPTS):
        missing = [i for i in range(len(specs)) if i not in results or _lost(results[i])]
        if not missing:
            break
        offset = len(specs) - len(missing)

        def report(done: int, total: int, played: EpisodeResult, offset: int = offset) -> None:
            if journal is not None and _scored(played):
                journal.add(number_of[played.spec.to_json()], played, _usage(source))
            if progress is not None:
                progress(offset + done, offset + total)

        try:
            played = run(missing, [specs[i] for i in missing], report)
        except StopEvaluation as stop:
            if journal is None:
                raise
            journal.stop(_usage(source))
            raise StopEvaluation(
                f"{stop} {len(journal)} of {len(specs)} episodes are played."
            ) from None
        for i, result in zip(missing, played, strict=True):
            check_frozen(plan.targets[i], str(result.info.get("instance_digest", "")))
            if i in results:
                result.tokens += results[i].tokens
                result.cost += results[i].cost
            results[i] = result
            attempts[i] += 1
    return Evaluation(
        agent=source.name,
        checkpoint=checkpoint,
        target=plan.name,
        target_digest=plan.digest,
        settings=request.settings,
        usage=_usage(source),
        cells=tuple(
            _cell(t, s.seed, results[i], attempts[i])
            for i, (t, s) in enumerate(zip(plan.targets, specs, strict=True))
        ),
        seconds=time.monotonic() - started,
    )


def _usage(source: AgentSource) -> dict[str, Any]:
    return {} if source.usage is None else source.usage()


def _journal(request: Request, specs: Sequence[ResetSpec]) -> Journal | None:
    """The journal, with what an earlier start spent given back to the agent's books."""
    if request.journal is None:
        return None
    key = digest_of([request.source.name, request.settings, [spec.to_json() for spec in specs]])
    journal = Journal(request.journal, key)
    if journal.usage and request.source.restore is not None:
        request.source.restore(journal.usage)
    return journal


_Play: TypeAlias = Callable[
    [Sequence[int], Sequence[ResetSpec], Callable[[int, int, EpisodeResult], None]],
    list[EpisodeResult],
]


def _player(request: Request) -> tuple[_Play, str]:
    """What plays specifications, and the digest of the weights that do."""
    source, trajectory_dir = request.source, request.trajectory_dir
    if source.make is not None:
        make = source.make

        def play_agent(
            ids: Sequence[int], specs: Sequence[ResetSpec], report: Any
        ) -> list[EpisodeResult]:
            return run_agent(
                make,
                specs,
                workers=request.workers,
                trajectory_dir=trajectory_dir,
                agent_name=source.name,
                progress=report,
            )

        return play_agent, ""
    # Torch is loaded only where a policy plays.
    from transformers.utils import logging as transformers_logging

    from bat_agent.policy.checkpoint import load_policy
    from bat_agent.rollout.episodes import trajectory_kwargs
    from bat_agent.rollout.waves import run_rows

    if source.checkpoint is None:
        raise ConfigError(f"Agent {source.name!r} has neither a constructor nor a checkpoint.")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    policy = load_policy(source.checkpoint)

    def play_policy(
        ids: Sequence[int], specs: Sequence[ResetSpec], report: Any
    ) -> list[EpisodeResult]:
        pool = EnvPool(trajectory_kwargs(trajectory_dir), source.name)
        try:
            # Row ids keep an instance's sampling seed, also when only some cells are played again.
            rows = run_rows(
                policy.sampler(),
                policy.codec,
                specs,
                limits=policy.limits,
                temperature=request.temperature,
                seed=(request.seed,),
                row_ids=ids,
                max_live=request.max_live,
                pool=pool,
                progress=report,
            )
        finally:
            pool.close()
        return [row.episode for row in rows]

    return play_policy, str(policy.meta.get("weights_digest", policy.digest))


def _scored(result: EpisodeResult) -> bool:
    """Whether an episode has a score; null evidence counts as none."""
    return (
        result.reward is not None
        and result.result is not None
        and result.result.get("score") is not None
    )


def _lost(result: EpisodeResult) -> bool:
    """Whether another attempt may give a score that is missing."""
    return not _scored(result) and result.status != AGENT_ERROR


def _cell(target: Target, seed: int, result: EpisodeResult, attempts: int) -> CellScore:
    values: Mapping[str, Any] = (result.result or {}) if _scored(result) else {}
    return CellScore(
        task=target.task,
        track=target.track,
        index=target.index,
        repeat=target.repeat,
        seed=seed,
        status=result.status if values or result.status == AGENT_ERROR else "invalid",
        overall=values.get("score"),
        agentic=values.get("agentic"),
        task_score=values.get("task"),
        stages=dict(values.get("stages") or {}),
        failure=classify(result.status, values or None),
        turns=result.turns,
        tokens=result.tokens,
        seconds=result.seconds,
        cost=result.cost,
        attempts=attempts,
        trajectory=Path(result.trajectory).name if result.trajectory else "",
        error="" if values else result.error,
    )


class _Callable(ModuleType):
    """`bat_agent.evaluate(...)` works, although it is the name of this module too."""

    def __call__(self, *arguments: Any, **settings: Any) -> Evaluation:
        return evaluate(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
