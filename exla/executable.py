"""Executables beside plans: what a compiler made is kept, so that the next process need not compile it again.

    exla.save(compiled, "attention.plan.json", executable=True)
    compiled = exla.load("attention.plan.json", attention, arguments, executable=True)

The bytes are an entry of JAX's persistent compilation cache, in a file beside the plan. Loading lowers the function as
always and asks for the entry by JAX's own key, which is of the lowered program with every constant in it, of the
compiler, its options and the device: what is not the same program is compiled anew, with a warning that says why.
The plan says what the bytes are (SHA-256), so that a torn file is noticed.

An executable is machine code and runs with the rights of whoever loads it. A hash shows that a file is whole, not
whose it is: `executable=True` is for files that one would run as a program. Without it, nothing of the file is read.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exla import _compat
from exla.errors import ExlaError, ExlaWarning
from exla.observe import Made
from exla.search.choice import Choice
from exla.search.driver import follow
from exla.search.plan_file import write_whole


@dataclass(frozen=True, kw_only=True)
class Executable:
    """What a plan says of the executable beside it.

    Attributes:
      key: JAX's, of the program, its compiler and its device.
      sha256: of the file.
    """

    key: str
    sha256: str


def file_of(plan: Path) -> Path:
    """Where the executable of a plan lies."""
    return plan.with_name(f"{plan.name}.executable")


def read_executable(row: Any) -> Executable | None:
    """What a plan's JSON says of an executable; None where it names none."""
    if not isinstance(row, Mapping) or not all(isinstance(row.get(name), str) for name in ("key", "sha256")):
        return None
    return Executable(key=row["key"], sha256=row["sha256"])


def write_executable(made: Made, plan: Path) -> Executable:
    """Compile what was decided once more, and keep what the compiler makes beside the plan.

    Args:
      made: the plan, of a device that is attached.
      plan: the file of the plan, which is written afterwards: only then it is said to have an executable.

    Raises:
      ExlaError: if the device is not attached, or JAX does not keep such a program.
    """
    if not made.target.attached():
        raise ExlaError(
            f"{made.target.name} is not attached, so that what was compiled for it cannot be kept as an executable: "
            "save the plan without, and load it where the device is"
        )
    kept: dict[str, bytes] = {}
    options = replace(made.options, verify="compile")
    with _compat.under_mesh(None), _compat.executables(kept):
        follow(made.call, made.target, options, made.choice.decisions)
    if not kept:
        raise ExlaError(
            f"JAX keeps no executable of {made.function}: it keeps none that calls back into Python, none of other "
            "processes than the first, and none at all under jax_enable_compilation_cache=False; save the plan without"
        )
    key, code = kept.popitem()  # tracing may have compiled something small before
    write_whole(file_of(plan), code)
    return Executable(key=key, sha256=hashlib.sha256(code).hexdigest())


def with_executable(
    said: Executable | None, plan: Path, differs: Mapping[str, tuple[str, str]], compile_anew: Callable[[], Choice]
) -> Choice:
    """What `compile_anew` returns, from the executable beside a plan where that is of this program and device.

    Args:
      said: what the plan says of it.
      plan: the file of the plan.
      differs: name -> (there, here) of what the plan was made with and is not so here.
      compile_anew: lowers, compiles and counts.
    """
    kept, reason = _offered(said, plan, differs)
    if said is None or kept is None:
        choice = compile_anew()
    else:
        entries = {said.key: kept}
        with _compat.executables(entries) as used:
            choice = compile_anew()
        if said.key in used:
            return replace(choice, source="executable")
        reason = "JAX lowers this function to another program, or for another device"
    warnings.warn(f"{file_of(plan)} is not used, and the plan is compiled: {reason}", ExlaWarning, stacklevel=2)
    return choice


def _offered(said: Executable | None, plan: Path, differs: Mapping[str, tuple[str, str]]) -> tuple[bytes | None, str]:
    """The bytes of an executable, or why they are of no use."""
    if said is None:
        return None, "the plan was saved without; exla.save(compiled, path, executable=True)"
    if differs:
        return None, "; ".join(
            f"{name} is {there!r} there and {here!r} here" for name, (there, here) in differs.items()
        )
    try:
        code = file_of(plan).read_bytes()
    except OSError as error:
        return None, str(error)
    if hashlib.sha256(code).hexdigest() != said.sha256:
        return None, "it is not whole, or that of another plan: its SHA-256 is not the one in the plan"
    return code, ""
