"""What was spent, and how fast: shared by all episodes of one evaluation."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bat_agent.agents.chat.config import ChatConfig
from bat_agent.agents.failures import StopEvaluation

_WINDOW_S: Final = 60.0


@dataclass(slots=True)
class Spent:
    """Sums over requests.

    Attributes:
        requests: Answers that came whole.
        failures: Requests that gave none; what a server charges for them is not known.
        estimated: Answers whose tokens the server did not count; they are estimated.
        prompt_tokens, completion_tokens: Of the answers.
        cost: US dollars, by the prices given.
    """

    requests: int = 0
    failures: int = 0
    estimated: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    def add(self, other: Spent) -> None:
        """Add another sum to this one."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Ticket:
    """One request: its reservation, and what it came to.

    Attributes:
        prompt, answer: Tokens reserved; an answer's usage takes their place.
        spent: What it added.
    """

    prompt: int
    answer: int
    spent: Spent = field(default_factory=Spent)


class Ledger:
    """Counts tokens and money, and lets requests pass at the allowed rate.

    Args:
        config: Prices and limits.
        clock: Seconds that only grow.
        sleep: Waits.
    """

    def __init__(
        self,
        config: ChatConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._config, self._clock, self._sleep = config, clock, sleep
        self._lock = threading.Lock()
        self._spent = Spent()
        self._reserved = 0.0
        self._passed: deque[tuple[float, list[int]]] = deque()
        self._closed_until = 0.0

    def usage(self) -> dict[str, Any]:
        """The sums so far, those of earlier starts included."""
        with self._lock:
            return asdict(self._spent)

    def restore(self, usage: Mapping[str, Any]) -> None:
        """Go on from the sums of an earlier start."""
        with self._lock:
            self._spent.add(Spent(**usage))

    def price(self, prompt: int, answer: int) -> float:
        """US dollars of so many tokens."""
        config = self._config
        return (prompt * config.price_in + answer * config.price_out) / 1e6

    def hold_back(self, seconds: float) -> None:
        """Let no request pass for a while: the server asked for it."""
        with self._lock:
            self._closed_until = max(self._closed_until, self._clock() + seconds)

    @contextmanager
    def request(self, prompt: int, answer: int) -> Iterator[Ticket]:
        """Wait for a place, and keep the books of one request.

        Args:
            prompt: Estimated tokens of the prompt.
            answer: Most tokens of the answer.

        Raises:
            StopEvaluation: If the answer might cost more than what is left.
        """
        worst = self.price(prompt, answer)
        self._reserve(worst)
        taken = [prompt]
        try:
            self._wait(taken, prompt)
            ticket = Ticket(prompt, answer)
            yield ticket
            taken[0] = ticket.spent.prompt_tokens + ticket.spent.completion_tokens
        finally:
            with self._lock:
                self._reserved -= worst

    def settle(self, ticket: Ticket, prompt: int | None, answer: int | None, text: int) -> None:
        """Book a whole answer.

        Args:
            ticket: Of its request.
            prompt: Tokens as the server counted them, or ``None``.
            answer: The same of the answer.
            text: Estimated tokens of the answer, for a server that counts none.
        """
        known = prompt is not None and answer is not None
        tokens_in = ticket.prompt if prompt is None else prompt
        tokens_out = text if answer is None else answer
        cost = self.price(tokens_in, tokens_out)
        ticket.spent = Spent(1, 0, 0 if known else 1, tokens_in, tokens_out, cost)
        with self._lock:
            self._spent.add(ticket.spent)

    def failed(self) -> None:
        """Book a request without an answer."""
        with self._lock:
            self._spent.failures += 1

    def _reserve(self, worst: float) -> None:
        limit = self._config.max_cost
        while True:
            with self._lock:
                spent = self._spent.cost
                if limit is not None and spent + worst > limit:
                    raise StopEvaluation(
                        f"Stopped before the cost limit: {spent:.4f} of {limit:g} USD are spent, "
                        f"and the next answer may cost {worst:.4f}. The same command with a higher "
                        "--max-cost goes on."
                    )
                if limit is None or spent + self._reserved + worst <= limit:
                    self._reserved += worst
                    return
            # Others' answers may cost less than what was put aside for them.
            self._sleep(0.05)

    def _wait(self, taken: list[int], prompt: int) -> None:
        while True:
            with self._lock:
                pause = self._pause(prompt)
                if pause <= 0:
                    self._passed.append((self._clock(), taken))
                    return
            self._sleep(pause)

    def _pause(self, prompt: int) -> float:
        """Seconds until the next request may pass; 0 for now."""
        now, config = self._clock(), self._config
        while self._passed and self._passed[0][0] <= now - _WINDOW_S:
            self._passed.popleft()
        if now < self._closed_until:
            return self._closed_until - now
        if not self._passed:
            return 0.0
        tokens = sum(taken[0] for _, taken in self._passed)
        full = config.rpm is not None and len(self._passed) >= config.rpm
        full |= config.tpm is not None and tokens + prompt > config.tpm
        return max(0.01, self._passed[0][0] + _WINDOW_S - now) if full else 0.0
