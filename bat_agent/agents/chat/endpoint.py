"""A model at an address, shared by all episodes of an evaluation: retries, rates, and the books."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bat_agent.agents.chat.config import ChatConfig
from bat_agent.agents.chat.ledger import Ledger, Spent
from bat_agent.agents.failures import ServiceError, StopEvaluation
from bat_env.completions import Answer, EndpointError, KeyRefused, Refused, complete, jittered
from bat_env.plain import counted


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    Attributes:
        answer: As it came.
        spent: What it added to the books.
    """

    answer: Answer
    spent: Spent


class Endpoint:
    """Asks until an answer comes. Thread-safe.

    Args:
        config: Where, how, and at what price.
        ledger: The books; a new one if ``None``.
        rng: For the jitter.
    """

    def __init__(
        self, config: ChatConfig, ledger: Ledger | None = None, rng: random.Random | None = None
    ) -> None:
        self.config = config
        self._stopped = threading.Event()
        self.ledger = ledger or Ledger(config, sleep=self._pause)
        self.text_only = config.tools == "text"
        self._rng = rng or random.Random()

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        prompt_tokens: int,
    ) -> Completion:
        """One answer, after as many tries as it takes.

        Args:
            messages: The conversation.
            tools: Function schemas, or ``None`` for plain text.
            prompt_tokens: Estimate of the conversation's length.

        Raises:
            Refused: If the server finds the request wrong.
            ServiceError: If no try gave an answer.
            StopEvaluation: If the key is refused or the cost limit is near.
        """
        config = self.config
        more = {} if tools is None else {"tools": list(tools), "tool_choice": "auto"}
        why = ""
        for attempt in range(config.tries):
            self._pause(0)
            try:
                with self.ledger.request(prompt_tokens, config.max_tokens) as ticket:
                    answer = complete(config, messages, more=more)
                    length = len(json.dumps(answer.message)) // 4 + 1
                    tokens = (answer.prompt_tokens, answer.completion_tokens)
                    self.ledger.settle(ticket, *tokens, length)
                return Completion(answer, ticket.spent)
            except Refused:
                raise
            except KeyRefused as error:
                raise StopEvaluation(
                    f"{config.model}: {error}. Check the variable that holds the key; the same "
                    "command goes on."
                ) from None
            except EndpointError as error:
                why = str(error)
                self.ledger.failed()
                if attempt + 1 < config.tries:
                    self._back_off(attempt, error.wait_s)
        raise ServiceError(
            f"{config.model} gave no answer in {counted(config.tries, 'request')}; last: {why}."
        )

    def interrupt(self) -> None:
        """End the waiting of all episodes; a request that is under way comes to its own end."""
        self._stopped.set()

    def _pause(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise StopEvaluation(f"{self.config.model} was interrupted.")

    def _back_off(self, attempt: int, asked_s: float | None) -> None:
        config = self.config
        if asked_s is not None:
            # All episodes share the server's patience; jitter keeps them from coming back at once.
            self.ledger.hold_back(min(asked_s, config.max_wait_s))
            self._pause(self._rng.uniform(0, min(config.backoff_s, 1.0)))
            return
        self._pause(jittered(attempt, config.backoff_s, config.max_wait_s, self._rng))
