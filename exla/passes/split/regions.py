"""Regions: the equations that run inside one chunk loop, found from one axis of one big value.

Growth starts from a seed, "this axis of this value is cut", and follows the factor rules. Downwards from a big
value every consumer joins, until the factor is reduced or the value is small; upwards every producer of a big
value joins, until what is left to slice is small. The unit is not the equation but the **instance**, an
equation with one of its factors: in `k + k.T` the rows of `k` are wanted for the left operand and its columns
for the right one, and the loop computes both.

What leaves a region is either *combined* (its factor was reduced) or *stacked* (a later equation wants the whole
value). A big value that would be stacked only for another equation can instead be computed a second time outside
(`again`), where another split may cut it along another axis: rows are sorted in one loop and columns summed up in the
next. If an instance needs a combined output whole, as softmax needs the maximum, it belongs to a later loop: instances
have **levels**, each level with outputs is one loop, and a producer needed on two levels is computed twice (that is
rematerialisation). In a network that would be all layers before for each: there a loop may stack the little that lets
later ones do without (`Region.between`). What is kept whole anyway, for a loop that reads it so or for what comes
later, is not computed twice: its chunks are slices of it (`Region.given`). That is less to compute and to keep, and
what is rounded is rounded once: computed in two ways the distance of a point to itself need not be zero.

A *carried* instance, such as a cumulative sum, needs its loop to run in its own direction: a level whose first carried
instance runs from the last index to the first is a reverse loop. Where a loop computes an instance that runs the other
way again, as the backward pass of a scan does with its forward pass, every chunk restarts from the state that an
earlier loop has *saved* for it. How outputs, levels and saved states are found is in `exla.passes.split.levels`.

Where an equation reaches into its operand with a halo, as a convolution does, what computes the operand is an instance
of its own with a *window*, a range somewhat wider than the chunk; neighbouring chunks compute the overlap twice.
Windows are followed upwards only.

The size of the region's factor is the greatest common divisor of what its equations can cut: an axis that is
later merged with an inner one is cut into the same contiguous ranges there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from exla._compat import Literal
from exla.ir.factors import Carried, Factors, Placement
from exla.ir.program import Program, variables
from exla.passes.rounding import is_rounded, moved_of

Window = tuple[int, ...]
"""(): the chunk itself. (step, before, extra): `size * step + extra` indices from `offset * step - before`."""
Instance = tuple[int, str, Window]
"""Position of an equation, the name of the factor that is cut there, and the range of it that is computed."""
Cut = tuple[int, Window]
"""An axis, and the range of it that is there."""
Sliced = tuple[Any, Cut]
"""A variable and how it is cut."""


@dataclass(frozen=True, kw_only=True)
class LoopOutput:
    """One output of a chunk loop.

    It is a variable stacked along an axis; or else the results of an instance that the factor does not reach; or, where
    `saved`, the state of a carried instance before each chunk.
    """

    instance: Instance
    stacked: Sliced | None
    level: int
    saved: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """What one factor of a program cuts.

    Attributes:
      program: the program.
      size: how many indices the factor has.
      makers: (variable, how it is cut) -> the instance that computes it inside the loop.
      outputs: what leaves, by level.
      reverse: the levels whose loops run from the last index to the first.
      available: variable -> the first level at which it is there whole.
      repairs: the sums that go on with what the loop has so far of the values they depend on.
      whole: positions of the equations that stay outside and are needed.
      fewer: position -> what control flow outside is if the loops compute its other results.
      between: values that a loop stacks for later ones, which could compute them.
      blocked: variable -> why it could not be cut further.
      least_chunk: smallest chunk that every combiner takes.
    """

    program: Program
    size: int
    makers: dict[Sliced, Instance]
    instances: frozenset[Instance]
    outputs: tuple[LoopOutput, ...]
    reverse: frozenset[int]
    available: Mapping[Any, int]
    repairs: Mapping[Instance, Any]
    whole: frozenset[int]
    fewer: Mapping[int, Any]
    between: frozenset[Any]
    blocked: dict[Any, str]
    least_chunk: int

    def operands(self, instance: Instance) -> list[tuple[Any, Cut | None]]:
        """(variable, how it is cut or None) of each operand of an instance."""
        return operands_of(self.program, instance, self.size)

    def outside(self, position: int) -> Any:
        """An equation as it runs outside."""
        return self.fewer.get(position, self.program.eqns[position])

    def body(self, level: int) -> list[Instance]:
        """The instances that one loop computes, in program order."""
        if ("body", level) not in self.known:
            given = self.given(level)
            makers = {s: i for s, i in self.makers.items() if s not in given} if given else self.makers
            self.known["body", level] = body_of(self.program, self.size, makers, self._outputs_of(level))
        return self.known["body", level]

    def given(self, level: int) -> frozenset[Sliced]:
        """What the loop of a level slices, though it could compute it: it is there whole, and stays there anyway."""
        if ("given", level) not in self.known:
            there = [s for s in self.makers if s[0] in self.stored and self.available.get(s[0], 0) <= level]
            known = self._kept | self.between | self._live_after(level) if there else frozenset()
            self.known["given", level] = frozenset(s for s in there if s[0] in known and not s[1][1])
        return self.known["given", level]

    def _live_after(self, level: int) -> frozenset[Any]:
        """Values that are there whole when the loop of a level ends, whether or not it reads them.

        What is computed outside again, for another split to cut, is only if this loop or a later one reads it so.
        """
        if self.reverse:
            return frozenset()
        end = max(i for i, _, _ in self._bodies[level])
        later = {v for i in self.whole if i > end for v in variables(self.outside(i).invars)}
        later.update(v for v in self.program.outvars if not isinstance(v, Literal))
        read = [o for k, body in self._bodies.items() if k >= level for i in body for o in self.operands(i)]
        whole = {v for v, cut in read if not isinstance(v, Literal) and (cut is None or (v, cut) not in self.makers)}
        return frozenset((self._stacked & later) | (self.stored & whole))

    def _outputs_of(self, level: int) -> list[LoopOutput]:
        return [o for o in self.outputs if o.level == level]

    @cached_property
    def _bodies(self) -> dict[int, list[Instance]]:
        """What each loop computes if it computes all that it can."""
        return {k: body_of(self.program, self.size, self.makers, self._outputs_of(k)) for k in self.levels}

    @cached_property
    def known(self) -> dict[Any, Any]:
        """What has been worked out about this region and is asked for again."""
        return {}

    @cached_property
    def _stacked(self) -> frozenset[Any]:
        return frozenset(o.stacked[0] for o in self.outputs if o.stacked is not None)

    @cached_property
    def stored(self) -> frozenset[Any]:
        """Values that are computed whole, by a loop or outside."""
        return self._stacked.union(v for i in self.whole for v in self.outside(i).outvars)

    @cached_property
    def _kept(self) -> frozenset[Any]:
        """Rounded values that are computed whole, and that a loop reads so, moved or as they are."""
        if self.reverse:  # an earlier loop saves states to compute them from
            return frozenset()
        operands = (o for i in body_of(self.program, self.size, self.makers, self.outputs) for o in self.operands(i))
        whole = {v for v, cut in operands if cut is None and not isinstance(v, Literal)}
        read = {v for var in whole for v in moved_of(self.program, var)}
        return frozenset(v for v in read & self.stored if is_rounded(self.program, v))

    def is_late(self, var: Any, level: int) -> bool:
        """Whether a whole value is not there yet when the loop of a level starts."""
        return self.available.get(var, 0) > level

    def runs_on(self, instance: Instance, level: int) -> bool:
        """Whether a carried instance goes on from chunk to chunk in the loop of a level, not restarting on each."""
        carried = carried_of(self.program, instance)
        return carried is not None and carried.runs(level in self.reverse)

    @property
    def levels(self) -> list[int]:
        return sorted({o.level for o in self.outputs})

    @property
    def saves_states(self) -> bool:
        """Whether a state is kept for every chunk."""
        return any(o.saved for o in self.outputs)


def operands_of(program: Program, instance: Instance, size: int) -> list[tuple[Any, Cut | None]]:
    """(variable, how it is cut or None) of each operand of an instance in a region whose factor has a size."""
    known = program.known.get((instance, size))
    if known is None:
        position, name, window = instance
        factors = factors_of(program, position)
        grain = factors.sizes[name] // size
        known = program.known[instance, size] = [
            (v, None if place is None else (place.axis, _window_of(place, window, grain)))
            for v, place in zip(program.eqns[position].invars, factors.operands[name], strict=True)
        ]
    return known


def _window_of(place: Placement, window: Window, grain: int) -> Window:
    """The range of an operand that an instance needs for a range of its own."""
    if place.halo is None:
        return window
    step, before, extra = window or (grain, 0, 0)
    return (step * place.block, before * place.block + place.halo[0], extra * place.block + place.halo[1])


def carried_of(program: Program, instance: Instance) -> Carried | None:
    """How the factor of an instance is carried, or None where it is not."""
    return factors_of(program, instance[0]).rule.carried.get(instance[1])


def body_of(
    program: Program, size: int, makers: Mapping[Sliced, Instance], outputs: Iterable[LoopOutput]
) -> list[Instance]:
    """The instances that some outputs need, in program order."""
    needed: set[Instance] = set()
    stack = [o.instance for o in outputs]
    while stack:
        instance = stack.pop()
        if instance not in needed:
            needed.add(instance)
            sliced = [(v, cut) for v, cut in operands_of(program, instance, size) if cut is not None]
            stack += [makers[s] for s in sliced if s in makers]
    return sorted(needed)


def factors_of(program: Program, position: int) -> Factors:
    factors = program.factors(position)
    assert factors is not None
    return factors


def numbers_of(program: Program) -> Set[Any]:
    """Variables that depend on no input, which compilers know."""
    if "numbers" not in program.known:
        known: set[Any] = set()
        for i, eqn in enumerate(program.eqns):
            if not eqn.effects and known.issuperset(program.operands[i]):
                known.update(eqn.outvars)
        program.known["numbers"] = known
    return program.known["numbers"]
