"""What the study compares: each arm is a recipe, and all that train make equally many rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from bat_agent.config import RunConfig
from bat_agent.curriculum.rounds import COMPOSITION, Pool
from bat_env.errors import ConfigError, unknown_name

GOOD_SHARE: Final = 0.25
"""Share of the demonstrations of each task and focus that ``sft-good`` sees."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to make a policy.

    Attributes:
        name: For files and the command line.
        label: For tables.
        start: What the rounds begin with: the untrained policy, or the supervised start.
        pools: Groups of a batch from each pool; ``None``: no policy update at all.
        reward: What a rollout is paid.
        best_share: Share of the demonstrations that the supervised start sees.
    """

    name: str
    label: str
    start: Literal["base", "sft"] = "sft"
    pools: Mapping[Pool, int] | None = None
    reward: Literal["rubric", "task"] = "rubric"
    best_share: float = 1.0

    def apply(self, config: RunConfig) -> RunConfig:
        """The settings of a run of this arm."""
        preset = config.preset.updated(
            sft={"best_share": self.best_share}, grpo={"reward": self.reward}
        )
        update = {
            "preset": preset,
            "rounds": config.rounds if self.pools else 0,
            "pools": dict(self.pools or COMPOSITION),
            "title": f"{self.label}, seed {config.seed}",
        }
        return RunConfig.model_validate(config.model_copy(update=update).model_dump())


def _mix(name: str, label: str, target: int, mix: int, e2e: int) -> Arm:
    pools: dict[Pool, int] = {"target": target, "mix": mix, "e2e": e2e}
    return Arm(name, label, pools={pool: count for pool, count in pools.items() if count})


_ALL: Final = (
    Arm("base", "base (untrained)", start="base"),
    Arm("sft", "SFT"),
    Arm("sft-good", "SFT, best demonstrations only", best_share=GOOD_SHARE),
    Arm("grpo-final", "GRPO, one final reward", pools={"e2e": 8}, reward="task"),
    Arm("bicurl", "BiCuRL", pools=COMPOSITION),
    # Seven mixes of the three pools; `bicurl` is the whole one. Shares stay as they are in it.
    _mix("no-e2e", "BiCuRL without E2E", 5, 3, 0),
    _mix("no-mix", "BiCuRL without the other stages", 5, 0, 3),
    _mix("no-target", "BiCuRL without the target stage", 0, 4, 4),
    _mix("only-target", "target stage only", 8, 0, 0),
    _mix("only-mix", "other stages only", 0, 8, 0),
    _mix("only-e2e", "E2E only", 0, 0, 8),
)

ARMS: Final[Mapping[str, Arm]] = MappingProxyType({arm.name: arm for arm in _ALL})
HEADLINE: Final = ("base", "sft", "sft-good", "grpo-final", "bicurl")
MIXES: Final = ("bicurl", "no-e2e", "no-mix", "no-target", "only-target", "only-mix", "only-e2e")
_SETS: Final = MappingProxyType({"headline": HEADLINE, "mixes": MIXES, "all": tuple(ARMS)})


def parse_arms(text: str) -> tuple[Arm, ...]:
    """``headline``, ``mixes``, ``all``, or names with commas between them; in the study's order.

    Raises:
        UnknownNameError: If a name is none of these.
        ConfigError: If none is named.
    """
    names: set[str] = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word not in _SETS and word not in ARMS:
            raise unknown_name("arm of the study", word, (*_SETS, *ARMS))
        names |= set(_SETS.get(word, (word,)))
    if not names:
        raise ConfigError("Expected at least one arm, came none. Name some, or 'headline'.")
    return tuple(arm for arm in ARMS.values() if arm.name in names)
