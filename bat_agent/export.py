"""The BaT agent as a folder of its own: weights, stage skills, settings and a model card.

The folder loads with plain ``transformers`` (adapters are merged), plays with
``bat-agent eval --agent``, and holds nothing of the held-out suites.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bat_agent import __version__
from bat_agent.config import RunConfig, load_config
from bat_agent.evaluation import Evaluation
from bat_agent.files import check_folder, read_json
from bat_agent.loop_state import LoopState
from bat_agent.policy.checkpoint import load_policy, save_checkpoint
from bat_agent.policy.codec import make_codec
from bat_env.errors import ConfigError

AGENT: Final = "agent.json"
CARD: Final = "README.md"
AGENT_SCHEMA: Final = 1
LICENSE: Final = "apache-2.0"


def export_agent(run: Path, out: Path, *, name: str | None = None) -> Path:
    """Package the best policy of a run.

    Args:
        run: Folder of a run that has reached a supervised start at least.
        out: Folder to make; must not exist, or be empty.
        name: Of the agent; default: the run folder's.

    Returns:
        ``out``.

    Raises:
        ConfigError: If ``run`` is no run, has no policy yet, or ``out`` holds files.
        CheckpointError: If the policy is not whole.
    """
    config = load_config(run)
    if not (run / "state.json").is_file():
        raise ConfigError(
            f"Expected a run with a policy in {run}, it has none yet. Let it go on with "
            "`bat-agent resume`."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"Expected {out} to be new or empty, it is neither. Name another folder.")
    check_folder(out.parent, "a folder for the agent")
    state = LoopState.load(run / "state.json")
    policy = load_policy(run / state.best.path)
    tasks = config.bank.tasks or _tasks_of(run)
    facts = _facts(run, config, state, policy, name or run.resolve().name, tasks)

    def write(folder: Path) -> None:
        model = policy.model
        if hasattr(model, "merge_and_unload"):
            model = model.merge_and_unload()
        model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        _write_skills(folder / "skills", tasks)
        (folder / AGENT).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", "utf-8")
        (folder / CARD).write_text(model_card(run, config, facts), "utf-8")

    if out.is_dir():
        out.rmdir()
    return save_checkpoint(
        out,
        write,
        codec=str(policy.meta["codec"]),
        limits=policy.meta["limits"],
        parent=policy.digest,
        extra={"preset": config.preset.name, "dtype": policy.meta.get("dtype", "auto")},
    )


def _tasks_of(run: Path) -> tuple[str, ...]:
    from bat_env.bank import Bank

    with Bank.open(run / "bank") as bank:
        return tuple(sorted({state.task for state in bank.query()}))


def _write_skills(folder: Path, tasks: Sequence[str]) -> None:
    """The public stage skills of the tasks that the agent has practised."""
    from bat_env.tasks import load_task

    for task in tasks:
        source = load_task(task).folder / "skills"
        if source.is_dir():
            shutil.copytree(source, folder / task, copy_function=shutil.copyfile)


def _facts(
    run: Path,
    config: RunConfig,
    state: LoopState,
    policy: Any,
    name: str,
    tasks: Sequence[str],
) -> dict[str, Any]:
    """What a host needs to play it, and where it comes from."""
    from bat_env.tools import hermes_tools

    codec = make_codec(str(policy.meta["codec"]), policy.tokenizer)
    bank = read_json(run / "bank.json", schema_version=1)
    return {
        "schema_version": AGENT_SCHEMA,
        "name": name,
        "made_with": f"automed-bat {__version__}",
        "codec": policy.meta["codec"],
        "stop_token_ids": list(codec.stop_ids),
        "limits": dict(policy.meta["limits"]),
        "temperature": config.preset.rollout.temperature,
        "tier": config.bank.tier,
        "tools": hermes_tools(),
        "tasks": list(tasks),
        "base_model": config.preset.model.pretrained,
        "preset": config.preset.name,
        "seed": config.seed,
        "rounds": {"run": min(state.round - 1, state.rounds), "promoted": list(state.promoted)},
        "weights_digest": state.best.digest,
        "settings_digest": config.digest,
        "bank_digest": bank["digest"],
        "demonstrations_digest": bank["demonstrations_digest"],
    }


# ------------------------------------------------------------------------------------- model card


def model_card(run: Path, config: RunConfig, facts: Mapping[str, Any]) -> str:
    """Markdown with the metadata block that model hubs read."""
    base = facts["base_model"]
    head = ["---", f"license: {LICENSE}", "library_name: transformers"]
    head += [f"base_model: {base}"] if base else []
    head += ["pipeline_tag: text-generation", "tags:"]
    head += [f"- {tag}" for tag in ("medical-imaging", "agent", "reinforcement-learning", "grpo")]
    origin = (
        f"starts from `{base}`" if base else "starts from random weights and a tokenizer of its own"
    )
    rounds = facts["rounds"]
    kept = ", ".join(map(str, rounds["promoted"])) or "none"
    lines = [
        *head,
        "---",
        "",
        f"# {facts['name']}",
        "",
        "An agent that works on medical-imaging tasks by writing code cells in a sandbox, trained "
        "with Benchmark-as-Teacher (BaT): a supervised start on scripted demonstrations, then "
        "curriculum GRPO on the stages that it was weakest at.",
        "",
        f"- Policy: {origin}; preset `{facts['preset']}`, seed {facts['seed']}.",
        f"- Rounds: {rounds['run']}, promoted: {kept}.",
        f"- Practised: {', '.join(f'`{task}`' for task in facts['tasks'])}, on synthetic data "
        f"(tier `{facts['tier']}`).",
        f"- Weights `{facts['weights_digest'][:16]}`, Stage Bank `{facts['bank_digest'][:16]}`, "
        f"demonstrations `{facts['demonstrations_digest'][:16]}`.",
        "",
        "## Scores",
        "",
        *_score_lines(run, config),
        "",
        "## Use",
        "",
        "`bat-agent eval --agent FOLDER --suite SUITE` plays it in its own environment. The "
        f"weights load with `transformers` alone; prompts follow the codec `{facts['codec']}` "
        f"({AGENT} holds tools, token budgets and stop tokens; `skills/` the stage skills that "
        "every policy is granted alike).",
        "",
        "## Meant for",
        "",
        "Research on agents: how training on a benchmark's weak stages changes what an agent does. "
        "Not for clinical use, not for ranking image models, and not for running code outside a "
        "sandbox.",
        "",
        "## Training data",
        "",
        "Scripted episodes and rollouts on synthetic phantoms of the training namespace alone; no "
        "image, label or sentence comes from a person. The data card of automed-bat "
        "(`docs/data-card.md`) says how they are made and what they cannot show."
        + (" The base model brings data of its own: see its card." if base else ""),
        "",
        "## Limits",
        "",
        "Trained and scored on phantoms and simulated acquisitions, not on patients: no clinical "
        "use. It runs code that it writes itself; keep it in a sandbox. Scores at the sampling "
        "temperature and greedy ones differ; both are given.",
        "",
    ]
    return "\n".join(lines)


def _score_lines(run: Path, config: RunConfig) -> list[str]:
    if not (run / "results.json").is_file():
        return ["The run has no final evaluation yet."]
    results = read_json(run / "results.json", schema_version=1)
    lines = [
        f"Held-out suite `{config.final.suite}`: means in [0, 1], 95 % intervals over instances.",
        "",
        "| agent | decoding | Overall | Agentic | Task |",
        "|---|---|---|---|---|",
    ]
    for row in results["agents"]:
        for which in ("sampled", "greedy"):
            if which not in row:
                continue
            summary = Evaluation.load(run / row[which]).summary()
            shown = (_with_bounds(summary, name) for name in ("overall", "agentic", "task"))
            scripted = row["key"] in ("naive", "oracle")
            lines.append(
                f"| {row['label']} | {'script' if scripted else which} | {' | '.join(shown)} |"
            )
    return lines


def _with_bounds(summary: Mapping[str, Any], name: str) -> str:
    mean, bounds = summary[name], summary["ci95"][name]
    if mean is None or bounds is None:
        return "-"
    return f"{mean:.3f} ({bounds[0]:.3f} .. {bounds[1]:.3f})"
