"""Ahead of time: `exla.compile` for a device that is attached or not, and `exla.load` of what `exla.save` kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from exla.api import JitFunction, check_arguments_of_jit, jit
from exla.errors import MemoryLimitError, PlanError, ReplayMiss
from exla.options import Options
from exla.passes.replace import check_names
from exla.planned import Compiled
from exla.saved import read_plan


def compile(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Compiled:
    """Compile a function ahead of time, for a device that is attached or not.

    Args:
      fn: a function that jax.jit can trace, unchanged.
      args: its positional arguments: arrays, or `jax.ShapeDtypeStruct`s where only shapes are known.
      kwargs: its keyword arguments, likewise.
      **options: those of `exla.jit` and `jax.jit`: target, memory_limit, search, donate_argnums, …

    Returns:
      The compiled function: called with such arguments where the device is attached; `plan`, `as_text()`,
      `memory_analysis()` and `cost_analysis()` anywhere; kept by `exla.save`.

    Raises:
      MemoryLimitError: if no candidate obeys the limit: the user's, and never more than what the device has.
      ExlaError: if there is no compiler for the target; the message says what to install.
      OptionError, TypeError: as `exla.jit`.
    """
    _check_arguments(args)
    return jit(fn, **options).lower(*args, **(kwargs or {})).compile()


def load(
    path: str | os.PathLike[str],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    executable: bool = False,
    **options: Any,
) -> Compiled:
    """Compile a function as a saved plan says: nothing is searched, and everything is counted again.

    Args:
      path: what `exla.save` wrote.
      fn: the function that the plan is of.
      args: its positional arguments, as for `exla.compile`.
      kwargs: its keyword arguments, likewise.
      executable: whether to run what `exla.save(..., executable=True)` kept beside the plan, where it is of this very
        program, device and versions; else it is compiled, with an `ExlaWarning` that says why. It is machine code: only
        of files that you would run as a program. It is counted as what is compiled is.
      **options: what is to be other than in the plan: a target, a memory_limit; and the arguments of jax.jit.

    Returns:
      As `exla.compile`.

    Raises:
      PlanError: if the file is no plan, or of another program; the message says what differs.
      MemoryLimitError: if what the plan says does not obey the limit on this target.
    """
    saved = read_plan(path, trusted=executable)
    own: dict[str, Any] = {}
    of_jax: dict[str, Any] = {}
    known = {field.name for field in fields(Options)}
    for name, value in options.items():
        (own if name in known else of_jax)[name] = value
    check_arguments_of_jit(of_jax)
    resolved = Options.resolve(**{**saved.options, **own})
    check_names(resolved.rules)
    _check_arguments(args)
    function = JitFunction(fn, resolved, of_jax, saved)
    try:
        return function.lower(*args, **(kwargs or {})).compile()
    except MemoryLimitError as error:
        error.add_note(f"This is what {path} takes: it was planned for another limit. exla.compile plans anew")
        raise
    except ReplayMiss as miss:
        raise PlanError(f"{path} does not apply to this function and these arguments: {miss}") from miss


def _check_arguments(args: Any) -> None:
    """Refuse an array where the positional arguments are expected: it would be taken apart."""
    if not isinstance(args, list | tuple):
        raise TypeError(f"args are the positional arguments as a tuple or list, not {type(args).__name__}: write (x,)")
