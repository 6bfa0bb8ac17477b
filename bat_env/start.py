"""Where an episode starts: a fresh task instance, or a state of the Stage Bank."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from bat_env.bank import Bank, StageState
from bat_env.bank.distribution import UNIFORM, Cell, chances, draw
from bat_env.config import MAX_INDEX, EnvConfig, ResetOptions, choose_task, no_bank
from bat_env.episode import Episode
from bat_env.errors import BankError, ConfigError, unknown_name
from bat_env.sandbox.base import FileTree, Manifest
from bat_env.sandbox.stored import StoredFiles
from bat_env.stages import Stage
from bat_env.tasks import Task, load_task, render_brief, stage_files
from bat_env.tasks.instance import Instance, Split


class StateSource(Protocol):
    """Where reset states come from; :class:`~bat_env.bank.Bank` is one."""

    def get(self, state_id: str) -> StageState:
        """The state with this id."""

    def files(self, state_id: str) -> Mapping[str, bytes]:
        """Its files, workspace-relative; contents may be read when they are asked for."""

    def cells(self, **query: Any) -> Collection[Cell]:
        """(track, focus, outcome) of the states that fit a query; none where nothing is drawn."""

    def sample(self, rng: np.random.Generator, **query: Any) -> StageState:
        """A drawn state that fits the query."""

    def close(self) -> None:
        """Free what it holds. Idempotent."""


@dataclass(frozen=True)
class Start:
    """Everything that decides how an episode begins.

    Attributes:
        task, instance: What is to be done.
        tier, focus, outcome, state_id: As in the episode.
        workspace: Files of the bank state, workspace-relative; empty for a fresh start.
        state: The bank state, or ``None``.
    """

    task: Task
    instance: Instance
    tier: str
    focus: Stage
    outcome: str | None = None
    state_id: str | None = None
    workspace: Mapping[str, bytes] = field(default_factory=dict)
    state: StageState | None = None

    def files(self) -> FileTree:
        """Everything for ``Sandbox.reset``; the task's own files win over the state's."""
        own = stage_files(self.task, self.instance, self.tier, self.focus)
        if isinstance(self.workspace, StoredFiles):
            return self.workspace.under("workspace", own)
        return {**{f"workspace/{path}": data for path, data in self.workspace.items()}, **own}

    def brief(self) -> str:
        """Text of the reset observation; a bank state keeps the one it was admitted with."""
        if self.state is not None and self.state.brief:
            return self.state.brief
        return render_brief(
            self.task,
            self.instance,
            tier=self.tier,
            focus=self.focus,
            outcome=self.outcome,
            exposed=self.state.exposed if self.state is not None else "",
            files=tuple(sorted(self.workspace)),
        )

    def episode(self, seed: int, manifest: Manifest) -> Episode:
        """A fresh record of an episode from here.

        Args:
            seed: Of the episode.
            manifest: The workspace at reset.
        """
        return Episode(
            task=self.task.spec.id,
            tier=self.tier,
            split=self.instance.split,
            size=self.instance.size,
            instance_seed=self.instance.seed,
            seed=seed,
            focus=self.focus,
            outcome=self.outcome,
            state_id=self.state_id,
            cases=self.instance.cases,
            initial=manifest,
            current=manifest,
        )


class Starter:
    """Chooses starts for one environment; opens the Stage Bank on first need."""

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        self._bank: StateSource | None = None
        self._owns_bank = False

    def draw(self, options: ResetOptions, rng: np.random.Generator) -> Start:
        """Choose a start.

        Args:
            options: Checked options of this reset.
            rng: The environment's generator; used for what the options leave open.

        Raises:
            ConfigError: If options contradict each other or the configuration.
            BankError: If a state is asked for and the bank cannot give one.
        """
        if self._wants_bank(options):
            if self.config.staged is not None:
                raise ConfigError(no_bank(self.config.staged))
            return self._from_bank(options, rng)
        task = self.config.task
        if options.task is not None:
            task = self.config.task_named(options.task)
        if task is None:
            raise ConfigError("Name a task: this environment has none of its own.")
        if self.config.tier not in task.spec.tiers:
            raise unknown_name(f"tier of {task.spec.id}", self.config.tier, task.spec.tiers)
        index = options.index
        if index is None:
            index = int(rng.integers(MAX_INDEX))
        size = options.size or self.config.size or "full"
        if size not in task.spec.sizes:
            raise unknown_name(f"size of {task.spec.id}", size, task.spec.sizes)
        split = cast("Split", self.config.split)
        instance = task.instance(split, index, size)
        return Start(task, instance, self.config.tier, Stage.E2E)

    def close(self) -> None:
        """Close the bank if this object opened it. Idempotent."""
        if self._bank is not None and self._owns_bank:
            self._bank.close()
        self._bank = None

    def _wants_bank(self, options: ResetOptions) -> bool:
        stage = options.stage if options.stage is not None else self.config.stage
        asked = options.state_id or options.outcome or stage not in (None, Stage.E2E)
        if options.index is not None:
            if asked:
                raise ConfigError(
                    "index picks a fresh instance and cannot be combined with stage, outcome or "
                    "state_id, which draw from the Stage Bank. Leave one of them out."
                )
            return False
        return bool(asked) or self.config.always_bank

    def _from_bank(self, options: ResetOptions, rng: np.random.Generator) -> Start:
        config = self.config
        if config.split != "train":
            raise ConfigError(
                f"The Stage Bank holds training states only, but split is {config.split!r}. "
                'Use split="train", or leave out stage, outcome and state_id.'
            )
        bank = self._open_bank()
        if options.state_id is not None:
            state = bank.get(options.state_id)
            self._check_named(state, options)
        else:
            state = bank.sample(rng, **self._query(bank, options, rng))
        return self._from_state(bank, state)

    def _query(
        self, bank: StateSource, options: ResetOptions, rng: np.random.Generator
    ) -> dict[str, Any]:
        config = self.config
        query: dict[str, Any] = {"tier": config.tier}
        task = config.task
        if options.task is not None:
            task = choose_task(config.track, options.task)
        if task is not None:
            query["task"] = task.spec.id
        elif config.track is not None:
            query["track"] = config.track
        size = options.size or config.size
        if size is not None:
            query["size"] = size
        focus = options.stage if options.stage is not None else config.stage
        if focus is None and config.distribution is None and options.outcome is not None:
            focus = Stage.E2E
        if focus is not None:
            query["focus"] = focus
        if options.outcome is not None:
            query["outcome"] = options.outcome
        if config.distribution is not None and config.distribution != UNIFORM:
            given = {"stage"} if focus is not None else set()
            given |= {"outcome"} if options.outcome is not None else set()
            given |= {"track"} if options.task is not None else set()
            chance = chances(config.distribution, bank.cells(**query), given)
            query["track"], query["focus"], query["outcome"] = draw(rng, chance)
        return query

    def _check_named(self, state: StageState, options: ResetOptions) -> None:
        task = None if options.task is None else load_task(options.task).spec.id
        for name, wanted, has in (
            ("task", task, state.task),
            ("stage", options.stage, state.focus),
            ("outcome", options.outcome, state.outcome),
            ("size", options.size, state.size),
        ):
            if wanted is not None and wanted != has:
                raise ConfigError(
                    f"State {state.state_id} has {name} {_name(has)}, but {name} "
                    f"{_name(wanted)} was asked for. Leave {name} out: the state decides it."
                )
        if self.config.track is not None and state.track != self.config.track:
            raise ConfigError(
                f"State {state.state_id} is of track {state.track!r}, but this environment is of "
                f"track {self.config.track!r}."
            )

    def _from_state(self, bank: StateSource, state: StageState) -> Start:
        task = load_task(state.task)
        if state.task_digest != task.digest:
            raise BankError(
                f"State {state.state_id} was made by another version of task {state.task} (digest "
                f"{state.task_digest[:12]}, now {task.digest[:12]}). Run `bat-env bank build`."
            )
        instance = task.instance(state.split, state.index, state.size)
        if state.instance_digest and state.instance_digest != instance.digest:
            raise BankError(
                f"State {state.state_id} belongs to another instance of {state.task} than index "
                f"{state.index} gives now. Run `bat-env bank build`."
            )
        return Start(
            task=task,
            instance=instance,
            tier=state.tier,
            focus=state.focus,
            outcome=state.outcome,
            state_id=state.state_id,
            workspace=bank.files(state.state_id),
            state=state,
        )

    def _open_bank(self) -> StateSource:
        if self._bank is None:
            given = self.config.bank
            if given is None or isinstance(given, str | Path):
                self._bank = Bank.open(given)
                self._owns_bank = True
            else:
                self._bank = given
        return self._bank


def _name(value: object) -> str:
    return value.name if isinstance(value, Stage) else repr(value)
