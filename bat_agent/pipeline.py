"""A whole run: Stage Bank, supervised start, rounds, final evaluation, pictures, report.

Every phase leaves its result on disk, whole or not at all, and is skipped when it is there. No
score depends on the wall clock: two runs with one configuration give the same scores.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bat_agent import __version__
from bat_agent.agents.base import AgentSource, load_agent
from bat_agent.config import RunConfig
from bat_agent.engine import BatEngine
from bat_agent.evaluate import evaluate
from bat_agent.evaluation import Evaluation
from bat_agent.files import derived_seed, locked, read_json, sweep, write_json
from bat_agent.loop import Loop
from bat_agent.loop_state import LoopState
from bat_agent.policy.checkpoint import SEAL
from bat_agent.progress import Advance, JobCount, Phase, RunProgress
from bat_agent.report.collect import RESULTS_SCHEMA
from bat_agent.run_log import RunLog, check_trackers
from bat_agent.targets import plan_targets, reset_spec
from bat_agent.usage import Usage
from bat_env.disk import named_if_full
from bat_env.errors import ConfigError
from bat_env.extras import require

LABELS: Final[Mapping[str, str]] = {
    "base": "base (untrained)",
    "sft": "SFT",
    "bat": "BaT",
    "naive": "naive",
    "oracle": "oracle",
}
SCRIPTS: Final = ("naive", "oracle")


@dataclass(frozen=True, slots=True)
class Results:
    """What a finished run came to.

    Attributes:
        evaluations: (agent key, ``"sampled"`` or ``"greedy"``) -> evaluation.
        differences: ``"sampled"``, ``"greedy"`` -> paired Overall difference BaT - SFT.
        report: The HTML file.
        state: Of the loop.
    """

    evaluations: Mapping[tuple[str, str], Evaluation]
    differences: Mapping[str, Any]
    report: Path
    state: LoopState


class Pipeline:
    """Runs one configuration in one folder, from where it stands to the report.

    Args:
        run: Folder of the run.
        config: Its settings.
        command: How it was started, for the report.
        quiet: No progress on stderr.
    """

    def __init__(
        self, run: Path, config: RunConfig, *, command: str = "", quiet: bool = False
    ) -> None:
        require("train", "Training")
        self.run_dir, self.command, self.quiet = run, command, quiet
        self._check_origin(config)
        self.config = config.claim(run)
        self.engine = BatEngine(run, self.config)
        self.log = RunLog(run, check_trackers(self.config.log_to))

    def run(self) -> Results:
        """Do what is left to do.

        Raises:
            BatError: Whatever stops the run; a second call continues it.
        """
        with (
            named_if_full(self.run_dir),
            locked(self.run_dir / "run.lock"),
            Usage(self.run_dir) as usage,
            RunProgress(self.phases(), quiet=self.quiet) as progress,
        ):
            sweep(self.run_dir)
            self.fill_bank(progress)
            sft = self.cold_start(progress)
            state = self.improve(progress, sft)
            evaluations = self._finals(progress, sft, state)
            self._results(progress, evaluations, state, usage)
            with progress.phase("report"):
                from bat_agent.report import write_report

                self.log.close()
                report = write_report(self.run_dir)
        return Results(evaluations, self._differences(evaluations), report, state)

    def _check_origin(self, config: RunConfig) -> None:
        """Refuse a base model that is not there before the bank is built for it."""
        model = config.preset.model
        if model.pretrained is None:
            return
        if model.lora is None and (self.run_dir / "sft" / "base" / SEAL).is_file():
            return  # The run keeps whole weights of its own.
        from bat_agent.policy.origin import check_origin

        check_origin(model.pretrained)

    def phases(self) -> list[Phase]:
        """What the run does, in order."""
        preset, rounds = self.config.preset, self.config.rounds
        cells = 18 * self.config.bank.per_cell
        phases = [
            Phase("bank", "Stage Bank", 15.0 + 0.4 * cells + 0.2 * self.config.bank.demos),
            Phase("sft", "Supervised start", 0.9 * preset.sft.steps),
        ]
        each = 13.0 * preset.grpo.steps_per_round + 30.0
        phases += [
            Phase(f"round-{n}", f"Round {n} of {rounds}", each, kind="round")
            for n in range(1, rounds + 1)
        ]
        return [
            *phases,
            Phase("final", "Final evaluation", 130.0),
            Phase("pictures", "Pictures", 8.0),
            Phase("report", "Report", 1.0),
        ]

    # ----------------------------------------------------------------------------------- phases

    def fill_bank(self, progress: RunProgress) -> None:
        """Build the run's Stage Bank, or what is missing of it."""
        from bat_env.bank.build import build

        settings = self.config.bank
        # Stages of the build, and the share of its time that each begins at.
        spans: dict[str, tuple[float, float]] = {"states": (0.0, 0.5), "demonstrations": (0.6, 0.4)}
        with progress.phase("bank") as advance:
            counted = JobCount(self.run_dir / "bank-jobs.json")

            def report(what: str, done: int, total: int) -> None:
                begin, share = spans.get(what, (0.5, 0.1))
                done, total = counted(what, done, total)
                advance(begin + share * done / max(1, total), 1.0, f"{what} {done}/{total}")

            built = build(
                self.run_dir / "bank",
                tasks=settings.tasks,
                sizes=(settings.size,),
                tiers=(settings.tier,),
                per_cell=settings.per_cell,
                demos=settings.demos,
                p_good=settings.p_good,
                e2e_share=settings.e2e_share,
                instances=settings.instances,
                seed=self.config.seed,
                backend=self.config.backend,
                workers=self.config.workers,
                progress=report,
            )
        write_json(
            self.run_dir / "bank.json",
            {
                "schema_version": 1,
                "states": len(built.states),
                "demonstrations": built.demonstrations,
                "digest": built.digest,
                "demonstrations_digest": built.demonstrations_digest,
            },
        )

    def cold_start(self, progress: RunProgress) -> Path:
        """The supervised start, made or found."""
        with progress.phase("sft") as advance:
            advance(0.0, 1.0, "looking for held-out material in the bank")
            self.engine.preflight()

            def report(step: int, steps: int, metrics: Mapping[str, float]) -> None:
                self.log.beat()
                advance(step, steps, f"step {step}/{steps}: loss {metrics.get('loss', 0.0):.3f}")

            return self.engine.cold_start(
                self.run_dir / "sft",
                report,
                tell=lambda what: advance(0.0, 1.0, what),
            )

    def improve(self, progress: RunProgress, sft: Path) -> LoopState:
        """Run the rounds that are left, from the supervised start on."""
        # A phase of the loop and the span of its round that it fills.
        spans = {"evaluate": (0.0, 0.08), "train": (0.08, 0.84), "candidate": (0.92, 0.08)}

        def one(rounds: int, advance: Advance | None) -> LoopState:
            span = (0.0, 0.0)

            def on_phase(_: int, phase: str) -> None:
                nonlocal span
                span = spans.get(phase, (span[0] + span[1], 0.0))

            def inside(done: float, total: float, note: str = "") -> None:
                self.log.beat()
                if advance is not None:
                    advance(span[0] + span[1] * done / (total or 1.0), 1.0, note)

            self.engine.advance = inside
            return Loop(
                self.run_dir,
                self.engine,
                config_digest=self.config.digest,
                seed=self.config.seed,
                rounds=rounds,
                steps_per_round=self.config.preset.grpo.steps_per_round,
                start=sft,
                pools=self.config.pools,
                router=self.config.router,
                tracks=self.config.tracks,
                gate_doubt=self.config.gate_doubt,
                on_phase=on_phase,
            ).run()

        state = one(0, None)
        for number in range(1, self.config.rounds + 1):
            if state.round > number:
                progress.skip(f"round-{number}")
                continue
            with progress.phase(f"round-{number}") as advance:
                state = one(number, advance)
        return state

    def _finals(
        self, progress: RunProgress, sft: Path, state: LoopState
    ) -> dict[tuple[str, str], Evaluation]:
        policies = {
            "base": sft.parent / "base",
            "sft": sft,
            "bat": self.run_dir / state.best.path,
        }
        jobs: list[tuple[str, str, AgentSource, str]] = []
        for key in LABELS:
            if key in SCRIPTS:
                jobs.append((key, "sampled", load_agent(key), ""))
                continue
            digest = self.engine.digest(policies[key])
            source = AgentSource(LABELS[key], checkpoint=policies[key])
            # Greedy scores are for the comparison before and after; an untrained policy has none.
            both = ("sampled",) if key == "base" else ("sampled", "greedy")
            jobs += [(key, which, source, digest[:12]) for which in both]
        done: dict[tuple[str, str], Evaluation] = {}
        with progress.phase("final") as advance:
            for number, (key, which, source, digest) in enumerate(jobs):

                def report(n: int, total: int, number: int = number, name: str = key) -> None:
                    advance(number + n / total, len(jobs), f"{name} {n}/{total}")

                done[key, which] = self.score(key, which, source, digest, report)
                advance(number + 1, len(jobs), "")
        return done

    def score(
        self, key: str, which: str, source: AgentSource, digest: str, report: Any
    ) -> Evaluation:
        """A final evaluation, played or found.

        Args:
            key: Of the agent, for file names.
            which: ``"sampled"`` or ``"greedy"``.
            source: Who plays.
            digest: First digits of the weights; "" for a script.
            report: Called with (done, total) episodes.
        """
        # By weights, so that more rounds score a new best policy and nothing else again.
        episodes = self.episodes(key, which, digest)
        file = episodes.with_name(f"{episodes.name}.json")
        if file.is_file():
            return Evaluation.load(file)
        shutil.rmtree(episodes, ignore_errors=True)
        evaluation = evaluate(
            source,
            suite=self.config.final.suite,
            repeats=self.config.final.repeats,
            temperature=self.config.preset.rollout.temperature,
            greedy=which == "greedy",
            tier=self.config.bank.tier,
            sandbox=self.config.backend,
            workers=self.config.workers,
            max_live=self.config.preset.rollout.max_live,
            seed=derived_seed(self.config.seed, "final"),
            trajectory_dir=episodes,
            progress=report,
        )
        evaluation.scores()  # A null cell cannot enter the results.
        evaluation.save(file)
        return evaluation

    def episodes(self, key: str, which: str, digest: str) -> Path:
        """Folder of the trajectories of :meth:`score` with these arguments."""
        name = "-".join(part for part in (key, digest, which) if part)
        return self.run_dir / "final" / name

    # ---------------------------------------------------------------------------------- results

    def _differences(self, evaluations: Mapping[tuple[str, str], Evaluation]) -> dict[str, Any]:
        return {
            which: evaluations["bat", which].difference(evaluations["sft", which])
            for which in ("sampled", "greedy")
        }

    def _results(
        self,
        progress: RunProgress,
        evaluations: Mapping[tuple[str, str], Evaluation],
        state: LoopState,
        usage: Usage,
    ) -> None:
        index = representative(evaluations["sft", "sampled"], evaluations["bat", "sampled"])
        trajectories = []
        with progress.phase("pictures") as advance:
            for number, key in enumerate(("sft", "bat")):
                trajectories.append(self._episode(key, evaluations[key, "sampled"], index))
                advance(number + 1, 2, "")
        rows = []
        for key, label in LABELS.items():
            row: dict[str, Any] = {"key": key, "label": label}
            for which in ("sampled", "greedy"):
                if (key, which) in evaluations:
                    row[which] = self._file(key, which, evaluations[key, which])
            rows.append(row)
        cell = evaluations["bat", "sampled"].cells[index]
        differences = self._differences(evaluations)
        write_json(
            self.run_dir / "results.json",
            {
                "schema_version": RESULTS_SCHEMA,
                "title": self.config.title,
                "agents": rows,
                "differences": {k: v.to_json() if v else None for k, v in differences.items()},
                "trajectories": trajectories,
                "choice": (
                    f"Held-out instance {cell.index} of {cell.task}, sampled: the one whose gain "
                    "is nearest to the median gain over the suite, so neither the best nor the "
                    "worst case."
                ),
                "provenance": self._provenance(evaluations, state),
                # Containers are the daemon's processes, not ours.
                "usage": {**usage.cost().to_json(), "containers": self.config.backend == "docker"},
            },
        )

    def _file(self, key: str, which: str, evaluation: Evaluation) -> str:
        parts = (key, evaluation.checkpoint[:12], which)
        return f"final/{'-'.join(part for part in parts if part)}.json"

    def _episode(self, key: str, evaluation: Evaluation, index: int) -> dict[str, Any]:
        cell = evaluation.cells[index]
        source = self._file(key, "sampled", evaluation).removesuffix(".json")
        file = self.run_dir / source / cell.trajectory
        picture = self.run_dir / "pictures" / f"{Path(source).name}-{cell.index}.png"
        if not picture.is_file():
            from bat_agent.pictures import picture_episode

            final = self.config.final
            plan = plan_targets(suite=final.suite, repeats=final.repeats)
            spec = reset_spec(
                plan, plan.targets[index], tier=self.config.bank.tier, sandbox=self.config.backend
            )
            picture_episode(file, spec, picture)
        return {
            "key": key,
            "label": LABELS[key],
            "file": file.relative_to(self.run_dir).as_posix(),
            "images": {
                "Every case in three planes, with the outlines the agent handed in.": (
                    picture.relative_to(self.run_dir).as_posix()
                )
            },
        }

    def _provenance(
        self, evaluations: Mapping[tuple[str, str], Evaluation], state: LoopState
    ) -> dict[str, Any]:
        bank = self.run_dir / "bank.json"
        built = read_json(bank, schema_version=1)
        final = evaluations["bat", "sampled"]
        return {
            "command": self.command,
            "version": __version__,
            "seed": self.config.seed,
            "sandbox": self.config.backend,
            "preset": self.config.preset.name,
            "temperature": self.config.preset.rollout.temperature,
            "settings": self.config.digest,
            "stage bank": f"{built['digest']} ({built['states']} states)",
            "demonstrations": (
                f"{built['demonstrations_digest']} ({built['demonstrations']} episodes)"
            ),
            "held-out suite": f"{final.target} {final.target_digest} ({len(final.cells)} episodes)",
            "base weights": evaluations["base", "sampled"].checkpoint,
            "SFT weights": evaluations["sft", "sampled"].checkpoint,
            "BaT weights": final.checkpoint,
            "reward version": self.engine.reward_version(),
            "rounds": f"{self.config.rounds} run, promoted: "
            + (", ".join(map(str, state.promoted)) or "none"),
        }


def representative(before: Evaluation, after: Evaluation) -> int:
    """Position of the cell whose gain is nearest to the median gain; the earliest of equals.

    Raises:
        ConfigError: If no cell has a score on both sides.
    """
    gains = {
        i: new.overall - old.overall
        for i, (old, new) in enumerate(zip(before.cells, after.cells, strict=True))
        if old.overall is not None and new.overall is not None
    }
    if not gains:
        raise ConfigError("Expected at least one instance with both scores, came none.")
    ordered = sorted(gains.values())
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else sum(ordered[middle - 1 : middle + 1]) / 2
    return min(gains, key=lambda i: (abs(gains[i] - median), i))
