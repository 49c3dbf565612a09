"""Growth: from one axis of one value to the region that is cut with it.

    grow(program, var, axis, Growth(small_bytes=1 << 20)) -> Region

The factor rules are followed upwards and downwards from the seed until what is left to slice or to stack is small; the
idea is told in `exla.passes.split.regions`. What stops the growth is kept, for reports and errors.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Any

from exla._compat import Literal
from exla.ir.factors import BARRIERS
from exla.ir.program import Program, value_bytes
from exla.passes.decisions import Growth
from exla.passes.split.combine import COMBINERS
from exla.passes.split.levels import close
from exla.passes.split.regions import Cut, Instance, Region, Window, factors_of, operands_of

MOST_WINDOWS = 256
"""How many ranges of one equation are followed."""

NEAR = 64
"""Ranges that start up to so many indices apart are computed as one."""


@dataclass
class _Growing:
    """The state of growing one region."""

    program: Program
    how: Growth
    size: int
    has_windows: bool = False
    instances: set[Instance] = field(default_factory=set)
    windows: Counter[int] = field(default_factory=Counter)
    seen: set[tuple[Any, Cut, bool]] = field(default_factory=set)
    blocked: dict[Any, str] = field(default_factory=dict)
    queue: deque[tuple[Any, Cut, bool]] = field(default_factory=deque)

    def run(self) -> None:
        while self.queue:
            var, cut, upwards = self.queue.popleft()
            if (var, cut, upwards) in self.seen:
                continue
            self.seen.add((var, cut, upwards))
            if upwards:
                self._up(var, cut)
            else:
                self._down(var, cut[0])

    def _up(self, var: Any, cut: Cut) -> None:
        position = self.program.producers.get(var)
        if position is None:
            return
        k = list(self.program.eqns[position].outvars).index(var)
        factors = self.program.factors(position)
        name = factors.at_result(k, cut[0]) if factors else None
        self._include(position, name, var, cut)

    def _down(self, var: Any, axis: int) -> None:
        for position, k in self.program.consumers.get(var, ()):
            factors = self.program.factors(position)
            name = factors.at_operand(k, axis) if factors else None
            self._include(position, name, var, (axis, ()))

    def _include(self, position: int, name: str | None, var: Any, cut: Cut) -> None:
        window = cut[1]
        if (position, name, window) in self.instances:
            return
        reason = self._refusal(position, name, cut) or self._cannot_widen(position, name, window)
        if reason is not None:
            self.blocked.setdefault(var, reason)
            return
        assert name is not None
        instance = (position, name, window)
        self.instances.add(instance)
        self.windows[position] += bool(window)
        factors = factors_of(self.program, position)
        self.size = math.gcd(self.size, factors.sizes[name]) if not window else self.size
        self.has_windows = self.has_windows or any(p is not None and p.halo for p in factors.operands[name])
        eqn = self.program.eqns[position]
        for operand, wanted in operands_of(self.program, instance, self.size):
            if wanted is not None and not isinstance(operand, Literal):
                self._visit(operand, wanted)
        for result, at in zip(eqn.outvars, factors.results[name], strict=True):
            if at is not None:
                self._visit(result, (at.axis, window))

    def _visit(self, var: Any, cut: Cut) -> None:
        if value_bytes(var) > self.how.small_bytes:
            self.queue += [(var, cut, True)] if cut[1] else [(var, cut, True), (var, cut, False)]

    def _cannot_widen(self, position: int, name: str | None, window: Window) -> str | None:
        """Why an instance cannot compute a range wider than the chunk, or cannot reach into its operands."""
        assert name is not None
        factors = factors_of(self.program, position)
        size = factors.sizes[name]
        if not window:
            # Windows are counted in indices of the region's factor, whose size must not shrink any more.
            if self.has_windows and size % self.size:
                return f"{self._where(position)} groups the axis in another way than the windows of the region"
            return None
        places = [p for p in (*factors.operands[name], *factors.results[name]) if p is not None]
        in_order = name in factors.rule.reduced or name in factors.rule.carried
        if in_order or any(p.block != 1 and not p.halo for p in places):
            return f"{self._where(position)} cannot compute a part of the axis that overlaps the next"
        if self.windows[position] >= MOST_WINDOWS:
            return f"{self._where(position)} is wanted on more than {MOST_WINDOWS} overlapping parts"
        return None

    def _where(self, position: int) -> str:
        eqn = self.program.eqns[position]
        own = (eqn.primitive.name, self.program.source(position))
        primitive, source = self.program.origin(eqn.outvars[0]) if eqn.outvars else own
        return f"`{primitive}` at {source or 'an unknown line'}"

    def _refusal(self, position: int, name: str | None, cut: Cut) -> str | None:
        axis, window = cut
        eqn = self.program.eqns[position]
        factors = self.program.factors(position)
        if "origins" in eqn.params:
            primitive, source = eqn.params["origins"][0]
            return f"the chunk loop that computes `{primitive}` at {source or 'an unknown line'} needs it whole"
        if factors is None:
            why = BARRIERS.find(eqn.primitive.name)
            return f"{self._where(position)} has no factor rule" + (f": {why}" if why else "")
        if name is None:
            why = factors.rule.whole
            return f"{self._where(position)} needs axis {axis} whole" + (f": {why}" if why else "")
        reason = factors.why_whole(name)
        if reason is None and self.how.exact and not keeps_order(self.program, (position, name, ())):
            reason = 'numerics="exact" keeps the order of its reductions'
        if reason is not None:
            return f"{self._where(position)} needs axis {axis} whole: {reason}"
        if not window and math.gcd(self.size, factors.sizes[name]) < 2:
            return f"{self._where(position)} groups the axis in a way that leaves nothing to cut"
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
    grown = replace(how, again=False, online=False, kept=0)  # those matter only when it is closed
    key = ("grown", var, axis, grown)
    if key not in program.known:
        program.known[key] = _grown(program, var, axis, how)
    instances, size, blocked = program.known[key]
    return close(program, instances, size, how, blocked) if instances else None


def _grown(program: Program, var: Any, axis: int, how: Growth) -> tuple[frozenset[Instance], int, dict[Any, str]]:
    """The instances that grow from a seed, how many indices their factor has, and what blocked the growth."""
    growth = _Growing(program=program, how=how, size=var.aval.shape[axis])
    growth.queue += [(var, (axis, ()), True), (var, (axis, ()), False)]
    growth.run()
    while growth.instances:
        tainted = _depends_on(program, growth.instances)
        before = len(growth.instances)
        for instance in sorted(growth.instances):
            for operand, cut in operands_of(program, instance, growth.size):
                if cut is not None and operand in tainted:
                    growth.queue.append((operand, cut, True))
        growth.run()
        if len(growth.instances) == before:
            break
    return _merged(growth.instances), growth.size, growth.blocked


def _merged(instances: Set[Instance]) -> frozenset[Instance]:
    """One window for each that lies near others of the same instance: a stencil computes its operand once."""
    by_step: dict[tuple[int, str, int], list[Window]] = {}
    for position, name, window in instances:
        if window:
            by_step.setdefault((position, name, window[0]), []).append(window)
    merged = {i for i in instances if not i[2]}
    for (position, name, _), windows in by_step.items():
        groups: list[Window] = []
        for step, before, extra in sorted(windows, key=lambda w: w[1]):
            if groups and before - groups[-1][1] <= NEAR:
                _, least, reach = groups.pop()
                end = max(extra - before, reach - least)
                groups.append((step, before, end + before))
            else:
                groups.append((step, before, extra))
        merged |= {(position, name, w) for w in groups}
    return frozenset(merged)


def _depends_on(program: Program, instances: Iterable[Instance]) -> set[Any]:
    """Variables that are computed from what the instances compute."""
    positions = {i for i, _, _ in instances}
    tainted: set[Any] = set()
    for i, eqn in enumerate(program.eqns):
        if i in positions or not tainted.isdisjoint(program.operands[i]):
            tainted.update(eqn.outvars)
    return tainted


def keeps_order(program: Program, instance: Instance) -> bool:
    """Whether cutting an instance leaves every bit as it was, wherever the chunks begin."""
    position, name, _ = instance
    rule = factors_of(program, position).rule
    if name in rule.carried:
        return rule.carried[name].exact
    if name not in rule.reduced:
        return True
    return COMBINERS.get(rule.reduced[name]).exact(program.context(position))
