"""Levels: what leaves a region, and which of its loops computes it.

`close` is the second half of growing a region. It walks backwards from the program's outputs to find which values are
wanted whole and which instances are wanted at all; then forwards, to give each instance the first loop that can compute
it: `softmax` needs the maximum whole, so what follows it is one level later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from exla._compat import Literal, is_drop
from exla.ir.program import Program, value_bytes
from exla.passes.decisions import Growth
from exla.passes.split.combine import COMBINERS
from exla.passes.split.regions import (
    Instance,
    LoopOutput,
    Region,
    Sliced,
    body_of,
    carried_of,
    factors_of,
    operands_of,
)

Provided = tuple[Instance, Sliced | None]
"""The instance that computes a value in a loop, and along which axis the value is cut there (None: it comes whole)."""


def close(
    program: Program, instances: Set[Instance], size: int, how: Growth, blocked: Mapping[Any, str]
) -> Region | None:
    """Find what leaves a region, on which level, and what stays outside.

    Args:
      program: the program.
      instances: what was grown.
      size: how many indices the factor has.
      how: how it was grown.
      blocked: variable -> why it could not be cut further.

    Returns:
      The region, or None where nothing leaves it.
    """
    makers: dict[Sliced, Instance] = {}
    provided: dict[Any, Provided] = {}
    for instance in sorted(instances):
        position, name = instance
        factors = factors_of(program, position)
        for var, at in zip(program.eqns[position].outvars, factors.results[name], strict=True):
            if at is not None:
                makers.setdefault((var, at.axis), instance)
                provided.setdefault(var, (instance, (var, at.axis)))
    for instance in sorted(instances):
        for var in program.eqns[instance[0]].outvars:
            provided.setdefault(var, (instance, None))
    if how.again:
        provided = {v: p for v, p in provided.items() if not _is_stacked_between(program, v, p, how.small_bytes)}
    outputs, whole, demanded = _demand(program, instances, makers, provided)
    if not outputs:
        return None
    makers = {s: i for s, i in makers.items() if i in demanded}
    levels, reverse = _levels(program, instances, makers, provided)
    found = [LoopOutput(instance=i, stacked=s, level=levels[i]) for i, s in outputs]
    found += _saved(program, makers, found, levels, reverse)
    return Region(
        program=program,
        size=size,
        makers=makers,
        instances=frozenset(demanded),
        outputs=tuple(sorted(found, key=lambda o: (o.instance, *_place(program, o)))),
        reverse=reverse,
        whole=frozenset(whole),
        blocked=dict(blocked),
        least_chunk=_least_chunk(program, demanded, size),
    )


def _least_chunk(program: Program, instances: Iterable[Instance], size: int) -> int:
    """The smallest chunk that every combiner takes."""
    least = 1
    for position, name in instances:
        factors = factors_of(program, position)
        grain = factors.sizes[name] // size
        if name in factors.rule.reduced:
            combiner = COMBINERS.get(factors.rule.reduced[name])
            least = max(least, -(-combiner.least_chunk(program.context(position)) // grain))
    return least


def _saved(
    program: Program,
    makers: Mapping[Sliced, Instance],
    outputs: Iterable[LoopOutput],
    levels: Mapping[Instance, int],
    reverse: Set[int],
) -> list[LoopOutput]:
    """The states that must be saved for the loops that run the other way than an instance which they compute."""
    found = {(o.instance, o.level): o for o in outputs}
    saved: dict[Instance, LoopOutput] = {}
    for level in range(max(levels.values()), -1, -1):
        here = [o for o in (*found.values(), *saved.values()) if o.level == level]
        for instance in body_of(program, makers, here):
            carried = carried_of(program, instance)
            if carried is not None and carried.reverse != (level in reverse):
                saved[instance] = LoopOutput(instance=instance, stacked=None, level=levels[instance], saved=True)
    return list(saved.values())


def _is_stacked_between(program: Program, var: Any, provided: Provided, small_bytes: int) -> bool:
    """Whether a value would be stacked although it is big and no output of the program."""
    return provided[1] is not None and value_bytes(var) > small_bytes and var not in program.outvars


def _place(program: Program, output: LoopOutput) -> tuple[int, int]:
    """Sorting key of an output among those of its instance."""
    if output.stacked is None:
        return (-1, int(output.saved))
    return (list(program.eqns[output.instance[0]].outvars).index(output.stacked[0]), output.stacked[1])


def _demand(
    program: Program,
    instances: Set[Instance],
    makers: dict[Sliced, Instance],
    provided: dict[Any, Provided],
) -> tuple[set[Provided], set[int], set[Instance]]:
    """Walk backwards from the outputs: which values are needed whole, and which instances compute something."""
    needed_whole = {v for v in program.outvars if not isinstance(v, Literal)}
    demanded: set[Instance] = set()
    outputs: set[Provided] = set()
    whole: set[int] = set()
    at_position: dict[int, list[Instance]] = {}
    for instance in instances:
        at_position.setdefault(instance[0], []).append(instance)
    for i in range(len(program.eqns) - 1, -1, -1):
        eqn = program.eqns[i]
        for var in eqn.outvars:
            if var in needed_whole and var in provided:
                outputs.add(provided[var])
                demanded.add(provided[var][0])
        if eqn.effects or any(v in needed_whole and v not in provided for v in eqn.outvars):
            whole.add(i)
            needed_whole.update(v for v in eqn.invars if not isinstance(v, Literal))
        for instance in sorted(at_position.get(i, ())):
            if instance not in demanded:
                continue
            for var, axis in operands_of(program, instance):
                if isinstance(var, Literal):
                    continue
                if axis is not None and (var, axis) in makers:
                    demanded.add(makers[var, axis])
                else:
                    needed_whole.add(var)
    return outputs, whole, demanded


def _levels(
    program: Program,
    instances: Set[Instance],
    makers: Mapping[Sliced, Instance],
    provided: Mapping[Any, Provided],
) -> tuple[dict[Instance, int], frozenset[int]]:
    """Level of each instance, and which levels run from the last index to the first.

    An instance comes one level after the loop that computes an output which it needs whole. A carried one comes on a
    level that runs in its own direction, which the first carried instance of a level decides.
    """
    level: dict[Instance, int] = {}
    reverse: dict[int, bool] = {}
    available: dict[Any, int] = {}
    at_position: dict[int, list[Instance]] = {}
    for instance in instances:
        at_position.setdefault(instance[0], []).append(instance)
    for i, eqn in enumerate(program.eqns):
        for instance in sorted(at_position.get(i, ())):
            least = 0
            for var, axis in operands_of(program, instance):
                if isinstance(var, Literal):
                    continue
                inside = makers.get((var, axis)) if axis is not None else None
                least = max(least, level[inside] if inside is not None else available.get(var, 0))
            carried = carried_of(program, instance)
            while carried is not None and reverse.setdefault(least, carried.reverse) != carried.reverse:
                least += 1
            level[instance] = least
        outside = max((available.get(v, 0) for v in eqn.invars if not isinstance(v, Literal)), default=0)
        for var in eqn.outvars:
            if not is_drop(var):
                available[var] = level[provided[var][0]] + 1 if var in provided else outside
    return level, frozenset(k for k, is_reverse in reverse.items() if is_reverse)
