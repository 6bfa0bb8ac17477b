"""Plays the arms of the study, seed by seed; one row a (seed, arm), and what is there stays.

All arms of a seed share one Stage Bank and, where their recipe is the same, one supervised start.
The demonstrations are frozen by digest before any policy is updated, and checked before each arm.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bat_agent.agents.base import AgentSource
from bat_agent.config import RunConfig
from bat_agent.evaluation import Evaluation
from bat_agent.files import check_file, check_folder, locked, read_json, write_json
from bat_agent.pipeline import Pipeline
from bat_agent.presets import Preset
from bat_agent.progress import RunProgress
from bat_agent.scopes import SCOPES, run_config
from bat_agent.study.arms import Arm
from bat_agent.study.audit import audit
from bat_agent.study.results import ROW_SCHEMA, row_of, write_results
from bat_agent.usage import Usage
from bat_env.errors import ConfigError

TRUNK: Final = "shared"
FROZEN: Final = "frozen.json"
Tell = Callable[[str], None]


def study_config(
    suite: str = "lite",
    *,
    rounds: int | None = None,
    steps: int | None = None,
    backend: str = "auto",
    preset: str | Path | Preset = "tiny-cpu",
) -> RunConfig:
    """Settings that all arms and seeds begin from.

    Args:
        suite: ``"seg"``: the demo's task; ``"lite"``: one task of each track.
        rounds: Rounds of every arm that trains; the suite's if ``None``.
        steps: Updates of a round; the suite's if ``None``.
        backend: Sandbox backend.
        preset: Recipe.

    Raises:
        UnknownNameError: If there is no such suite.
    """
    if steps is None and suite in SCOPES:
        steps = SCOPES[suite].steps
    return run_config(
        suite, title="study", rounds=rounds, steps=steps, backend=backend, preset=preset
    )


class Study:
    """The arms and seeds of one study, in one folder; safe to interrupt and run again.

    Args:
        runs: Folder of the study: one run folder a (seed, arm), one row each.
        out: JSON file of the results; tables and figures go beside it.
        config: Settings that all arms begin from; the seed is set here.
        arms: What is compared.
        seeds: Number of seeds, 0 .. seeds - 1.
        command: How it was started, for the results.
        quiet: No progress on stderr.

    Raises:
        ConfigError: If a path cannot be written to, or ``seeds`` is less than 1.
    """

    def __init__(
        self,
        runs: Path,
        out: Path,
        config: RunConfig,
        *,
        arms: Sequence[Arm],
        seeds: int,
        command: str = "",
        quiet: bool = False,
    ) -> None:
        if seeds < 1:
            raise ConfigError(f"Expected at least 1 seed, came {seeds}.")
        check_file(out, "the scores' file")
        check_folder(runs, "a folder of runs")
        self.runs, self.out, self.config = runs, out, config
        self.arms, self.seeds, self.command, self.quiet = tuple(arms), seeds, command, quiet

    def run(self, tell: Tell | None = None) -> dict[str, Any]:
        """Play what is missing; the results are written after every row.

        Returns:
            What was written.

        Raises:
            BatError: Whatever stops an arm; a second call continues it.
        """
        document: dict[str, Any] = {}
        for seed in range(self.seeds):
            for arm in self.arms:
                if tell is not None:
                    tell(f"seed {seed}, {arm.label}")
                self._row(seed, arm)
                document = write_results(
                    self.out, self._rows(), command=self.command, config=self.config
                )
        return document

    # ------------------------------------------------------------------------------------ one row

    def row_file(self, seed: int, arm: str) -> Path:
        """Where the row of an arm and a seed lies."""
        return self.runs / "rows" / f"seed-{seed}-{arm}.json"

    def _rows(self) -> list[dict[str, Any]]:
        files = (self.row_file(seed, arm.name) for seed in range(self.seeds) for arm in self.arms)
        return [read_json(file, schema_version=ROW_SCHEMA) for file in files if file.is_file()]

    def _row(self, seed: int, arm: Arm) -> None:
        config = arm.apply(self.config.model_copy(update={"seed": seed}))
        file = self.row_file(seed, arm.name)
        if file.is_file():
            there = read_json(file, schema_version=ROW_SCHEMA)
            if there.get("settings") != config.digest:
                raise ConfigError(
                    f"{file} is of a study with other settings. Give another folder with --runs."
                )
            return
        shared = self.runs / f"seed-{seed}" / TRUNK
        frozen = self._shared(seed, shared)
        folder = self.runs / f"seed-{seed}" / arm.name
        pipeline = Pipeline(folder, config, command=self.command, quiet=self.quiet)
        with (
            locked(folder / "run.lock"),
            Usage(folder) as usage,
            RunProgress(pipeline.phases(), quiet=self.quiet) as progress,
        ):
            _link(shared, folder, with_sft=arm.best_share == 1.0)
            if pipeline.engine.demonstrations_digest() != frozen:
                raise ConfigError(
                    f"Expected the demonstrations {frozen[:12]} in {shared / 'bank'}, frozen "
                    "before the first update; they were changed. Start a new study."
                )
            sft = folder / "sft" / "final"
            if arm.best_share != 1.0:
                pipeline.cold_start(progress)
            state = pipeline.improve(progress, sft) if arm.pools else None
            policy = sft.parent / "base" if arm.start == "base" else sft
            if state is not None:
                policy = folder / state.best.path
            digest = pipeline.engine.digest(policy)[:12]
            scored = self._score(pipeline, arm, policy, digest, progress)
            row = row_of(arm, config, state, scored, frozen, folder, usage.cost())
            write_json(
                file, {**row, "audit": audit(pipeline.episodes(arm.name, "sampled", digest))}
            )

    def _score(
        self, pipeline: Pipeline, arm: Arm, policy: Path, digest: str, progress: RunProgress
    ) -> dict[str, Evaluation]:
        source = AgentSource(arm.label, checkpoint=policy)
        # The untrained policy has no greedy score worth its time, as in a run's own report.
        ways = ("sampled",) if arm.start == "base" else ("sampled", "greedy")
        scored = {}
        with progress.phase("final") as advance:
            for number, which in enumerate(ways):

                def report(done: int, total: int, number: int = number) -> None:
                    advance(number + done / total, len(ways), f"{done}/{total}")

                scored[which] = pipeline.score(arm.name, which, source, digest, report)
        return scored

    def _shared(self, seed: int, folder: Path) -> str:
        """Bank and supervised start of a seed, and the digest that froze its demonstrations."""
        config = self.config.model_copy(update={"seed": seed, "rounds": 0})
        pipeline = Pipeline(folder, config, command=self.command, quiet=self.quiet)
        frozen = folder / FROZEN
        with (
            locked(folder / "run.lock"),
            Usage(folder),
            RunProgress(pipeline.phases(), quiet=self.quiet) as progress,
        ):
            if not frozen.is_file():
                pipeline.fill_bank(progress)
                digest = pipeline.engine.demonstrations_digest()
                write_json(frozen, {"schema_version": 1, "demonstrations_digest": digest})
            pipeline.cold_start(progress)
        return str(read_json(frozen, schema_version=1)["demonstrations_digest"])


def _link(shared: Path, folder: Path, *, with_sft: bool) -> None:
    """The seed's bank, and its supervised start as hard links: neither is made or kept twice."""
    if not (folder / "bank").exists():
        (folder / "bank").symlink_to(Path("..") / shared.name / "bank", target_is_directory=True)
    if not (folder / "bank.json").is_file():
        write_json(folder / "bank.json", read_json(shared / "bank.json", schema_version=1))
    if with_sft and not (folder / "sft").exists():
        part = folder / ".sft.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        for name in ("base", "final"):
            shutil.copytree(shared / "sft" / name, part / name, copy_function=_hard_link)
        part.replace(folder / "sft")


def _hard_link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # Another disk, or one without hard links.
        shutil.copy2(source, target)
    return target
