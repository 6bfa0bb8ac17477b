"""Requests to an OpenAI-compatible chat endpoint: retries, rates, and the books.

The API key is read from the environment for each request and goes into one header: it is never
kept, logged, or part of a message. Redirects are refused, so that it reaches no other host.
"""

from __future__ import annotations

import email.utils
import http.client
import ipaddress
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from bat_agent.agents.chat.config import ChatConfig
from bat_agent.agents.chat.ledger import Ledger, Spent
from bat_agent.agents.failures import ServiceError, StopEvaluation

MAX_RESPONSE_BYTES: Final = 1 << 24
_AGAIN: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_CHUNK: Final = 1 << 16
_REPEATED: Final = 200
_TOO_LONG: Final = ("context length", "context_length", "maximum context", "too long", "too many")


class Refused(Exception):
    """The server says that the request is wrong; the message is what it said."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"HTTP {status}: {said}")
        self.status, self.said = status, said

    @property
    def too_long(self) -> bool:
        """Whether it is about the length of the conversation."""
        return self.status == 413 or any(words in self.said.lower() for words in _TOO_LONG)

    @property
    def about_tools(self) -> bool:
        """Whether it may be about function calling."""
        return self.status in (400, 404, 415, 422, 501) and "tool" in self.said.lower()


class _Again(Exception):
    """The request gave no answer; asking again may help."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    Attributes:
        message: The assistant's message as it came.
        finish: Why it ended.
        prompt_tokens: As the server counted them, or ``None``.
        spent: What it added to the books.
    """

    message: Mapping[str, Any]
    finish: str
    prompt_tokens: int | None
    spent: Spent


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Endpoint:
    """A model at an address, shared by all episodes of an evaluation. Thread-safe.

    Args:
        config: Where, how, and at what price.
        ledger: The books; a new one if ``None``.
        rng: For the jitter.
    """

    def __init__(
        self, config: ChatConfig, ledger: Ledger | None = None, rng: random.Random | None = None
    ) -> None:
        self.config = config
        self.ledger = ledger or Ledger(config)
        self.text_only = config.tools == "text"
        self._rng = rng or random.Random()
        host = urlsplit(config.base_url).hostname or ""
        # What runs on this machine is never reached through a proxy, whatever is set.
        proxies = [urllib.request.ProxyHandler({})] if _is_local(host) else []
        self._opener = urllib.request.build_opener(_NoRedirect, *proxies)

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
        body: dict[str, Any] = {
            "model": config.model,
            "messages": list(messages),
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "stream": False,
        }
        if tools is not None:
            body |= {"tools": list(tools), "tool_choice": "auto"}
        body |= config.body
        data = json.dumps({k: v for k, v in body.items() if v is not None}).encode()
        why = ""
        for attempt in range(config.tries):
            try:
                with self.ledger.request(prompt_tokens, config.max_tokens) as ticket:
                    answer = _read_answer(self._post(data))
                    message, finish, tokens_in, tokens_out = answer
                    length = len(json.dumps(message)) // 4 + 1
                    self.ledger.settle(ticket, tokens_in, tokens_out, length)
                return Completion(message, finish, tokens_in, ticket.spent)
            except _Again as error:
                why = str(error)
                self.ledger.failed()
                if attempt + 1 < config.tries:
                    self._back_off(attempt, error.wait_s)
        raise ServiceError(f"{config.model} gave no answer in {config.tries} tries; last: {why}.")

    def _back_off(self, attempt: int, asked_s: float | None) -> None:
        config = self.config
        if asked_s is not None:
            # All episodes share the server's patience; jitter keeps them from coming back at once.
            self.ledger.hold_back(min(asked_s, config.max_wait_s))
            time.sleep(self._rng.uniform(0, min(config.backoff_s, 1.0)))
            return
        longest = min(config.backoff_s * 2**attempt, config.max_wait_s)
        time.sleep(self._rng.uniform(longest / 2, longest))

    def _post(self, data: bytes) -> bytes:
        config, key = self.config, self.config.api_key()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        url = f"{config.base_url}/chat/completions"
        request = urllib.request.Request(url, data=data, headers=headers, method="POST")
        end = time.monotonic() + config.timeout_s
        try:
            with self._opener.open(request, timeout=config.timeout_s) as response:
                return _read_body(response, end)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error, key) from None
        except urllib.error.URLError as error:
            raise _Again(f"no connection ({type(error.reason).__name__})") from None
        except (OSError, http.client.HTTPException) as error:
            raise _Again(f"the connection broke ({type(error).__name__})") from None


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_body(response: http.client.HTTPResponse, end: float) -> bytes:
    """The body, bounded in size and time: a timeout of the socket alone is met by any drip."""
    parts, size = [], 0
    while part := response.read1(_CHUNK):
        parts.append(part)
        size += len(part)
        if size > MAX_RESPONSE_BYTES:
            raise _Again(f"a response of more than {MAX_RESPONSE_BYTES} bytes")
        if time.monotonic() > end:
            raise TimeoutError
    announced = response.headers.get("Content-Length", "")
    if announced.isdigit() and int(announced) != size:
        raise _Again("the response was cut off")
    return b"".join(parts)


def _refusal(error: urllib.error.HTTPError, key: str | None) -> Exception:
    if error.code in (401, 403, 407):
        # Such responses like to repeat the key.
        return StopEvaluation(
            f"The endpoint refused the API key (HTTP {error.code}). Check the variable that holds "
            "it; the same command goes on."
        )
    try:
        said = " ".join(error.read(4096).decode("utf-8", "replace").split())
    except (OSError, http.client.HTTPException):
        said = ""
    if key is not None:
        said = said.replace(key, "(key)")
    if error.code in _AGAIN:
        return _Again(f"HTTP {error.code}", _wait(error.headers.get("Retry-After")))
    return Refused(error.code, said[:_REPEATED])


def _wait(header: str | None) -> float | None:
    """Seconds that a Retry-After header asks for: a number or a date."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < float("inf") else None


def _read_answer(data: bytes) -> tuple[dict[str, Any], str, int | None, int | None]:
    try:
        value = json.loads(data)
        choice = value["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        usage = value.get("usage") or {}
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise _Again("the response is no chat completion") from None
    if not isinstance(message, dict):
        raise _Again("the response is no chat completion")
    tokens = [
        c if isinstance(c, int) and not isinstance(c, bool) and c >= 0 else None for c in counts
    ]
    return message, str(finish or ""), tokens[0], tokens[1]
