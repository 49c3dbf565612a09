"""Chunk loops whose bodies are alike, as those of a network's layers are: one is traced, and the others are the same.

The key of a body says all that tracing it depends on: its equations, with their parameters, types, user's lines and
named scopes; which chunk of which factor each of them computes; and where each of its operands comes from. Bodies of
one program with equal keys are one jaxpr. Numbers are the same if their bits are, and what is no number, name, type or
sequence of these, such as a function or a jaxpr, if it is the same object: what differs is traced by itself.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from exla import _compat
from exla._compat import Literal
from exla.ir.program import Program
from exla.passes.split.regions import Instance, Sliced, carried_of, factors_of

if TYPE_CHECKING:
    from exla.passes.split.body import Leaf, LoopMaker

PLAIN = (bool, int, str, bytes, type, enum.Enum, np.dtype, type(None))
"""Types whose equal values are the same."""


def key_of(maker: LoopMaker, size: int, avals: Iterable[Any]) -> Hashable:
    """What the body of a loop, on a chunk of a size, is known by in its program; None where it has no key.

    Args:
      maker: the loop.
      size: of the chunk.
      avals: abstract values of what the body takes.
    """
    region = maker.region
    if any(instance in region.repairs for instance in maker.instances):
        return None  # it reads what is summed so far, by equations of its own
    leaves: dict[Leaf, int] = {leaf: k for k, leaf in enumerate(maker.leaves)}
    numbers = {instance: k for k, instance in enumerate(maker.instances)}
    made: dict[Sliced, tuple[int, int]] = {}
    steps = []
    for instance, k in numbers.items():
        position, name, window = instance
        kind = _kind(region.program, position)
        steps.append((kind, name, window, _carrying(maker, instance), *_origins(maker, instance, leaves, made)))
        placed = factors_of(region.program, position).results[name]
        results = enumerate(zip(region.program.eqns[position].outvars, placed, strict=True))
        made.update(((v, (p.axis, window)), (k, which)) for which, (v, p) in results if p is not None)
    outputs = [numbers[o.instance] if o.stacked is None else made[o.stacked] for o in maker.outputs]
    return size, region.size, tuple(avals), tuple(steps), tuple(outputs)


def _carrying(maker: LoopMaker, instance: Instance) -> int:
    """Whether an instance goes on from chunk to chunk in a loop: 0 for no, 1 as its rule says, 2 as for many chunks."""
    how = maker.carried.get(instance)
    return 0 if how is None else 1 if how is carried_of(maker.region.program, instance) else 2


def _origins(
    maker: LoopMaker, instance: Instance, leaves: Mapping[Leaf, int], made: Mapping[Sliced, tuple[int, int]]
) -> Iterator[Hashable]:
    """Where the body has each operand of an instance from: which leaf, or which result of which instance."""
    own = carried_of(maker.region.program, instance)
    for k, (var, cut) in enumerate(maker.region.operands(instance)):
        if isinstance(var, Literal) or (own is not None and k in own.into):
            yield None  # as the equation says
        elif (var, cut) in leaves:
            yield leaves[var, cut]
        elif cut is not None and (var, cut) in made:
            yield made[var, cut]
        else:
            assert cut is not None
            wider = maker.region.makers[var, cut][2]
            yield made[var, (cut[0], wider)], cut, wider
    if own is not None and instance not in maker.carried:
        yield tuple(leaves[saved] for saved in maker.restarts(instance))


def _kind(program: Program, position: int) -> int:
    """A number that equations of a program have in common which compute the same of their operands."""
    if "kinds" not in program.known:
        program.known["kinds"] = [{}, {}]
    of, kinds = program.known["kinds"]
    if position not in of:
        eqn = program.eqns[position]
        operands = tuple((v.aval, _frozen(v.val) if isinstance(v, Literal) else None) for v in eqn.invars)
        where = program.source(position), _compat.scopes(eqn), _identity(eqn.ctx)
        params = _frozen(dict(sorted(eqn.params.items())))
        kind = eqn.primitive, params, operands, tuple(v.aval for v in eqn.outvars), where
        of[position] = kinds.setdefault(kind, len(kinds))
    return of[position]


def _frozen(value: Any) -> Hashable:
    """A parameter as what is equal only where it is the same."""
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, float):
        return type(value), value.hex()
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, tuple | list):
        return type(value), *map(_frozen, value)
    if isinstance(value, Mapping):
        return type(value), *((_frozen(k), _frozen(v)) for k, v in value.items())
    return _identity(value)


def _identity(value: Any) -> Hashable:
    """What only the object itself is equal to; the program that has it keeps it."""
    return object, id(value)
