"""A token policy on many environments: one batched generation, then all their cells at once.

What was sampled is kept token for token; masks come from the codec. Which rows share a wave is
decided by order alone, never by the clock, so equal seeds give equal rollouts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bat_agent.policy.codec import Codec
from bat_agent.policy.limits import TokenLimits
from bat_agent.policy.sampling import SampledTurn, Sampler, TurnRequest
from bat_agent.rollout.episodes import (
    ATTEMPTS,
    INFRASTRUCTURE,
    EnvPool,
    EpisodeResult,
    GroupMismatchError,
    Progress,
    ResetSpec,
    failed,
    finish,
    reset_facts,
    trajectory_kwargs,
    trajectory_path,
)
from bat_agent.rollout.stopping import WAITING
from bat_env.errors import ConfigError
from bat_env.sandbox import end_work


@dataclass(slots=True)
class RolloutRow:
    """One episode as tokens.

    Attributes:
        episode: Result of the episode.
        prompt_ids: Tokens before the first action.
        completion_ids: Everything after: actions and observations, never the terminal observation.
        env_mask: 1 for tokens that the policy sampled, 0 for all others; same length.
        logprobs: Log-probability at sampling, 0 where ``env_mask`` is 0; ``None`` if unknown.
        malformed: Actions that were no well-formed call.
        cut: Whether the token budget ended the row.
        digest: ``info["workspace_digest"]`` of the reset.
    """

    episode: EpisodeResult
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    env_mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    malformed: int = 0
    cut: bool = False
    digest: str = ""


@dataclass(slots=True)
class WaveStats:
    """Where the time of a run went, in seconds of wall time (``model_cpu_s``: of this process)."""

    waves: int = 0
    sampled_tokens: int = 0
    model_s: float = 0.0
    model_cpu_s: float = 0.0
    env_s: float = 0.0
    retries: int = 0


@dataclass(slots=True)
class _Live:
    index: int
    spec: ResetSpec
    attempt: int
    env: Any
    row: RolloutRow
    start: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    turns: int = 0
    began: float = 0.0
    over: bool = False


def run_rows(
    sampler: Sampler,
    codec: Codec,
    specs: Sequence[ResetSpec],
    *,
    limits: TokenLimits,
    temperature: float,
    seed: Sequence[int],
    row_ids: Sequence[int] | None = None,
    max_live: int = 16,
    env_threads: int | None = None,
    pool: EnvPool | None = None,
    progress: Progress | None = None,
    stats: WaveStats | None = None,
) -> list[RolloutRow]:
    """Play one episode per specification with a token policy.

    Equal specifications form a group: their members must start from equal observations and
    workspaces.

    Args:
        sampler: Where actions come from.
        codec: How they read.
        specs: One per row.
        limits: Token budgets.
        temperature: 0 is greedy.
        seed: Entropy shared by the run; with the row's id and the turn it seeds each action.
        row_ids: Ids of the rows, default 0, 1, ...
        max_live: Most environments (and sandboxes) at once; fewer where memory allows fewer.
        env_threads: Threads for blocking environment calls; default twice the cores.
        pool: Environments to reuse across runs; default: made here and closed at the end.
        progress: Called as episodes end.
        stats: Filled in, if given.

    Returns:
        Rows in the order of ``specs``. A row that infrastructure killed twice has reward ``None``
        and an all-zero mask.

    Raises:
        GroupMismatchError: If members of a group start differently.
        ConfigError: If a prompt does not fit its budget.
    """
    ids = list(range(len(specs))) if row_ids is None else list(row_ids)
    own = EnvPool() if pool is None else None
    threads = env_threads or max(2, min(max_live, 2 * (os.cpu_count() or 1)))
    with ThreadPoolExecutor(max_workers=threads) as executor:
        runner = _Runner(
            sampler, codec, list(specs), ids, limits, temperature, tuple(seed), pool or own,
            executor, progress, stats or WaveStats(),
        )  # fmt: skip
        try:
            return runner.run(max_live)
        finally:
            runner.abandon()
            sampler.forget()
            if own is not None:
                own.close()


def run_policy(
    policy: Any,
    specs: Sequence[ResetSpec],
    *,
    temperature: float,
    seed: int,
    max_live: int = 16,
    limits: TokenLimits | None = None,
    trajectory_dir: str | Path | None = None,
    progress: Progress | None = None,
    stats: WaveStats | None = None,
    env_threads: int | None = None,
) -> list[RolloutRow]:
    """Play specifications with a :class:`~bat_agent.policy.checkpoint.Policy`.

    Args:
        policy: From :func:`~bat_agent.policy.checkpoint.load_policy`.
        specs: One episode each.
        temperature: 0 is greedy.
        seed: Seeds every random choice of the policy.
        max_live: Most environments at once.
        limits: Token budgets; default: those recorded in the checkpoint.
        trajectory_dir: Where environments write their trajectories.
        progress: Called as episodes end.
        stats: Filled in, if given.
        env_threads: Threads for blocking environment calls.
    """
    pool = EnvPool(trajectory_kwargs(trajectory_dir))
    try:
        return run_rows(
            policy.sampler(),
            policy.codec,
            specs,
            limits=limits or policy.limits,
            temperature=temperature,
            seed=(seed,),
            max_live=max_live,
            env_threads=env_threads,
            pool=pool,
            progress=progress,
            stats=stats,
        )
    finally:
        pool.close()


class _Runner:
    def __init__(
        self,
        sampler: Sampler,
        codec: Codec,
        specs: list[ResetSpec],
        ids: list[int],
        limits: TokenLimits,
        temperature: float,
        seed: tuple[int, ...],
        pool: EnvPool | None,
        executor: ThreadPoolExecutor,
        progress: Progress | None,
        stats: WaveStats,
    ) -> None:
        assert pool is not None
        self.sampler, self.codec, self.specs, self.ids = sampler, codec, specs, ids
        self.limits, self.temperature, self.seed, self.pool = limits, temperature, seed, pool
        self.executor, self.progress, self.stats = executor, progress, stats
        self.rows: dict[int, RolloutRow] = {}
        self.live: list[_Live] = []
        self.groups: dict[str, tuple[Any, ...]] = {}
        self.open: dict[int, Any] = {}

    def run(self, max_live: int) -> list[RolloutRow]:
        queue = [(i, 1) for i in range(len(self.specs))]
        while True:
            room = self._room(max_live)
            admitted, queue = queue[:room], queue[room:]
            fresh = self._each(self._reset, admitted)
            queue += self._settle(fresh)
            if fresh and queue and self._room(max_live) > 0:
                continue
            if not self.sampler.any_live(len(self.live)):
                if queue:
                    continue
                break
            turns = self._sample()
            self._each(lambda pair: self._step(*pair), list(zip(self.live, turns, strict=True)))
            queue += self._settle([])
        return [self.rows[i] for i in range(len(self.specs))]

    def _room(self, max_live: int) -> int:
        """Rows that may begin now. The first one alone: it tells how many sandboxes there are."""
        places = 1 if self.pool.places is None else self.pool.places
        return max(0, min(max_live, places) - len(self.live))

    def abandon(self) -> None:
        """Close what is still open when a run ends early."""
        for env in self.open.values():
            self.pool.discard(env)
        self.open, self.live = {}, []

    def _each(self, call: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        began = time.perf_counter()
        futures = [self.executor.submit(call, item) for item in items]
        # All of them end before one error is raised: nothing may still use an environment then.
        try:
            wait(futures)
        except KeyboardInterrupt:
            end_work(futures, WAITING)
            raise
        out = [future.result() for future in futures]
        self.stats.env_s += time.perf_counter() - began
        return out

    def _reset(self, item: tuple[int, int]) -> _Live:
        index, attempt = item
        spec = self.specs[index]
        row = RolloutRow(EpisodeResult(spec, None, None, "running"))
        live = _Live(index, spec, attempt, None, row, began=time.perf_counter())
        try:
            live.env = self.open[id(live)] = self.pool.acquire(spec)
            observation, info = live.env.reset(seed=spec.seed, options=dict(spec.options))
        except INFRASTRUCTURE as error:
            self._fail(live, error)
            return live
        self.pool.look(live.env)
        live.start = reset_facts(info)
        row.digest = str(info.get("workspace_digest", ""))
        row.prompt_ids = self.codec.prompt_ids(observation, live.start)
        self._check(live, observation)
        return live

    def _check(self, live: _Live, observation: Mapping[str, Any]) -> None:
        """Budget of the prompt, and equality of the group's starts."""
        row = live.row
        if len(row.prompt_ids) > self.limits.prompt:
            raise ConfigError(
                f"Expected a prompt of at most {self.limits.prompt} tokens, got "
                f"{len(row.prompt_ids)} for {live.spec.to_json()}. Raise the preset's "
                "max_prompt_tokens or train a tokenizer that knows these briefs."
            )
        start = (int(observation["stage"]), str(observation["text"]), row.digest)
        first = self.groups.setdefault(live.spec.to_json(), start)
        if first != start:
            what = [
                name
                for name, a, b in zip(("stage", "text", "workspace"), first, start, strict=True)
                if a != b
            ]
            raise GroupMismatchError(
                f"Expected all rollouts of {live.spec.to_json()} to start from the same state; "
                f"they differ in {', '.join(what)}. The reset is not deterministic."
            )

    def _sample(self) -> list[SampledTurn]:
        began, cpu = time.perf_counter(), time.process_time()
        requests = []
        for live in self.live:
            row = live.row
            room = self.limits.completion - len(row.completion_ids)
            requests.append(
                TurnRequest(
                    row=(live.index, live.attempt),
                    context=row.prompt_ids + row.completion_ids,
                    seed=(*self.seed, self.ids[live.index], live.turns),
                    max_new_tokens=max(1, min(self.limits.turn, room)),
                )
            )
        turns = self.sampler.sample(requests, self.temperature)
        self.stats.waves += 1
        self.stats.sampled_tokens += sum(len(t.ids) for t in turns)
        self.stats.model_s += time.perf_counter() - began
        self.stats.model_cpu_s += time.process_time() - cpu
        return turns

    def _step(self, live: _Live, turn: SampledTurn) -> None:
        row = live.row
        self._append(row, turn.ids, 1, turn.logprobs)
        action = self.codec.parse(turn.ids)
        if not isinstance(action, dict):
            row.malformed += 1
        room = self.limits.completion - len(row.completion_ids)
        if not turn.stopped and room > 0:
            # The turn was cut: close it, so that the layout stays the trained one. Not trained on.
            self._append(row, self.codec.stop_ids[:1], 0)
            room -= 1
        try:
            observation, gain, terminated, truncated, info = live.env.step(action)
            live.turns, live.reward = live.turns + 1, live.reward + float(gain)
            live.over = bool(terminated or truncated)
            if not live.over:
                follow = self.codec.observation_ids(str(observation["text"]))
                if len(follow) >= room:
                    row.cut = True
                    # Not ending on a stop token is how trainers recognise a row that was cut.
                    follow = follow[:room]
                    _, gain, _, _, info = live.env.unwrapped.truncate("tokens")
                    live.reward, live.over = live.reward + float(gain), True
                self._append(row, follow, 0)
        except INFRASTRUCTURE as error:
            self._fail(live, error)
            return
        if live.over:
            episode = finish(live.spec, live.reward, info, live.start)
            episode.trajectory = trajectory_path(live.env)
            self._end(live, episode)

    @staticmethod
    def _append(
        row: RolloutRow, ids: Sequence[int], mask: int, logprobs: Sequence[float] | None = ()
    ) -> None:
        row.completion_ids += ids
        row.env_mask += [mask] * len(ids)
        if logprobs is None:
            row.logprobs = None
        elif row.logprobs is not None:
            row.logprobs += logprobs if mask else [0.0] * len(ids)

    def _fail(self, live: _Live, error: BaseException) -> None:
        live.over = True
        self._end(live, failed(live.spec, error))

    def _end(self, live: _Live, episode: EpisodeResult) -> None:
        episode.turns = live.turns
        episode.tokens = sum(live.row.env_mask)
        episode.seconds = time.perf_counter() - live.began
        live.row.episode = episode

    def _settle(self, fresh: Sequence[_Live]) -> list[tuple[int, int]]:
        """Take ended episodes out of the batch; returns what has to be played again."""
        again = []
        keep = []
        for live in [*self.live, *fresh]:
            if not live.over:
                keep.append(live)
                continue
            self.open.pop(id(live), None)
            episode = live.row.episode
            if episode.reward is not None:
                self.pool.release(live.spec, live.env)
            elif live.env is not None:
                self.pool.discard(live.env)
            if episode.reward is None and live.attempt < ATTEMPTS:
                self.stats.retries += 1
                again.append((live.index, live.attempt + 1))
                continue
            if episode.reward is None:
                self._blank(live.row)
            self.rows[live.index] = live.row
            if self.progress is not None:
                self.progress(len(self.rows), len(self.specs), episode)
        self.live = keep
        return again

    def _blank(self, row: RolloutRow) -> None:
        """An invalid row trains nothing; it still needs a token on either side."""
        stop = self.codec.stop_ids[0]
        row.prompt_ids = row.prompt_ids or [stop]
        row.completion_ids = row.completion_ids or [stop]
        row.env_mask = [0] * len(row.completion_ids)
        row.logprobs = [0.0] * len(row.completion_ids)
