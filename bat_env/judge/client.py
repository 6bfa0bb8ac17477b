"""One request to an OpenAI-compatible chat endpoint, over the standard library.

The API key is read from the environment for each request and goes into one header: it is never
kept, logged, or part of a message. Redirects are refused, so that it reaches no other host.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from email.message import Message as Headers
from typing import Any, Final

from bat_env.errors import JudgeError
from bat_env.judge.config import JudgeConfig
from bat_env.judge.fence import shown

MAX_RESPONSE_BYTES: Final = 1 << 20
MAX_WAIT_S: Final = 120.0
"""A server that asks for a longer wait is not waited for."""

_AGAIN: Final = frozenset({408, 409, 425, 429})
_KEY_PROBLEMS: Final = frozenset({401, 403, 407})
_FORM_PROBLEMS: Final = frozenset({400, 404, 415, 422, 501})
_CHUNK: Final = 1 << 16
_REPEATED: Final = 160


class RefusedForm(JudgeError):
    """The server refused a request because of what is in it."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def complete(
    config: JudgeConfig,
    messages: Sequence[Mapping[str, str]],
    *,
    schema: Mapping[str, Any] | None,
    max_tokens: int,
    timeout_s: float,
) -> tuple[str, bool]:
    """Ask once.

    Args:
        config: Where.
        messages: Chat messages.
        schema: JSON schema that the server shall hold the answer to, or ``None``.
        max_tokens: Of the answer.
        timeout_s: For everything, from the connection to the last byte.

    Returns:
        Text of the answer, and whether it was cut because it was too long.

    Raises:
        RefusedForm: If the server says that the request is wrong.
        JudgeError: On everything else; ``retry`` says whether asking again may help.
    """
    body: dict[str, Any] = {
        "model": config.model,
        "messages": list(messages),
        "temperature": config.temperature,
        "max_tokens": max_tokens,
        "stream": False,
    }
    if schema is not None:
        form = {"name": "answer", "strict": True, "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    body |= config.body
    data = json.dumps({k: v for k, v in body.items() if v is not None}).encode()
    return _answer(_post(config, data, timeout_s))


def _post(config: JudgeConfig, data: bytes, timeout_s: float) -> bytes:
    key = config.api_key()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    url = f"{config.base_url}/chat/completions"
    request = urllib.request.Request(url, data=data, headers=headers, method="POST")
    # A judge on this machine is never reached through a proxy, whatever the environment says.
    proxies = [urllib.request.ProxyHandler({})] if config.local else []
    opener = urllib.request.build_opener(_NoRedirect, *proxies)
    end = time.monotonic() + timeout_s
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return _read(response, end)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error, key) from None
    except TimeoutError:
        raise JudgeError(f"The judge gave no answer within {timeout_s:g} s.") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise JudgeError(f"The judge gave no answer within {timeout_s:g} s.") from None
        why = type(error.reason).__name__
        raise JudgeError(f"The judge at {config.base_url} cannot be reached ({why}).") from None
    except (OSError, http.client.HTTPException) as error:
        why = type(error).__name__
        raise JudgeError(f"The connection to the judge broke ({why}).") from None


def _read(response: http.client.HTTPResponse, end: float) -> bytes:
    """The body, bounded in size and time: a timeout of the socket alone is met by any drip."""
    parts, size = [], 0
    while part := response.read1(_CHUNK):
        parts.append(part)
        size += len(part)
        if size > MAX_RESPONSE_BYTES:
            raise JudgeError(f"The judge's response is larger than {MAX_RESPONSE_BYTES} bytes.")
        if time.monotonic() > end:
            raise TimeoutError
    data = b"".join(parts)
    announced = response.headers.get("Content-Length", "")
    if announced.isdigit() and int(announced) != size:
        raise JudgeError("The judge's response was cut off.")
    return data


def _refusal(error: urllib.error.HTTPError, key: str | None) -> JudgeError:
    if error.code in _KEY_PROBLEMS:
        # Such responses like to repeat the key.
        return JudgeError(f"The judge refused the API key (HTTP {error.code}).", retry=False)
    try:
        said = error.read(2048).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        said = ""
    if key is not None:
        said = said.replace(key, "(key)")
    text = f"The judge answered HTTP {error.code}: {shown(' '.join(said.split())[:_REPEATED])}"
    if error.code in _AGAIN or (error.code >= 500 and error.code != 501):
        return JudgeError(text, wait_s=_wait(error.headers))
    if error.code in _FORM_PROBLEMS:
        return RefusedForm(text, retry=False)
    return JudgeError(text, retry=False)


def _wait(headers: Headers) -> float | None:
    """Seconds of a Retry-After header; dates are not read."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _answer(data: bytes) -> tuple[str, bool]:
    try:
        value = json.loads(data)
        choice = value["choices"][0]
        content = choice["message"]["content"]
        reason = choice.get("finish_reason")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise JudgeError("The judge's response is no chat completion.") from None
    if reason == "length":
        return content if isinstance(content, str) else "", True
    if not isinstance(content, str) or not content.strip():
        raise JudgeError("The judge's response holds no text.")
    return content, False
