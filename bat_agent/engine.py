"""The work behind the loop's phases: Stage Bank, GRPO on its states, controller evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bat_agent.agents.base import AgentSource
from bat_agent.config import RunConfig
from bat_agent.curriculum.gate import TrainingHealth
from bat_agent.curriculum.rounds import RoundPlan, StateRow
from bat_agent.evaluate import SPARE_SANDBOXES, evaluate
from bat_agent.evaluation import Evaluation
from bat_agent.files import derived_seed, digest_of
from bat_agent.loop import Trained
from bat_agent.progress import Advance
from bat_agent.rollout import ResetSpec


class BatEngine:
    """An :class:`~bat_agent.loop.Engine` over one run folder.

    Args:
        run: Folder of the run.
        config: Its settings.
    """

    def __init__(self, run: Path, config: RunConfig) -> None:
        self.run, self.config = run, config
        self.advance: Advance = _silent

    @property
    def bank(self) -> Path:
        """The run's Stage Bank."""
        return self.run / "bank"

    def preflight(self) -> Mapping[str, Any]:
        """Scan the bank against every held-out suite."""
        from bat_env.bank import Bank, preflight
        from bat_env.tasks import suite_names

        with Bank.open(self.bank) as bank:
            report = preflight(bank, suite_names())
        return {
            "findings": len(report.findings),
            "states": report.states,
            "demonstrations": report.demonstrations,
            "fingerprint": report.fingerprint,
        }

    def demonstrations_digest(self) -> str:
        """Names the demonstrations that the bank holds now."""
        from bat_env.bank import Bank

        with Bank.open(self.bank) as bank:
            return bank.demonstrations_digest()

    def cold_start(
        self,
        out: Path,
        progress: Callable[[int, int, Mapping[str, float]], None] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> Path:
        """The supervised start, from the bank's demonstrations."""
        preset, seed = self.config.preset, self.config.seed
        if preset.system.processes > 1:
            from bat_agent.launch import train_in_processes

            arguments = {"bank_path": str(self.bank.resolve()), "seed": seed}
            return train_in_processes(
                "sft", preset, out, arguments, steps=preset.sft.steps, progress=progress
            )
        from bat_agent.sft import train_sft

        return train_sft(self.bank, out, preset, seed=seed, progress=progress, tell=tell)

    def digest(self, checkpoint: Path) -> str:
        """Digest of the weights."""
        from bat_agent.policy.checkpoint import read_seal

        return str(read_seal(checkpoint)["weights_digest"])

    def evaluate(self, checkpoint: Path, label: str) -> Evaluation:
        """Controller evaluation at the sampling temperature, on the controller's own instances."""
        return evaluate(
            AgentSource(label, checkpoint=checkpoint),
            suite=self.config.controller.suite,
            repeats=self.config.controller.repeats,
            temperature=self.config.preset.rollout.temperature,
            tier=self.config.bank.tier,
            sandbox=self.config.backend,
            workers=self.config.workers,
            max_live=self.config.preset.rollout.max_live,
            seed=derived_seed(self.config.seed, "controller"),
            progress=lambda done, total: self.advance(done, total, "controller episodes"),
        )

    def states(self) -> list[StateRow]:
        """Admitted reset states of the bank: what is only a candidate trains nobody."""
        from bat_env.bank import Bank

        settings = self.config.bank
        with Bank.open(self.bank) as bank:
            rows = bank.query(size=settings.size, tier=settings.tier)
            return [
                StateRow(s.state_id, s.workspace, s.track, s.focus.name, s.outcome)
                for s in rows
                if s.admitted
            ]

    def reward_version(self) -> str:
        """Digest over the rubric contracts of all states."""
        from bat_env.bank import Bank

        with Bank.open(self.bank) as bank:
            return digest_of(sorted({state.rubric_digest for state in bank.query()}))

    def specs(self, plan: RoundPlan) -> list[list[ResetSpec]]:
        """Groups of the plan, batch after batch."""
        return [
            [
                ResetSpec(
                    env_id="bat_env:AutoMed-Bank-v0",
                    seed=derived_seed(self.config.seed, plan.round_id, draw.step, draw.slot),
                    options={"state_id": draw.state.state_id},
                    env_kwargs={
                        "bank": str(self.bank.resolve()),
                        "sandbox": self.config.backend,
                        "tier": self.config.bank.tier,
                        "pool_size": self.config.preset.rollout.max_live + SPARE_SANDBOXES,
                    },
                )
                for draw in batch
            ]
            for batch in plan.batches()
        ]

    def train(self, start: Path, plan: RoundPlan, out: Path) -> Trained:
        """GRPO on the plan's states."""
        from bat_agent.grpo import health_of, train_grpo
        from bat_agent.launch import train_in_processes

        reward = 0.0

        def report(step: int, steps: int, metrics: Mapping[str, float]) -> None:
            nonlocal reward
            reward = metrics.get("reward", reward)  # a further update makes no new rollouts
            self.advance(step, steps, f"update {step}: reward {reward:.2f}")

        preset, specs = self.config.preset, self.specs(plan)
        updates = plan.steps * preset.grpo.iterations
        seed = derived_seed(self.config.seed, "round", plan.round_id)
        if preset.system.processes > 1:
            arguments = {
                "start_checkpoint": str(start.resolve()),
                "specs": [[spec.to_json() for spec in batch] for batch in specs],
                "seed": seed,
            }
            checkpoint = train_in_processes(
                "grpo", preset, out, arguments, steps=updates, progress=report
            )
        else:
            checkpoint = train_grpo(start, specs, out, preset, seed=seed, progress=report)
        health = health_of(out, updates)
        rollouts = len(plan.draws) * self.config.preset.grpo.rollouts_per_group
        return Trained(
            checkpoint,
            tuple(health["reward"]),
            TrainingHealth(
                finite=bool(health["finite"]),
                rollouts=rollouts,
                aborted=round(health["aborted_share"] * rollouts),
            ),
        )

    def divergence(self, candidate: Path, best: Path) -> float:
        """KL over held-out prompts of the bank."""
        from bat_agent.divergence import mean_token_kl

        sft = self.config.preset.sft
        return mean_token_kl(
            candidate,
            best,
            self.bank,
            max_tokens=sft.max_row_tokens,
            share=sft.validation_share,
            temperature=self.config.preset.rollout.temperature,
            seed=self.config.seed,
        )


def _silent(done: float, total: float, note: str = "") -> None:
    """Progress that nobody watches."""
