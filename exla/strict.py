"""What happens when exla itself fails: the user's program must not.

A pass that raises costs its candidate, with a warning that names the pass; where no candidate is left, the program runs
as `jax.jit` compiles it if that obeys the limit. `EXLA_STRICT=1` makes every such failure an error: tests run so.
What `jax.jit` fails at too is no failure of exla's, and is raised as `jax.jit` raises it.
"""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
from collections.abc import Iterator

from exla.errors import ExlaWarning, MeasureError, MemoryLimitError


class NotOurs(Exception):
    """Carries what `jax.jit` raises for the program as it is, its cause, past what tolerates failures of exla's."""


@contextlib.contextmanager
def as_jax_raises() -> Iterator[None]:
    """Raise what a `NotOurs` carries."""
    try:
        yield
    except NotOurs as carrier:
        raise carrier.__cause__ or carrier from None


def is_strict() -> bool:
    """Whether exla's own failures are errors."""
    return os.environ.get("EXLA_STRICT", "") not in ("", "0")


@contextlib.contextmanager
def tolerate(doing: str) -> Iterator[None]:
    """Turn an internal failure into a warning that names the failing pass; what is none stays an error.

    Args:
      doing: what is being attempted, for the message.
    """
    try:
        yield
    except (MemoryLimitError, MeasureError, NotOurs):
        raise
    except Exception as error:
        if is_strict():
            raise
        warnings.warn(
            f"exla failed in {failing_pass(error)} while {doing}: {type(error).__name__}: {error}. The result is not "
            "affected; please report it. EXLA_STRICT=1 makes this an error",
            ExlaWarning,
            stacklevel=3,
        )


def failing_pass(error: BaseException) -> str:
    """The innermost module of exla's in a traceback, as "exla.passes.split.apply (line 81)"."""
    root = os.path.dirname(os.path.abspath(__file__))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(root)]
    if not frames:
        return "exla"
    module = os.path.relpath(frames[-1].filename, os.path.dirname(root)).removesuffix(".py").replace(os.sep, ".")
    return f"{module} (line {frames[-1].lineno})"
