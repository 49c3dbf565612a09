"""What a command is about: a function by name, the shapes of its arguments, and how it is to be planned.

    with surroundings(arguments):
        subject = read_subject(arguments)
        exla.compile(subject.function, subject.arguments.positional, subject.arguments.keywords, **subject.options)

`exla.commands.flags` has the flags that this reads. Whatever the user wrote that is not understood is a `UsageError`;
an error in the user's own code is left as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from exla.api import JitFunction
from exla.commands.flags import given_options
from exla.commands.shapes import Arguments, read_shapes
from exla.failure import UsageError

_JAX_JIT = type(jax.jit(lambda: None))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A function, and how it is to be planned.

    Attributes:
      function: a Python function.
      arguments: those of the call.
      options: arguments of `exla.jit`, its own and those of `jax.jit`.
    """

    function: Callable[..., Any]
    arguments: Arguments
    options: dict[str, Any]


def is_script(program: str) -> bool:
    """Whether a PROGRAM is a script, and not a function."""
    return ":" not in program and (program.endswith(".py") or Path(program).is_file())


@contextlib.contextmanager
def surroundings(arguments: argparse.Namespace) -> Iterator[None]:
    """What the user's code finds around it: its folder is imported from, and 64-bit values are there with --x64."""
    path, x64 = list(sys.path), jax.config.jax_enable_x64
    place = arguments.program.partition(":")[0]
    folder = Path(place).resolve().parent if is_script(arguments.program) or place.endswith(".py") else Path.cwd()
    sys.path.insert(0, str(folder))
    try:
        if arguments.x64:
            jax.config.update("jax_enable_x64", True)
        yield
    finally:
        sys.path[:] = path
        jax.config.update("jax_enable_x64", x64)


def read_subject(arguments: argparse.Namespace) -> Subject:
    """The function that PROGRAM names, its arguments, and the options.

    Raises:
      UsageError: if there is no such function, or it does not take such arguments.
    """
    if vars(arguments).get("script_arguments"):
        raise UsageError("only a script takes what stands after --; a function has its arguments from --shapes")
    found = load_function(arguments.program)
    kept: dict[str, Any] = {}
    while isinstance(found, (JitFunction, _JAX_JIT)):
        if isinstance(found, JitFunction):
            kept = {**found.settings, **kept}
        found = found.__dict__["__wrapped__"]
    named: dict[str, Any] = {}
    for what in ("static", "donate"):
        text = getattr(arguments, what)
        if text is not None:
            numbers, names = _named_parameters(found, text, f"--{what}")
            named |= {f"{what}_argnums": numbers, f"{what}_argnames": names}
    given = read_shapes(arguments.shapes or "")
    options = {**kept, **named, **given_options(arguments)}
    _check_call(found, given, arguments.shapes is not None)
    _check_values(found, given, options)
    return Subject(function=found, arguments=given, options=options)


def load_function(program: str) -> Any:
    """Import what `module:name` or `file.py:name` names.

    Raises:
      UsageError: if there is no such module, file or name, or it cannot be called.
    """
    place, colon, names = program.partition(":")
    if not colon or not place or not names:
        raise UsageError(
            f"PROGRAM {program!r} is neither a function nor a script: write package.module:function, "
            "path/to/file.py:function, or path/to/script.py"
        )
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    found: Any = module
    for name in names.split("."):
        if not _has(found, name):
            there = (
                [n for n, v in vars(found).items() if callable(v) and n[0] != "_"] if _has(found, "__dict__") else []
            )
            near = difflib.get_close_matches(name, there, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(there)}" if there else ""
            where = place if found is module else getattr(found, "__name__", found)
            raise UsageError(f"{program}: {where} has no {name!r}{hint}")
        found = getattr(found, name)
    if not callable(found):
        raise UsageError(f"{program} is no function but of type {type(found).__name__}")
    return found


def _has(owner: Any, name: str) -> bool:
    try:
        getattr(owner, name)
    except AttributeError:
        return False
    return True


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that the user's own imports
        raise UsageError(
            f"there is no module {error.name!r}; it is looked for in {os.getcwd()} and among what is installed"
        ) from None


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    name = f"exla_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for the module that they are in
    spec.loader.exec_module(module)
    return module


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C, and does not say
        return None


def _named_parameters(function: Callable[..., Any], text: str, flag: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of parameters that are named either way, each completed by the other."""
    words = [w.strip() for w in text.split(",") if w.strip()]
    numbers, names = {int(w) for w in words if w.isdigit()}, {w for w in words if not w.isdigit()}
    parameters = _parameters(function)
    if parameters is None:
        return tuple(sorted(numbers)), tuple(sorted(names))
    kinds = {p.kind for p in parameters}
    by_position = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = {*by_position, *by_name}
    wrong = [n for n in sorted(numbers) if n >= len(by_position) and inspect.Parameter.VAR_POSITIONAL not in kinds]
    unknown = [n for n in sorted(names) if n not in known and inspect.Parameter.VAR_KEYWORD not in kinds]
    if wrong or unknown:
        raise UsageError(
            f"{flag}: the function has no parameter {', '.join(map(str, [*wrong, *unknown]))}; its parameters are "
            + ", ".join(f"{k} {p.name}" for k, p in enumerate(parameters))
        )
    names |= {by_position[n] for n in numbers if n < len(by_position)}
    numbers |= {by_position.index(n) for n in names if n in by_position}
    return tuple(sorted(numbers)), tuple(sorted(n for n in names if n not in known or n in by_name))


def _check_call(function: Callable[..., Any], given: Arguments, shapes: bool) -> None:
    """Refuse arguments that the function does not take, before it is traced."""
    if _parameters(function) is None:
        return
    signature = inspect.signature(function)
    try:
        signature.bind(*given.positional, **given.keywords)
    except TypeError as error:
        name = getattr(function, "__name__", "function")
        flag = "--shapes" if shapes else "without --shapes"
        raise UsageError(f"{flag}: {error}; the function is {name}{signature}") from None


def _check_values(function: Callable[..., Any], given: Arguments, options: dict[str, Any]) -> None:
    """Refuse text that is not static, and an array that is."""
    numbers, names = (options.get(f"static_{kind}") for kind in ("argnums", "argnames"))
    static_numbers = {numbers} if isinstance(numbers, int) else set(numbers or ())
    static_names = {names} if isinstance(names, str) else set(names or ())
    by_position = [p.name for p in _parameters(function) or () if p.kind is not p.KEYWORD_ONLY]
    labelled = [(k, by_position[k] if k < len(by_position) else None, v) for k, v in enumerate(given.positional)]
    for number, name, value in [*labelled, *((None, n, v) for n, v in given.keywords.items())]:
        label = name if name is not None else str(number)
        if number in static_numbers or name in static_names:
            arrays = [x for x in jax.tree.leaves(value) if isinstance(x, jax.ShapeDtypeStruct)]
            if arrays:
                raise UsageError(f"argument {label} is static, so that it is a Python value and not an array")
        elif any(isinstance(x, str) for x in jax.tree.leaves(value)):
            raise UsageError(
                f"argument {label} holds text, which is no array: name it in --static, as --static {label}"
            )
