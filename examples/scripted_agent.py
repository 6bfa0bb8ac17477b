"""What one mistake costs: the expert's script, and the same script with one careless choice."""

from __future__ import annotations

from functools import partial

from bat_agent.agents.scripted import ScriptAgent
from bat_agent.rollout import ResetSpec, run_agent
from bat_env.tasks import load_task


def main() -> None:
    task = load_task("seg/kidney_tumor")
    mistake = next(m for m in task.mistakes if "task" in m.costs)
    start = ResetSpec("AutoMed-Seg-v0", seed=1, env_kwargs={"size": "mini"})
    for name, choices in (("expert", {}), (mistake.id, mistake.choices)):
        (episode,) = run_agent(partial(ScriptAgent, choices), [start])
        result = episode.result  # None if the infrastructure failed: that is no zero
        if result is None:
            print(f"{name}: no score, {episode.error}")
        else:
            print(f"{name}: score {result['score']:.3f}, Task {result['task']:.3f}")


if __name__ == "__main__":
    main()
