"""Options: what a user can set, where it comes from, and what is valid.

Each option is an argument of `exla.jit` and an environment variable (`memory_limit` and `EXLA_MEMORY_LIMIT`). The
argument wins over the variable, the variable over the default. Anything unknown is an error that lists what is
valid: an option that is silently ignored would be a cap that is silently exceeded.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from exla.errors import OptionError
from exla.targets.base import TARGETS
from exla.units import parse_size

SEARCHES = ("analytic", "learned", "heuristic", "measured", "evolutionary", "random", "exhaustive", "off")
NUMERICS = ("reassociate", "exact", "mixed")
RECORDS = ("append", "read", "off")
VERIFY = ("compile", "run")
LEARN = ("off", "online")
CHOICES: Mapping[str, tuple[str, ...]] = {
    "search": SEARCHES,
    "numerics": NUMERICS,
    "records": RECORDS,
    "verify": VERIFY,
    "learn": LEARN,
}
OTHER_VARIABLES = ("EXLA_RECORDS_DIR", "EXLA_STRICT", "EXLA_WEIGHTS")
SIZES = ("memory_limit", "tensor_size_threshold", "tensor_split_size")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one `exla.jit`.

    Attributes:
      memory_limit: cap in bytes on arguments + outputs + temporaries - aliased; None = what the target has.
      search: who chooses what is split; "off" splits nothing, and only rewrites.
      target: what is compiled for, by name; None = the default device.
      numerics: "reassociate" allows another order of summation, "exact" nothing that changes a value by more, "mixed"
        also that float32 values wait in bfloat16 where nothing else obeys the limit.
      tensor_size_threshold: values above this many bytes are split although they fit; None = no such threshold.
      tensor_split_size: bytes that one chunk's working set may not exceed; None = no such limit.
      records: whether tuning records are read and written, only read, or neither.
      verify: what shows that the limit is obeyed: "compile" the compiler's count, "run" a run in a fresh process too.
      learn: whether what a search measures moves the weights that search="learned" ranks by on this machine.
      rules: names of opt-in replace rules that are in force too.
      search_seconds: seconds that a search which measures may take.
      search_trials: candidates that it may try, beside the program as it is.
    """

    memory_limit: int | None = None
    search: str = "analytic"
    target: str | None = None
    numerics: str = "reassociate"
    tensor_size_threshold: int | None = None
    tensor_split_size: int | None = None
    records: str = "append"
    verify: str = "compile"
    learn: str = "off"
    rules: tuple[str, ...] = ()
    search_seconds: float = 60.0
    search_trials: int = 32

    @classmethod
    def resolve(cls, **given: Any) -> Options:
        """Make options from arguments and the environment.

        Args:
          **given: options by name; None means not given.

        Returns:
          The options.

        Raises:
          OptionError: for an unknown name, value or unit; the message lists the valid ones.
        """
        names = [f.name for f in fields(cls)]
        for name in given:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise OptionError(f"unknown option {name!r}{hint}; valid options: {', '.join(names)}")
        _check_environment(names)
        values: dict[str, Any] = {}
        for name in names:
            value, label = given.get(name), name
            if value is None:
                label = f"EXLA_{name.upper()}"
                value = os.environ.get(label) or None
            if value is not None:
                values[name] = _read(name, label, value)
        return cls(**values)


def variable_errors() -> dict[str, OptionError]:
    """Variables of the environment that are none of exla's, or hold what is no value of their option, all at once."""
    names = [f.name for f in fields(Options)]
    errors = _unknown_variables(names)
    for name in names:
        variable = f"EXLA_{name.upper()}"
        if os.environ.get(variable):
            try:
                _read(name, variable, os.environ[variable])
            except OptionError as error:
                errors[variable] = error
    return errors


def _unknown_variables(names: Sequence[str]) -> dict[str, OptionError]:
    known = [*(f"EXLA_{name.upper()}" for name in names), *OTHER_VARIABLES]
    errors = {}
    for variable in sorted(os.environ):
        if variable.startswith("EXLA_") and variable not in known:
            near = difflib.get_close_matches(variable, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            message = f"unknown environment variable {variable}{hint}; valid ones: {', '.join(known)}"
            errors[variable] = OptionError(message)
    return errors


def _check_environment(names: Sequence[str]) -> None:
    """Refuse a variable that looks like exla's and is none: a misspelt cap would be no cap."""
    for error in _unknown_variables(names).values():
        raise error


def _read(name: str, label: str, value: Any) -> Any:
    if name in SIZES:
        return parse_size(value, label)
    if name == "rules":
        named = value.split(",") if isinstance(value, str) else value
        if not isinstance(named, (tuple, list, set, frozenset)) or not all(isinstance(n, str) for n in named):
            raise OptionError(f"{label}={value!r} is not a list of names of replace rules")
        return tuple(sorted({n.strip() for n in named} - {""}))
    if name in ("search_seconds", "search_trials"):
        return _number(label, value, float if name == "search_seconds" else int)
    return _choice(name, label, value)


def _number(label: str, value: Any, kind: type) -> Any:
    try:
        number = kind(value)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, bool) or not number > 0 or (kind is int and number != float(value)):
        raise OptionError(f"{label}={value!r} is not a positive {'whole number' if kind is int else 'number'}")
    return number


def _choice(name: str, label: str, value: Any) -> str:
    valid = tuple(TARGETS) if name == "target" else CHOICES[name]
    if isinstance(value, str) and value in valid:
        return value
    listed = ", ".join(repr(v) for v in valid)
    near = difflib.get_close_matches(str(value), valid, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    if name == "records" and os.sep in str(value):
        hint = " (EXLA_RECORDS_DIR names the folder that they are in)"
    raise OptionError(f"{label}={value!r} is unknown{hint}; valid values: {listed}")
