"""One request to an OpenAI-compatible chat endpoint, over the standard library.

The API key is read from the environment for each request and goes into one header: it is never
kept, logged, or part of a message. Redirects are refused, so that it reaches no other host.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bat_env.completions.config import EndpointConfig
from bat_env.errors import BatError

MAX_RESPONSE_BYTES: Final = 1 << 24

_AGAIN: Final = frozenset({408, 409, 425, 429})
_KEY_PROBLEMS: Final = frozenset({401, 403, 407})
_FORM_PROBLEMS: Final = frozenset({400, 404, 415, 422, 501})
_TOO_LONG: Final = ("context length", "context_length", "maximum context", "too long", "too many")
_CHUNK: Final = 1 << 16
_REPEATED: Final = 200


class EndpointError(BatError):
    """A request gave no answer; the message says why in a few words.

    Attributes:
        retry: Whether asking again may help.
        wait_s: How long the server asked to wait, seconds, or ``None``.
    """

    def __init__(self, why: str, *, retry: bool = True, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.retry, self.wait_s = retry, wait_s


class KeyRefused(EndpointError):
    """The server does not accept the API key."""


class Refused(EndpointError):
    """The server says that the request is wrong; ``said`` is what it said, clipped."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(_status(status, said), retry=False)
        self.status, self.said = status, said

    @property
    def about_form(self) -> bool:
        """Whether another form of the same request may be taken."""
        return self.status in _FORM_PROBLEMS

    @property
    def about_tools(self) -> bool:
        """Whether it may be about function calling."""
        return self.about_form and "tool" in self.said.lower()

    @property
    def too_long(self) -> bool:
        """Whether it is about the length of the conversation."""
        return self.status == 413 or any(words in self.said.lower() for words in _TOO_LONG)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, as it came.

    Attributes:
        message: The assistant's message.
        finish: Why it ended; "" where the server does not say.
        prompt_tokens, completion_tokens: As the server counted them, or ``None``.
    """

    message: Mapping[str, Any]
    finish: str
    prompt_tokens: int | None
    completion_tokens: int | None

    @property
    def text(self) -> str | None:
        """Its text; ``None`` where it has none that says anything."""
        content = self.message.get("content")
        return content if isinstance(content, str) and content.strip() else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def complete(
    config: EndpointConfig,
    messages: Sequence[Mapping[str, Any]],
    *,
    more: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    timeout_s: float | None = None,
    max_bytes: int = MAX_RESPONSE_BYTES,
) -> Answer:
    """Ask once.

    Args:
        config: Where, and how a request looks. Its ``body`` wins over the rest.
        messages: The conversation.
        more: Further keys of this request.
        max_tokens: Of the answer, instead of the configured.
        timeout_s: For everything, from the connection to the last byte, instead of the configured.
        max_bytes: Of the response.

    Raises:
        KeyRefused: If the API key is not accepted.
        Refused: If the server says that the request is wrong.
        EndpointError: If no whole answer came; ``retry`` says whether asking again may help.
    """
    body: dict[str, Any] = {
        "model": config.model,
        "messages": list(messages),
        "temperature": config.temperature,
        "max_tokens": config.max_tokens if max_tokens is None else max_tokens,
        "stream": False,
        **(more or {}),
        **config.body,
    }
    data = json.dumps({k: v for k, v in body.items() if v is not None}).encode()
    wait_s = config.timeout_s if timeout_s is None else timeout_s
    return _read_answer(_post(config, data, wait_s, max_bytes))


def jittered(attempt: int, first_s: float, longest_s: float, rng: random.Random) -> float:
    """Seconds to wait after failure number ``attempt`` (from 0): doubled each time, with jitter."""
    return min(longest_s, first_s * 2.0**attempt) * rng.uniform(0.5, 1.0)


def _post(config: EndpointConfig, data: bytes, timeout_s: float, max_bytes: int) -> bytes:
    key = config.api_key()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    url = f"{config.base_url}/chat/completions"
    request = urllib.request.Request(url, data=data, headers=headers, method="POST")
    # What runs on this machine is never reached through a proxy, whatever the environment says.
    proxies = [urllib.request.ProxyHandler({})] if config.local else []
    opener = urllib.request.build_opener(_NoRedirect, *proxies)
    end = time.monotonic() + timeout_s
    late = f"no answer within {timeout_s:g} s"
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return _read_body(response, end, max_bytes)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error, key) from None
    except TimeoutError:
        raise EndpointError(late) from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise EndpointError(late) from None
        why = type(error.reason).__name__
        raise EndpointError(f"{config.base_url} cannot be reached ({why})") from None
    except (OSError, http.client.HTTPException) as error:
        raise EndpointError(f"the connection broke ({type(error).__name__})") from None


def _read_body(response: http.client.HTTPResponse, end: float, max_bytes: int) -> bytes:
    """The body, bounded in size and time: a timeout of the socket alone is met by any drip."""
    parts, size = [], 0
    while part := response.read1(_CHUNK):
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise EndpointError(f"the response is larger than {max_bytes} bytes")
        if time.monotonic() > end:
            raise TimeoutError
    announced = response.headers.get("Content-Length", "")
    if announced.isdigit() and int(announced) != size:
        raise EndpointError("the response was cut off")
    return b"".join(parts)


def _refusal(error: urllib.error.HTTPError, key: str | None) -> EndpointError:
    if error.code in _KEY_PROBLEMS:
        # Such responses like to repeat the key.
        return KeyRefused(f"the server refused the API key (HTTP {error.code})", retry=False)
    try:
        said = " ".join(error.read(4096).decode("utf-8", "replace").split())
    except (OSError, http.client.HTTPException):
        said = ""
    if key is not None:
        said = said.replace(key, "(key)")
    if error.code in _AGAIN or (error.code >= 500 and error.code != 501):
        wait_s = _wait(error.headers.get("Retry-After"))
        return EndpointError(_status(error.code, said), wait_s=wait_s)
    return Refused(error.code, said[:_REPEATED])


def _status(code: int, said: str) -> str:
    return f"HTTP {code}: {said[:_REPEATED]}" if said else f"HTTP {code}"


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


def _read_answer(data: bytes) -> Answer:
    try:
        value = json.loads(data)
        choice = value["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        usage = value.get("usage") or {}
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise EndpointError("the response is no chat completion") from None
    if not isinstance(message, dict):
        raise EndpointError("the response is no chat completion")
    tokens = [
        c if isinstance(c, int) and not isinstance(c, bool) and c >= 0 else None for c in counts
    ]
    return Answer(message, str(finish or ""), tokens[0], tokens[1])
