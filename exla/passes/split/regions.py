"""Regions: the equations that run inside one chunk loop, found from one axis of one big value.

Growth starts from a seed, "this axis of this value is cut", and follows the factor rules. Downwards from a big
value every consumer joins, until the factor is reduced or the value is small; upwards every producer of a big
value joins, until what is left to slice is small. The unit is not the equation but the **instance**, an
equation with one of its factors: in `k + k.T` the rows of `k` are wanted for the left operand and its columns
for the right one, and the loop computes both.

What leaves a region is either *combined* (its factor was reduced) or *stacked* (a later equation wants the
whole value). A big value that would be stacked only for another equation can instead be computed a second time
outside (`again`), where another split may cut it along another axis: rows are sorted in one loop and columns
summed up in the next. If an instance needs a combined output whole, as softmax needs the maximum, it belongs to a later
loop: instances have **levels**, each level with outputs is one loop, and a producer needed on two levels is
computed twice (that is rematerialisation).

The size of the region's factor is the greatest common divisor of what its equations can cut: an axis that is
later merged with an inner one is cut into the same contiguous ranges there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from exla._compat import Literal, is_drop, is_extended
from exla.ir.factors import BARRIERS, Factors
from exla.ir.program import Program, value_bytes
from exla.passes.split.combine import COMBINERS

Instance = tuple[int, str]
"""Position of an equation, and the name of the factor that is cut there."""
Sliced = tuple[Any, int]
"""A variable and the axis along which it is cut."""


@dataclass(frozen=True, kw_only=True)
class LoopOutput:
    """One output of a chunk loop: a stacked variable along an axis, or the results of a reduced instance."""

    instance: Instance
    stacked: Sliced | None
    level: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """What one factor of a program cuts.

    Attributes:
      program: the program.
      size: how many indices the factor has.
      makers: (variable, axis) -> the instance that computes it inside the loop.
      outputs: what leaves, by level.
      whole: positions of the equations that stay outside and are needed.
      blocked: variable -> why it could not be cut further.
      least_chunk: smallest chunk that every combiner takes.
    """

    program: Program
    size: int
    makers: dict[Sliced, Instance]
    instances: frozenset[Instance]
    outputs: tuple[LoopOutput, ...]
    whole: frozenset[int]
    blocked: dict[Any, str]
    least_chunk: int

    def operands(self, instance: Instance) -> list[tuple[Any, int | None]]:
        """(variable, axis or None) of each operand of an instance."""
        return operands_of(self.program, instance)

    def body(self, level: int) -> list[Instance]:
        """The instances that one loop computes, in program order."""
        needed: set[Instance] = set()
        stack = [o.instance for o in self.outputs if o.level == level]
        while stack:
            instance = stack.pop()
            if instance in needed:
                continue
            needed.add(instance)
            cut = [(v, axis) for v, axis in self.operands(instance) if axis is not None]
            stack += [self.makers[s] for s in cut if s in self.makers]
        return sorted(needed)

    @property
    def levels(self) -> list[int]:
        return sorted({o.level for o in self.outputs})


def operands_of(program: Program, instance: Instance) -> list[tuple[Any, int | None]]:
    """(variable, axis or None) of each operand of an instance."""
    position, name = instance
    factors = _factors(program, position)
    places = factors.operands[name]
    return [
        (v, None if place is None else place.axis)
        for v, place in zip(program.eqns[position].invars, places, strict=True)
    ]


def _factors(program: Program, position: int) -> Factors:
    factors = program.factors(position)
    assert factors is not None
    return factors


@dataclass
class _Growth:
    """The state of growing one region."""

    program: Program
    small_bytes: int
    size: int
    instances: set[Instance] = field(default_factory=set)
    seen: set[tuple[Any, int, bool]] = field(default_factory=set)
    blocked: dict[Any, str] = field(default_factory=dict)
    queue: list[tuple[Any, int, bool]] = field(default_factory=list)

    def run(self) -> None:
        while self.queue:
            var, axis, upwards = self.queue.pop(0)
            if (var, axis, upwards) in self.seen:
                continue
            self.seen.add((var, axis, upwards))
            if upwards:
                self._up(var, axis)
            else:
                self._down(var, axis)

    def _up(self, var: Any, axis: int) -> None:
        position = self.program.producers.get(var)
        if position is None:
            return
        k = list(self.program.eqns[position].outvars).index(var)
        factors = self.program.factors(position)
        name = factors.at_result(k, axis) if factors else None
        self._include(position, name, var, axis)

    def _down(self, var: Any, axis: int) -> None:
        for position, k in self.program.consumers.get(var, ()):
            factors = self.program.factors(position)
            name = factors.at_operand(k, axis) if factors else None
            self._include(position, name, var, axis)

    def _include(self, position: int, name: str | None, var: Any, axis: int) -> None:
        reason = self._refusal(position, name, axis)
        if reason is not None:
            self.blocked.setdefault(var, reason)
            return
        assert name is not None
        if (position, name) in self.instances:
            return
        self.instances.add((position, name))
        factors = _factors(self.program, position)
        self.size = math.gcd(self.size, factors.sizes[name])
        eqn = self.program.eqns[position]
        for operand, at in zip(eqn.invars, factors.operands[name], strict=True):
            if at is not None and not isinstance(operand, Literal):
                self._visit(operand, at.axis)
        for result, at in zip(eqn.outvars, factors.results[name], strict=True):
            if at is not None:
                self._visit(result, at.axis)

    def _visit(self, var: Any, axis: int) -> None:
        if value_bytes(var) > self.small_bytes:
            self.queue += [(var, axis, True), (var, axis, False)]

    def _refusal(self, position: int, name: str | None, axis: int) -> str | None:
        eqn = self.program.eqns[position]
        factors = self.program.factors(position)
        if "origins" in eqn.params:
            primitive, source = eqn.params["origins"][0]
            return f"the chunk loop that computes `{primitive}` at {source or 'an unknown line'} needs it whole"
        where = f"`{eqn.primitive.name}` at {self.program.source(position) or 'an unknown line'}"
        if factors is None:
            why = BARRIERS.find(eqn.primitive.name)
            return f"{where} has no factor rule" + (f": {why}" if why else "")
        if name is None:
            return f"{where} needs axis {axis} whole" + (f": {factors.rule.whole}" if factors.rule.whole else "")
        reason = factors.why_whole(name)
        if reason is None and any(is_extended(v.aval.dtype) for v in eqn.outvars):
            reason = "its results are not numbers"
        if reason is not None:
            return f"{where} needs axis {axis} whole: {reason}"
        if math.gcd(self.size, factors.sizes[name]) < 2:
            return f"{where} groups the axis in a way that leaves nothing to cut"
        return None


def grow(program: Program, var: Any, axis: int, small_bytes: int, again: bool = False) -> Region | None:
    """Grow the region that cutting one axis of one value makes.

    Args:
      program: the program.
      var: the seed value.
      axis: the axis of it that is cut.
      small_bytes: values up to this size may stay whole.
      again: whether bigger values that equations outside want are computed there again, not stacked by the loop.

    Returns:
      The region, or None where nothing can be cut.
    """
    if var.aval.shape[axis] < 2:
        return None
    growth = _Growth(program=program, small_bytes=small_bytes, size=var.aval.shape[axis])
    growth.queue += [(var, axis, True), (var, axis, False)]
    growth.run()
    while growth.instances:
        tainted = _depends_on(program, growth.instances)
        before = len(growth.instances)
        for position, name in sorted(growth.instances):
            for operand, at in operands_of(program, (position, name)):
                if at is not None and operand in tainted:
                    growth.queue.append((operand, at, True))
        growth.run()
        if len(growth.instances) == before:
            break
    if not growth.instances:
        return None
    return _close(program, growth, again)


def _depends_on(program: Program, instances: Iterable[Instance]) -> set[Any]:
    """Variables that are computed from what the instances compute."""
    positions = {i for i, _ in instances}
    tainted: set[Any] = set()
    for i, eqn in enumerate(program.eqns):
        if i in positions or any(not isinstance(v, Literal) and v in tainted for v in eqn.invars):
            tainted.update(eqn.outvars)
    return tainted


def _close(program: Program, growth: _Growth, again: bool) -> Region | None:
    """Find what leaves the region, on which level, and what stays outside."""
    makers: dict[Sliced, Instance] = {}
    provided: dict[Any, tuple[Instance, Sliced | None]] = {}
    for instance in sorted(growth.instances):
        position, name = instance
        factors = _factors(program, position)
        for var, at in zip(program.eqns[position].outvars, factors.results[name], strict=True):
            if at is not None:
                makers.setdefault((var, at.axis), instance)
                provided.setdefault(var, (instance, (var, at.axis)))
    for instance in sorted(growth.instances):
        for var in program.eqns[instance[0]].outvars:
            provided.setdefault(var, (instance, None))
    if again:
        provided = {v: p for v, p in provided.items() if not _is_stacked_between(program, v, p, growth.small_bytes)}
    outputs, whole, demanded = _demand(program, growth.instances, makers, provided)
    levels = _levels(program, growth.instances, makers, provided)
    least = 1
    for position, name in demanded:
        factors = _factors(program, position)
        grain = factors.sizes[name] // growth.size
        if name in factors.rule.reduced:
            combiner = COMBINERS.get(factors.rule.reduced[name])
            least = max(least, -(-combiner.least_chunk(program.context(position)) // grain))
    if not outputs:
        return None
    return Region(
        program=program,
        size=growth.size,
        makers={s: i for s, i in makers.items() if i in demanded},
        instances=frozenset(demanded),
        outputs=tuple(
            LoopOutput(instance=i, stacked=s, level=levels[i])
            for i, s in sorted(outputs, key=lambda o: (o[0], *_place(program, o)))
        ),
        whole=frozenset(whole),
        blocked=growth.blocked,
        least_chunk=least,
    )


def _is_stacked_between(program: Program, var: Any, provided: tuple[Instance, Sliced | None], small_bytes: int) -> bool:
    """Whether a value would be stacked although it is big and no output of the program."""
    return provided[1] is not None and value_bytes(var) > small_bytes and var not in program.outvars


def _place(program: Program, output: tuple[Instance, Sliced | None]) -> tuple[int, int]:
    """Sorting key of an output among those of its instance."""
    (position, _), stacked = output
    if stacked is None:
        return (-1, -1)
    return (list(program.eqns[position].outvars).index(stacked[0]), stacked[1])


def _demand(
    program: Program,
    instances: set[Instance],
    makers: dict[Sliced, Instance],
    provided: dict[Any, tuple[Instance, Sliced | None]],
) -> tuple[set[tuple[Instance, Sliced | None]], set[int], set[Instance]]:
    """Walk backwards from the outputs: which values are needed whole, and which instances compute something."""
    needed_whole = {v for v in program.outvars if not isinstance(v, Literal)}
    demanded: set[Instance] = set()
    outputs: set[tuple[Instance, Sliced | None]] = set()
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
    instances: set[Instance],
    makers: dict[Sliced, Instance],
    provided: dict[Any, tuple[Instance, Sliced | None]],
) -> dict[Instance, int]:
    """Level of each instance: one more than the loop that computes an output which it needs whole."""
    level: dict[Instance, int] = {}
    available: dict[Any, int] = {}
    at_position: dict[int, list[Instance]] = {}
    for instance in instances:
        at_position.setdefault(instance[0], []).append(instance)
    for i, eqn in enumerate(program.eqns):
        for instance in sorted(at_position.get(i, ())):
            level[instance] = 0
            for var, axis in operands_of(program, instance):
                if isinstance(var, Literal):
                    continue
                inside = makers.get((var, axis)) if axis is not None else None
                need = level[inside] if inside is not None else available.get(var, 0)
                level[instance] = max(level[instance], need)
        outside = max((available.get(v, 0) for v in eqn.invars if not isinstance(v, Literal)), default=0)
        for var in eqn.outvars:
            if is_drop(var):
                continue
            available[var] = level[provided[var][0]] + 1 if var in provided else outside
    return level
