"""How every command says that it failed; loads no JAX.

    raise UsageError("--keep-best must be 0 or more, not -1")

A command raises, and `exla.cli` prints what it raised: one message on standard error, or with --json one line on
standard output, {"error": {"kind", "message", "source"}}. Exit codes: 2 for what was not understood, else 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from exla.errors import ExlaError, OptionError


class UsageError(Exception):
    """What the user wrote is not understood; the message says what was expected. Exit code 2."""


EXPECTED = (ExlaError, UsageError, OSError, ImportError, KeyboardInterrupt)
"""What is no bug of exla's, where exla's own code raises it."""


@contextlib.contextmanager
def not_done(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of some kinds are about what is on disk: understood, and not done."""
    try:
        yield
    except kinds as error:
        raise ExlaError(str(error)) from error


def is_understood(error: BaseException) -> bool:
    """Whether something failed that was understood."""
    return not isinstance(error, (UsageError, OptionError))


def say(
    error: BaseException,
    *,
    as_json: bool,
    source: str = "",
    details: Mapping[str, Any] | None = None,
    with_traceback: bool = False,
) -> int:
    """Print an error.

    Args:
      error: any.
      as_json: whether it is a line on standard output.
      source: the user's line that it comes from, "file.py:12 (function)".
      details: what the line holds besides.
      with_traceback: whether to print where it was raised, on standard error, if it was understood.

    Returns:
      The exit code.

    Raises:
      BrokenPipeError: if nobody reads standard output any more.
    """
    if isinstance(error, BrokenPipeError) and nobody_reads():  # another pipe of the user's is an error like others
        raise error
    if with_traceback and is_understood(error):
        traceback.print_exception(error)
    message = str(error) or ("interrupted" if isinstance(error, KeyboardInterrupt) else "")
    if as_json:
        print(json.dumps({"error": {**(details or {}), "kind": _kind(error), "message": message, "source": source}}))
    else:
        kind = "" if isinstance(error, (ExlaError, UsageError, KeyboardInterrupt)) else f"{_kind(error)}: "
        where = f"\n  at {source}" if source and not isinstance(error, ExlaError) else ""
        print(f"exla: {kind}{message}{where}", file=sys.stderr)
    return 1 if is_understood(error) else 2


def nobody_reads() -> bool:
    """Whether standard output is a pipe whose other end is closed."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # what went wrong is reported unasked
    except (AttributeError, OSError):  # there is none, or it is no file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def hang_up() -> int:
    """End quietly where nobody reads standard output any more, as in `exla targets | head -1`; returns the exit code.

    Python flushes once more at its end: what is left goes nowhere (Python's documentation, "Note on SIGPIPE").
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _kind(error: BaseException) -> str:
    return type(error).__name__
