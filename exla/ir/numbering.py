"""Value numbering: what a program computes twice in the same way.

    first, seen = numbered(program)
    first[var]  # what is computed in the same way before it

XLA computes once what two equations compute in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from exla import _compat
from exla._compat import Literal

if TYPE_CHECKING:
    from exla.ir.program import Program


DRAWING = frozenset({"rng_uniform"})
"""Primitives that give other numbers each time."""


def numbered(program: Program) -> tuple[dict[Any, Any], dict[Any, list[int]]]:
    """What is computed in the same way as something before.

    Returns:
      From each variable to the first one that is computed in the same way, where that is another; and from operations
      (`operation`) to the positions of the first of each.
    """
    first: dict[Any, Any] = {}
    seen: dict[Any, list[int]] = {}
    for i, eqn in enumerate(program.eqns):
        if eqn.effects or eqn.primitive.name in DRAWING:
            continue
        alike = seen.setdefault(operation(eqn, first), [])
        other = next((o for k in alike if is_same(o := program.eqns[k], eqn)), None)
        if other is None:
            alike.append(i)
        else:
            first.update(paired(eqn, other))
    return first, seen


def is_same(eqn: Any, other: Any) -> bool:
    """Whether two equations with the same operation compute the same."""
    return eqn.params == other.params and eqn.ctx == other.ctx


def paired(eqn: Any, other: Any) -> dict[Any, Any]:
    """From the results of an equation to those of another that computes the same, as far as that gives them."""
    pairs = zip(eqn.outvars, other.outvars, strict=True)
    return {v: o for v, o in pairs if not _compat.is_drop(v) and not _compat.is_drop(o)}


def operation(eqn: Any, names: Mapping[Any, Any]) -> tuple[Any, ...]:
    """A primitive and what it is applied to, some variables by other names."""
    return (eqn.primitive, *(_key(other_name(v, names)) for v in eqn.invars))


def other_name(atom: Any, names: Mapping[Any, Any]) -> Any:
    """A variable by its other name, where it has one; a literal as it is."""
    return atom if isinstance(atom, Literal) else names.get(atom, atom)


def renamed(eqn: Any, names: Mapping[Any, Any]) -> Any:
    """An equation that reads other variables; itself where it reads none of those that are renamed."""
    if not any(not isinstance(v, Literal) and v in names for v in eqn.invars):
        return eqn
    return eqn.replace(invars=[other_name(v, names) for v in eqn.invars])


def _key(atom: Any) -> Any:
    return (atom.aval, np.asarray(atom.val).tobytes()) if isinstance(atom, Literal) else atom
