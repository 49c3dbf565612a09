"""Fingerprints: hashes of programs and equations that are the same in every process.

Variables are numbered in order of appearance; parameters are written out without memory addresses (functions by
module and name, arrays by their bytes), nested jaxprs by recursion.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from exla import _compat
from exla._compat import Literal

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def fingerprint(program: Any) -> str:
    """Hash a program: 32 hex digits, stable across processes.

    Args:
      program: a Program or a jaxpr.
    """
    jaxpr = getattr(program, "jaxpr", program)
    return hashlib.sha256("\n".join(_jaxpr_lines(jaxpr)).encode()).hexdigest()[:32]


def equation_fingerprint(eqn: Any) -> str:
    """Hash one equation: primitive, parameters, operand and result types; 16 hex digits."""
    text = " ".join([_equation_head(eqn), *(_aval(v) for v in eqn.invars), "->", *(_aval(v) for v in eqn.outvars)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _jaxpr_lines(jaxpr: Any) -> list[str]:
    numbers: dict[Any, int] = {}

    def name(v: Any) -> str:
        if isinstance(v, Literal):
            return f"{_parameter(v.val)}:{_aval(v)}"
        return f"v{numbers.setdefault(v, len(numbers))}:{_aval(v)}"

    lines = ["in " + " ".join(name(v) for v in (*jaxpr.constvars, *jaxpr.invars))]
    for eqn in jaxpr.eqns:
        operands = " ".join(name(v) for v in eqn.invars)
        lines.append(f"{' '.join(name(v) for v in eqn.outvars)} = {_equation_head(eqn)} {operands}")
    return [*lines, "out " + " ".join(name(v) for v in jaxpr.outvars)]


def _aval(v: Any) -> str:
    return _type(v.aval)


@lru_cache(maxsize=4096)
def _type(aval: Any) -> str:
    """A type in words; a program has few types, and each is met many times."""
    return aval.str_short()


def _equation_head(eqn: Any) -> str:
    params = " ".join(f"{k}={_parameter(v)}" for k, v in sorted(eqn.params.items()))
    return f"{eqn.primitive.name}[{params}]"


def _parameter(value: Any) -> str:
    if value is None or type(value) in (bool, int):  # most are
        return repr(value)
    if isinstance(value, _compat.ClosedJaxpr):
        consts = " ".join(_parameter(c) for c in value.consts)
        return "{" + "; ".join(_jaxpr_lines(value.jaxpr)) + f" consts {consts}" + "}"
    if isinstance(value, _compat.Jaxpr):
        return "{" + "; ".join(_jaxpr_lines(value)) + "}"
    if isinstance(value, np.ndarray):
        return f"array<{value.dtype}{value.shape}:{hashlib.sha256(value.tobytes()).hexdigest()[:16]}>"
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(_parameter(v) for v in value) + ")"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{_parameter(v)}" for k, v in sorted(value.items(), key=str)) + "}"
    if isinstance(value, enum.Enum):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = (f"{f.name}={_parameter(getattr(value, f.name))}" for f in dataclasses.fields(value))
        return f"{type(value).__name__}({','.join(parts)})"
    if callable(value):
        named = getattr(value, "__qualname__", type(value).__qualname__)
        return f"<{getattr(value, '__module__', '')}.{named}>"
    return _ADDRESS.sub("", repr(value))
