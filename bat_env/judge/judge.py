"""The judge at work: one request for each stage, retries, cache, and a finding for every item.

Nothing here raises for what a server or an agent did: an item without a usable answer is null.
"""

from __future__ import annotations

import json
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bat_env.completions import EndpointError, Refused, complete, jittered
from bat_env.episode import Episode
from bat_env.errors import ConfigError, JudgeError, shown
from bat_env.judge.answer import Finding, null, read_answer
from bat_env.judge.cache import Cache, default_folder, key_of
from bat_env.judge.config import JudgeConfig
from bat_env.judge.contract import JudgedContract, judged_contract
from bat_env.judge.fence import shown as inert
from bat_env.judge.items import Question, asked_of_agent, questions
from bat_env.judge.material import Material, gather, read_back
from bat_env.judge.prompt import answer_schema, messages
from bat_env.rubric import RubricContract
from bat_env.stages import Stage
from bat_env.tasks.spec import TaskSpec

SCHEMA_VERSION: Final = 1
MAX_RESPONSE_BYTES: Final = 1 << 20
MAX_WAIT_S: Final = 120.0
"""A server that asks for a longer wait is not waited for."""
_MAX_BACKOFF_S: Final = 30.0


class Judge:
    """Asks one OpenAI-compatible model. Holds no connection and no key; may be pickled and shared.

    Args:
        config: Where it answers and how long it is waited for.
        seed: Of the jitter of retries; ``None`` for a fresh one.
    """

    def __init__(self, config: JudgeConfig, seed: int | None = None) -> None:
        self.config = config
        self._seed = seed
        self._structured = config.structured

    def __repr__(self) -> str:
        return f"Judge(base_url={self.config.base_url!r}, model={self.config.model!r})"

    @property
    def cache(self) -> Cache | None:
        """Where its answers are kept."""
        config = self.config
        return Cache(config.cache_dir or default_folder()) if config.cache else None

    def contract(self, rules: RubricContract, spec: TaskSpec) -> RubricContract:
        """``rules`` with this judge's items."""
        return judged_contract(rules, spec, {"model": self.config.model})

    def identity(self, contract: RubricContract) -> dict[str, Any] | None:
        """What an episode carries from its start; ``None`` where the judge has nothing to read."""
        if not isinstance(contract, JudgedContract):
            return None
        return {"schema_version": SCHEMA_VERSION, **contract.identity, "findings": {}, "shared": {}}

    def brief(self, spec: TaskSpec, contract: RubricContract) -> str:
        """What a brief says besides, so that an agent knows which prose is read."""
        if not isinstance(contract, JudgedContract):
            return ""
        return asked_of_agent(questions(spec, contract.tier, contract.focus))

    def gather(
        self,
        episode: Episode,
        spec: TaskSpec,
        contract: RubricContract,
        read: Callable[[str, int], bytes],
    ) -> None:
        """Put the findings about an episode into its evidence. Never raises.

        Args:
            episode: The record at hand-in.
            spec: Its task.
            contract: From :meth:`contract`.
            read: ``(path, max_bytes)`` -> content of a regular workspace file.
        """
        record = self.identity(contract)
        if record is None or not isinstance(contract, JudgedContract):
            return
        episode.evidence.judge = record
        if not episode.worked or episode.status == "disqualified":
            return
        lost = read_back(episode, read)
        found = self.findings(episode, spec, contract, lost=lost)
        asked = {q.id: q for q in questions(spec, contract.tier, contract.focus)}
        for name, finding in found.items():
            record["findings" if asked[name].scored else "shared"][name] = finding.to_json()

    def findings(
        self,
        episode: Episode,
        spec: TaskSpec,
        contract: JudgedContract,
        *,
        lost: dict[str, str] | None = None,
        shared_only: bool = False,
    ) -> dict[str, Finding]:
        """What the judge says of an episode, from its record alone. Never raises.

        Args:
            episode: The record; ``evidence.files`` holds the files.
            spec: Its task.
            contract: From :meth:`contract`.
            lost: Files that infrastructure lost, path -> why.
            shared_only: Ask only what the rules decide too.
        """
        end = time.monotonic() + self.config.deadline_s
        found: dict[str, Finding] = {}
        every = questions(spec, contract.tier, contract.focus)
        for stage in sorted({q.stage for q in every}):
            asked = [
                q
                for q in every
                if q.stage is stage
                and (not shared_only if q.scored else self.config.agreement or shared_only)
            ]
            found |= self._stage(episode, spec, contract, stage, asked, lost or {}, end)
        return found

    def _stage(
        self,
        episode: Episode,
        spec: TaskSpec,
        contract: JudgedContract,
        stage: Stage,
        asked: Sequence[Question],
        lost: dict[str, str],
        end: float,
    ) -> dict[str, Finding]:
        material = gather(episode, (path for q in asked for path in q.files), lost)
        found: dict[str, Finding] = {}
        open_: list[Question] = []
        for question in asked:
            subject = question.subject
            if subject in material.files:
                open_.append(question)
            elif subject in material.lost:
                found[question.id] = null(question.id, material.lost[subject])
            elif question.scored:
                # Nothing was written: that needs no reader, and no failure can make it null.
                why = material.absent[subject]
                found[question.id] = Finding(question.id, "unmet", by="host", message=why)
        if any(q.scored for q in open_) or (open_ and not any(q.scored for q in asked)):
            found |= self._asked(spec, contract, stage, open_, material, end)
        return {q.id: found[q.id] for q in asked if q.id in found}

    # ------------------------------------------------------------------------------------ asking

    def _asked(
        self,
        spec: TaskSpec,
        contract: JudgedContract,
        stage: Stage,
        asked: Sequence[Question],
        material: Material,
        end: float,
    ) -> dict[str, Finding]:
        about = {
            **contract.identity,
            "stage": stage.name,
            "questions": [q.id for q in asked],
            "files": material.digest,
            "sampling": key_of(self.config.model_dump(include={"temperature", "system", "body"})),
        }
        key, cache = key_of(about), self.cache
        kept = None if cache is None else cache.get(key)
        if kept is not None:
            try:
                known = read_answer(_as_answer(kept), "", asked, material.files)
            except JudgeError:
                known = {}
            if known and all(f.state != "null" for f in known.values()):
                return known
        try:
            found = self._persist(spec, asked, material, end)
        except Exception as error:  # whatever a server does, the rules' score stands
            why = str(error) if isinstance(error, JudgeError | ConfigError) else ""
            found = {q.id: null(q.id, why or type(error).__name__) for q in asked}
        if cache is not None and all(f.state != "null" for f in found.values()):
            cache.put(key, about, [_as_item(f) for f in found.values()])
        return found

    def _persist(
        self, spec: TaskSpec, asked: Sequence[Question], material: Material, end: float
    ) -> dict[str, Finding]:
        """Ask until every item has an answer, tries or time are gone."""
        rng = random.Random(self._seed if self._seed is not None else secrets.randbits(64))
        best: dict[str, Finding] = {}
        problem = JudgeError("The time for the judge was used up.")
        room = self.config.max_tokens
        for number in range(self.config.tries):
            if time.monotonic() >= end:
                break
            try:
                answer, cut = self._once(spec, asked, material, room, end)
                if cut:
                    room *= 2
                    raise JudgeError("The answer was cut off before its end.")
                for name, finding in answer.items():
                    if name not in best or best[name].state == "null":
                        best[name] = finding
                if all(finding.state != "null" for finding in best.values()):
                    return best
                problem = JudgeError("The answer left items open.")
            except JudgeError as error:
                problem = error
                if not error.retry:
                    break
            if number + 1 < self.config.tries and not self._pause(number, problem, end, rng):
                break
        return best or {q.id: null(q.id, str(problem)) for q in asked}

    def _once(
        self,
        spec: TaskSpec,
        asked: Sequence[Question],
        material: Material,
        max_tokens: int,
        end: float,
    ) -> tuple[dict[str, Finding], bool]:
        token = secrets.token_hex(12)
        said = messages(spec, asked, material, token)
        if not self.config.system:
            said = [{"role": "user", "content": "\n\n".join(part["content"] for part in said)}]

        def ask(more: Mapping[str, Any]) -> tuple[str, bool]:
            answer = complete(
                self.config,
                said,
                more=more,
                max_tokens=max_tokens,
                timeout_s=max(0.05, min(self.config.timeout_s, end - time.monotonic())),
                max_bytes=MAX_RESPONSE_BYTES,
            )
            if answer.finish == "length":
                return "", True
            if answer.text is None:
                raise JudgeError("The judge's response holds no text.")
            return answer.text, False

        try:
            text, cut = self._in_form(ask, answer_schema(asked, token))
        except EndpointError as error:
            raise JudgeError(
                f"The judge: {inert(str(error))}.", retry=error.retry, wait_s=error.wait_s
            ) from None
        return ({}, True) if cut else (read_answer(text, token, asked, material.files), False)

    def _in_form(
        self, ask: Callable[[Mapping[str, Any]], tuple[str, bool]], schema: Mapping[str, Any]
    ) -> tuple[str, bool]:
        """An answer that the server holds to a schema, where it can."""
        if self._structured:
            form = {"name": "answer", "strict": True, "schema": schema}
            try:
                return ask({"response_format": {"type": "json_schema", "json_schema": form}})
            except Refused as refusal:
                if not refusal.about_form:
                    raise
            # Many servers know no schemas: from now on the prompt alone asks for the form.
            answer = ask({})
            self._structured = False
            return answer
        return ask({})

    def _pause(self, number: int, problem: JudgeError, end: float, rng: random.Random) -> bool:
        """Wait before the next try; ``False`` where there is no time for it."""
        wait = jittered(number, self.config.backoff_s, _MAX_BACKOFF_S, rng)
        if problem.wait_s is not None:
            wait = max(wait, problem.wait_s)
        if wait > MAX_WAIT_S or time.monotonic() + wait >= end:
            return False
        time.sleep(wait)
        return True


def _as_item(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.item,
        "met": finding.state == "met",
        "file": finding.file,
        "line": finding.line,
        "quote": finding.quote,
        "reason": finding.message,
    }


def _as_answer(items: list[dict[str, Any]]) -> str:
    return json.dumps({"token": "", "items": items})


def make_judge(value: object) -> Judge | None:
    """The judge of an environment.

    Args:
        value: ``None``, a :class:`Judge`, a :class:`JudgeConfig`, or a mapping with ``base_url``
            and ``model``.

    Raises:
        ConfigError: If it can never answer; nothing is sent to find out.
    """
    if value is None:
        return None
    if isinstance(value, Judge):
        value.config.api_key()
        return value
    if isinstance(value, JudgeConfig):
        value.api_key()
        return Judge(value)
    if isinstance(value, Mapping):
        return Judge(JudgeConfig.checked(value))
    raise ConfigError(
        'judge must be None, a Judge, or a mapping like {"base_url": '
        f'"http://127.0.0.1:8000/v1", "model": "my-model"}}, got {shown(value)}.'
    )
