"""Growth: from one axis of one value to the region that is cut with it.

    grow(program, var, axis, Growth(small_bytes=1 << 20)) -> Region

The factor rules are followed upwards and downwards from the seed until what is left to slice or to stack is small; the
idea is told in `exla.passes.split.regions`. What stops the growth is kept, for reports and errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from exla._compat import Literal, is_extended
from exla.ir.factors import BARRIERS
from exla.ir.program import Program, value_bytes
from exla.passes.decisions import Growth
from exla.passes.split.combine import COMBINERS
from exla.passes.split.levels import close
from exla.passes.split.regions import Instance, Region, factors_of, operands_of


@dataclass
class _Growing:
    """The state of growing one region."""

    program: Program
    how: Growth
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
        factors = factors_of(self.program, position)
        self.size = math.gcd(self.size, factors.sizes[name])
        eqn = self.program.eqns[position]
        for operand, at in zip(eqn.invars, factors.operands[name], strict=True):
            if at is not None and not isinstance(operand, Literal):
                self._visit(operand, at.axis)
        for result, at in zip(eqn.outvars, factors.results[name], strict=True):
            if at is not None:
                self._visit(result, at.axis)

    def _visit(self, var: Any, axis: int) -> None:
        if value_bytes(var) > self.how.small_bytes:
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
        if reason is None and self.how.exact and not keeps_order(self.program, (position, name)):
            reason = 'numerics="exact" keeps the order of its reductions'
        if reason is not None:
            return f"{where} needs axis {axis} whole: {reason}"
        if math.gcd(self.size, factors.sizes[name]) < 2:
            return f"{where} groups the axis in a way that leaves nothing to cut"
        return None


def grow(program: Program, var: Any, axis: int, how: Growth) -> Region | None:
    """Grow the region that cutting one axis of one value makes.

    Args:
      program: the program.
      var: the seed value.
      axis: the axis of it that is cut.
      how: which values may stay whole, and what the region must not do.

    Returns:
      The region, or None where nothing can be cut.
    """
    if var.aval.shape[axis] < 2:
        return None
    growth = _Growing(program=program, how=how, size=var.aval.shape[axis])
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
    return close(program, growth.instances, growth.size, how, growth.blocked)


def _depends_on(program: Program, instances: Iterable[Instance]) -> set[Any]:
    """Variables that are computed from what the instances compute."""
    positions = {i for i, _ in instances}
    tainted: set[Any] = set()
    for i, eqn in enumerate(program.eqns):
        if i in positions or any(not isinstance(v, Literal) and v in tainted for v in eqn.invars):
            tainted.update(eqn.outvars)
    return tainted


def keeps_order(program: Program, instance: Instance) -> bool:
    """Whether cutting an instance leaves every bit as it was, wherever the chunks begin."""
    position, name = instance
    rule = factors_of(program, position).rule
    if name in rule.carried:
        return rule.carried[name].exact
    if name not in rule.reduced:
        return True
    return COMBINERS.get(rule.reduced[name]).exact(program.context(position))
