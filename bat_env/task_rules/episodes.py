"""Rules that play episodes: what careful and careless work score, from scratch and from states."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from bat_env.sandbox import resolve_backend
from bat_env.stages import WORK_STAGES, Stage
from bat_env.task_rules.cpu import allowance
from bat_env.task_rules.playing import FURTHER, Played, Player
from bat_env.tasks.scripts import Mistake

T = TypeVar("T")

MIN_OVERALL: Final = 0.80
MIN_TASK: Final = 0.65
NAIVE_RANGE: Final = (0.05, 0.45)
MIN_STAGE_LOSS: Final = 0.2
MIN_FOCUS: Final = 0.9
"""What careful work scores at least in one stage, from a start state."""
MIN_COST: Final = 0.05
"""What a mistake costs at least where it lists something, over the instances played."""
MAX_ELSEWHERE: Final = 0.25
"""What a mistake may cost where it lists nothing: one item of a stage, which hangs on the case."""
FORFEIT: Final = ("S2", "S3", "S4")
"""Stages that are lost too where the outputs, or the runs that are looked at, are worth nothing."""
LEAST_STATED: Final = {"task": 1 / 3}
LEAST_STATED_STAGE: Final = 0.5
"""Share of what a mistake costs that it must list; the task's part hangs on the instance most."""
ALL: Final = "overall"
WORTHLESS: Final = "worthless"
MAX_CPU_S: Final = {"mini": 1.5, "full": 15.0}
MAX_STAGE_CPU_S: Final = 0.5
MAX_CHECK_CHARS: Final = 1200
_TRIES: Final = 2


def oracle_scores(player: Player, size: str = "mini", tiers: Iterable[str] = ("lite",)) -> None:
    """Careful work finishes without an error and scores high.

    Where one instance is too hard, the mean of three decides.
    """
    for tier in tiers:
        done = player.careful(size, tier)
        assert done.failed_cells == 0 and done.valid, f"{size} {tier}: {done.notes}"
        score, task = done.score, done.parts["task"]
        if score < MIN_OVERALL or task < MIN_TASK:
            played = [done, *_elsewhere(player, partial(player.careful, size, tier))]
            score = statistics.fmean(each.score for each in played)
            task = statistics.fmean(each.parts["task"] for each in played)
        assert score >= MIN_OVERALL, f"{size} {tier}: Overall {score:.3f}. {done.notes}"
        assert task >= MIN_TASK, f"{size} {tier}: Task {task:.3f}. {done.notes}"
        low = [stage.name for stage in WORK_STAGES if done.parts[stage.name] < 1.0]
        assert not low, f"{size} {tier}: the oracle loses in {', '.join(low)}: {done.notes}"


def naive_scores(player: Player, size: str = "mini") -> None:
    """Careless work finishes with valid outputs and loses in every stage."""
    done, good = player.play(player.task.naive_choices, size), player.careful(size)
    assert done.failed_cells == 0 and done.valid, f"naive must finish validly: {done.notes}"
    least, most = NAIVE_RANGE
    assert least <= done.score <= most, (
        f"naive scores {done.score:.3f}, expected {least} to {most}: it does all the work, badly."
    )
    for stage in WORK_STAGES:
        lost = good.parts[stage.name] - done.parts[stage.name]
        assert lost >= MIN_STAGE_LOSS, f"naive loses only {lost:.2f} in {stage.name}."


def naive_from_states(player: Player) -> None:
    """Careless work loses in each stage also from a state that careful work left."""
    for stage in WORK_STAGES:
        state = player.state(stage)
        good = player.play({}, state=state)
        poor = player.play(player.task.naive_choices, state=state)
        assert good.failed_cells == 0 and good.score >= MIN_FOCUS, (
            f"From a success state careful work scores {good.score:.3f} in {stage.name}, at least "
            f"{MIN_FOCUS} is expected. {good.notes}"
        )
        lost = good.score - poor.score
        assert lost >= MIN_STAGE_LOSS, (
            f"From a success state naive loses only {lost:.2f} in {stage.name}."
        )


def repair(player: Player, stages: Iterable[Stage] = WORK_STAGES[2:]) -> None:
    """Careful work cures a faulty start, and skipping the repair costs what it says."""
    task = player.task
    broken = next((m for m in task.mistakes if m.check and m.costs.get("task", 0.0) >= 0.2), None)
    assert broken is not None, "A mistake with a check must cost >= .2 in the task score."
    player.play(broken.choices, keep="recovery")
    for stage in stages:
        state = player.state(stage, "recovery")
        cured = player.play({}, state=state)
        assert cured.score >= MIN_FOCUS, (
            f"From a state with {broken.id} careful work scores {cured.score:.3f} in {stage.name}, "
            f"at least {MIN_FOCUS} is expected. {cured.notes}"
        )
        skipped = [m for m in task.mistakes if m.outcome == "recovery" and stage.name in m.costs]
        assert skipped or stage is not Stage.S3, "A mistake must skip the repair in S3."
        for mistake in skipped:
            lost = cured.score - player.play(mistake.choices, state=state).score
            least = mistake.costs[stage.name]
            assert lost >= least, f"{mistake.id} must cost {least} in {stage.name}, not {lost:.2f}."


def listed_mistakes(player: Player, mistakes: Iterable[Mistake] | None = None) -> None:
    """Each listed mistake costs where it says and hardly elsewhere, and its check shows it.

    What it costs hangs on the instance: where the first does not fit, what is listed must lie
    within what three instances cost. A mistake that spoils outputs so far that they are worth
    hardly anything on one of the three may lose the stages that made them, or not, whatever it
    lists: the draw of the cases decides.
    """
    chosen = [m for m in mistakes or player.task.mistakes if not m.outcome]
    clean = player.printed({m.id: m.check for m in chosen if m.check})
    wrong = []
    for mistake in chosen:
        done = player.play(mistake.choices, tier=mistake.tier, check=mistake.check)
        paid = [_paid(player, mistake, done)]
        player.lost[mistake.id] = {
            part: loss for part, loss in paid[0].items() if part not in (ALL, WORTHLESS)
        }
        faults = _costs(mistake, paid)
        if faults:
            paid += _elsewhere(player, partial(_paid, player, mistake))
            spoils = "task" in mistake.costs and any(each[WORTHLESS] for each in paid)
            faults = _costs(mistake, paid, FORFEIT if spoils else ())
        wrong += faults
        try:
            _shows(player, mistake, done, clean.get(mistake.id, ""))
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


def _elsewhere(player: Player, play: Callable[[], T]) -> list[T]:
    """What a play gives on further instances."""
    made = []
    for index in FURTHER:
        with player.on(index):
            made.append(play())
    return made


def _paid(player: Player, mistake: Mistake, done: Played | None = None) -> dict[str, float]:
    """What a mistake costs against careful work on the same instance: by part, and overall.

    ``WORTHLESS`` is 1 where its outputs are worth hardly anything.
    """
    done = done or player.play(mistake.choices, tier=mistake.tier)
    good = player.careful(tier=mistake.tier)
    by_part = {part: round(good.parts[part] - done.parts[part], 3) for part in good.parts}
    return {**by_part, ALL: good.score - done.score, WORTHLESS: float(done.worthless)}


def _costs(
    mistake: Mistake, paid: Sequence[Mapping[str, float]], by_chance: Sequence[str] = ()
) -> list[str]:
    """What is listed is lost, and about what is lost is listed: the faults found.

    Args:
        mistake: The mistake.
        paid: What it cost, instance by instance.
        by_chance: Parts that it may lose or not.
    """
    wrong = []
    least = {part: min(each[part] for each in paid) for part in paid[0]}
    most = {part: max(each[part] for each in paid) for part in paid[0]}
    for part, stated in mistake.costs.items():
        if part in by_chance:
            continue
        if most[part] < stated or statistics.fmean(each[part] for each in paid) < MIN_COST:
            wrong.append(f"{mistake.id} must cost {stated} in {part}, it costs {most[part]}.")
    if most[ALL] < 0.004:
        wrong.append(f"{mistake.id}: the episode must pay too.")
    for part, loss in least.items():
        if part in (*by_chance, ALL, WORTHLESS):
            continue
        known = mistake.costs.get(part)
        if known is None:
            # S5 holds outputs against their floor: what spoils them costs S5 too.
            if part != "S5" and loss >= MAX_ELSEWHERE:
                wrong.append(f"{mistake.id} also costs {loss} in {part}: list it.")
        elif known < LEAST_STATED.get(part, LEAST_STATED_STAGE) * loss:
            wrong.append(
                f"{mistake.id} lists a cost of {known} in {part} and costs {loss}: list about that."
            )
    return wrong


def _shows(player: Player, mistake: Mistake, done: Played, clean: str) -> None:
    """The check of a mistake runs, and prints something else than after careful work.

    A rare kind of file may be missing among those of one instance: then further ones decide.
    """
    if not mistake.check:
        return
    assert done.check is not None, f"{mistake.id}: no call is left for its check."
    assert done.check.ok and not done.check.stderr, (
        f"The check of {mistake.id} must run without an error: {done.check.stderr[-300:]}"
    )
    said = done.check.stdout
    assert 0 < len(said) <= MAX_CHECK_CHARS, (
        f"The check of {mistake.id} prints {len(said)} characters, 1 to {MAX_CHECK_CHARS} expected."
    )
    assert said != clean or any(_elsewhere(player, partial(_differs, player, mistake))), (
        f"The check of {mistake.id} prints the same for careful work: {said!r}"
    )


def _differs(player: Player, mistake: Mistake) -> bool:
    done = player.play(mistake.choices, tier=mistake.tier, check=mistake.check)
    clean = player.printed({mistake.id: mistake.check})[mistake.id]
    return done.check is not None and done.check.ok and done.check.stdout != clean


def cpu_time(player: Player) -> None:
    """The reduced size is cheap: a whole episode, and one stage from a start state.

    Episodes that other rules have played count; what took too long there is tried again.
    """
    if resolve_backend(player.sandbox) not in ("local", "process"):
        return  # A container's processes are not ours to ask.
    known = player.cheapest
    _within(MAX_CPU_S["mini"], "A mini episode", known.get("mini"), player.play, {})
    for stage in WORK_STAGES:
        state, so_far = player.state(stage), known.get(f"success {stage.name}")
        _within(MAX_STAGE_CPU_S, f"{stage.name} alone", so_far, player.play, {}, state=state)


def full_cpu_time(player: Player) -> None:
    """A whole episode of the full size fits its limit too."""
    if resolve_backend(player.sandbox) in ("local", "process"):
        used = player.careful("full").cpu_s
        limit = allowance(MAX_CPU_S["full"])
        assert used is None or used <= limit, (
            f"A full episode takes {used:.1f} CPU-s, at most {MAX_CPU_S['full']:.0f}."
        )


def _within(
    limit_s: float,
    what: str,
    so_far: float | None,
    play: Callable[..., Played],
    *args: Any,
    **kw: Any,
) -> None:
    """The best of a few tries is what the work costs; the rest is what others did meanwhile."""
    best = float("inf") if so_far is None else so_far
    for _ in range(0 if best <= limit_s else _TRIES):
        used = play(*args, **kw).cpu_s
        if used is None:
            return
        best = min(best, used)
        if best <= limit_s:
            return
    assert best <= allowance(limit_s), f"{what} takes {best:.2f} CPU-s, at most {limit_s}."
