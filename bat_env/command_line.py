"""How both commands end: every mistake of the user is one plain line on stderr, and exit code 2."""

from __future__ import annotations

import difflib
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

import typer

from bat_env.disk import is_full
from bat_env.errors import BatError, DiskFullError
from bat_env.plain import visible

USER_ERROR: Final = 2
INTERRUPTED: Final = 130
TERMINATED: Final = 143
"""Exit statuses; the last two are the shell's convention for Ctrl-C and for SIGTERM."""

PRESSED_TWICE_S: Final = 0.5
"""One Ctrl-C may come twice within it: from the terminal, and from who started us. Seconds."""


def run(
    app: typer.Typer,
    program: str,
    *,
    interrupted: str = "interrupted.",
    status: Callable[[], int] = lambda: INTERRUPTED,
) -> NoReturn:
    """Run a command line and leave the process.

    Args:
        app: The commands.
        program: Name of the command, for messages.
        interrupted: What to say after Ctrl-C.
        status: Exit status after that.
    """
    try:
        code = app(standalone_mode=False, prog_name=program)
    except BatError as error:
        fail(str(error))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            raise SystemExit(1) from None  # rich's way to stop when nobody reads on
        # The commands end by other means: code that is not ours must not end them as a success.
        print(f"{program}: a plug-in ended the process (SystemExit {error.code})", file=sys.stderr)
        raise SystemExit(1) from None
    except Exception as error:
        # Typer brings its own copy of click, or none: known by what it does, not by its class.
        if "NoArgsIsHelpError" in _kinds(error):
            error.show()  # type: ignore[attr-defined]
            raise SystemExit(USER_ERROR) from None
        if "Abort" in _kinds(error):
            code = INTERRUPTED
        elif hasattr(error, "format_message"):
            fail(usage(error, program))
        elif is_full(error):
            fail(str(DiskFullError(getattr(error, "filename", None) or "the output")))
        else:
            raise
    if code == INTERRUPTED:
        impatient()
        print(f"{program}: {interrupted}", file=sys.stderr)
        raise SystemExit(status())
    raise SystemExit(code or 0)


def impatient() -> None:
    """From now on Ctrl-C leaves at once: what is cleaned up at exit must not end in a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: leave())


def leave() -> NoReturn:
    """End this process now. Sandboxes end with it; what a daemon holds goes at the next start."""
    os.write(2, b"left at once.\n")
    os._exit(INTERRUPTED)


def fail(message: str) -> NoReturn:
    """Say what is wrong in one line, and leave."""
    print(f"error: {visible(' '.join(message.split()))}", file=sys.stderr)
    raise SystemExit(USER_ERROR) from None


def usage(error: Any, program: str) -> str:
    """What was expected on the command line, what came, and what to do.

    Args:
        error: Of Typer, whose own text is a box of several lines.
        program: What to name where the error does not say which command it is about.
    """
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else program
    see = f"see `{where} --help`"
    text = str(getattr(error, "message", "") or error.format_message()).strip()
    kinds = _kinds(error)
    if "NoSuchOption" in kinds:
        known = _options(context)
        return f"expected an option of `{where}`, got {error.option_name!r}; " + _near(
            error.option_name, known, see
        )
    if "MissingParameter" in kinds:
        name = _name(error)
        return f"expected {name}, got none; give {name}, or {see}"
    if "BadParameter" in kinds:
        return f"{_bad_value(error, text, _name(error))}; give another value, or {see}"
    command = re.match(r"No such command '([^']*)'", text)
    if command:
        names = sorted(getattr(context.command, "commands", {})) if context is not None else []
        return f"expected a command of `{where}`, got {command[1]!r}; " + _near(
            command[1], names, see
        )
    extra = re.match(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", text)
    if extra:
        return f"expected no further argument, got {extra[1]!r}; leave it out, or {see}"
    lacking = re.match(r"Option '(.*)' requires (?:an argument|\d+ arguments)", text)
    if lacking:
        return f"expected a value for {lacking[1]}, got none; give one, or {see}"
    flag = re.match(r"Option '(.*)' does not take a value", text)
    if flag:
        return f"expected no value for {flag[1]}, got one; leave it out, or {see}"
    return f"{text.rstrip('.')}; {see}"


def _kinds(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _options(context: Any) -> list[str]:
    if context is None:
        return []
    parameters = context.command.get_params(context)
    return [name for p in parameters for name in p.opts if name.startswith("--")]


def _near(given: str, known: list[str], see: str) -> str:
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}? Else {see}" if close else see


def _name(error: Any) -> str:
    """The option or argument as it is written on the command line."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return str(getattr(error, "param_hint", None) or "a value").strip("'\"")
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(parameter.opts[0])


def _bad_value(error: BaseException, text: str, name: str) -> str:
    checked: Any = error.__cause__ or error.__context__
    if hasattr(checked, "errors"):  # pydantic checks the values of newer versions of Typer
        first = checked.errors()[0]
        text = f"{first['input']!r} is not {first['msg'].removeprefix('Input should be ')}"
    wrong = re.match(r"(.*?) is not (.*?)(?:, .*)?\.?$", text)
    if not wrong:
        return f"expected a valid {name}, got this: {text.rstrip('.')}"
    kind = re.sub(r"^(?:an? )?valid ", "a ", wrong[2]).replace("a int", "an int")
    if not kind.startswith(("a ", "an ")):
        kind = f"a value {kind}"
    return f"expected {kind} for {name}, got {wrong[1]}"
