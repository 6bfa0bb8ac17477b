"""An LLM that words briefs, behind any OpenAI-compatible endpoint. What it says is checked.

Its text stands for a brief only if every fact is still there, none is new, and nothing held out is
in it; else it is told what was wrong, and after that the rule-based writer is used instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pydantic import Field

from bat_env.bank.state import digest_of
from bat_env.bank.wording import problems, sections
from bat_env.completions import EndpointConfig, EndpointError, complete
from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import TaskSpec

KEY_VARIABLE: Final = "BAT_TEACHER_API_KEY"
"""Environment variable of the teacher's API key, if it asks for one."""
_RULES: Final = """\
You word the brief of a fictional medical-imaging task in another way, as another institution would.
Keep the meaning of every sentence. Keep every name, number, path, file name, case id and stage id
(S1 to S5, E2E) exactly as it is, and add none. Keep every line that starts with '## ' as a heading
that starts with '## '; you may word it in another way. Answer with the text alone."""
_AGAIN: Final = "This cannot be used: {why}. Word the same brief again."
_SHOWN: Final = 6


@dataclass(frozen=True)
class Worded:
    """What came of asking.

    Attributes:
        text: The worded brief, or ``""`` if none could be used.
        refused: Why earlier answers were not used, in order.
    """

    text: str
    refused: tuple[str, ...]


class TeacherConfig(EndpointConfig):
    """One OpenAI-compatible teacher. It holds the name of the key's variable, never the key."""

    owner: ClassVar[str] = "teacher"
    kind: ClassVar[str] = "key of the teacher"
    key_variable: ClassVar[str] = KEY_VARIABLE

    max_tokens: int = Field(4096, ge=64, le=65536, description="Of one answer.")
    tries: int = Field(2, ge=1, le=10, description="Requests for one brief.")


class Teacher:
    """Words briefs.

    Args:
        config: Where it answers.
    """

    def __init__(self, config: TeacherConfig | Mapping[str, Any]) -> None:
        if not isinstance(config, TeacherConfig):
            config = TeacherConfig.checked(config)
        self.config = config

    @property
    def name(self) -> dict[str, str]:
        """What provenance says of it: its model and the digest of what it is told."""
        return {"model": self.config.model, "rules": digest_of([_RULES, _AGAIN])[:16]}

    def word(
        self,
        plain: str,
        spec: TaskSpec,
        instance: Instance,
        leaks: Callable[[bytes], Iterable[str]],
    ) -> Worded:
        """Ask for other words until an answer can be used.

        Args:
            plain: The brief as the task words it.
            spec: The task's contract.
            instance: What was drawn of it.
            leaks: What held-out material a text holds.

        Raises:
            ConfigError: If the variable of its key is set to no key.
        """
        prose = "\n".join(str(part) for part in sections(plain) if not part.kept)
        kept = "\n".join(str(part) for part in sections(plain) if part.kept)
        messages = [
            {"role": "system", "content": _RULES},
            {"role": "user", "content": prose.strip()},
        ]
        refused: list[str] = []
        for _ in range(self.config.tries):
            try:
                answer = complete(self.config, messages)
            except EndpointError as error:
                refused.append(f"no answer: {error}")
                if not error.retry:
                    break
                continue
            cut, said = answer.finish == "length", answer.text or ""
            if not said:
                refused.append("no answer: no text")
                continue
            text = f"{said.strip()}\n\n{kept}".rstrip("\n") + "\n"
            wrong = ["was cut off"] if cut else problems(plain, text, spec, instance)
            # What leaked is not repeated, neither to the teacher nor in the bank.
            wrong += ["held-out material" for _ in leaks(said.encode())][:1]
            if not wrong:
                return Worded(text, tuple(refused))
            why = "; ".join(wrong[:_SHOWN])
            refused.append(why)
            messages = [
                *messages[:2],
                {"role": "assistant", "content": said},
                {"role": "user", "content": _AGAIN.format(why=why)},
            ]
        return Worded("", tuple(refused))
