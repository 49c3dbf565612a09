"""Values that are compared for equality must be computed in one place.

The derivative of a maximum finds the largest element by `x == max(x)`. A split may compute `x` in several loops, once
for the maximum and once to be compared with it. A sum or a product of matrices has other bits in each of them, even
over the same chunks: XLA adds in another order where it fuses the sum with what follows than where it does not. So has
`a * b + c`: where LLVM sees product and sum in one kernel it rounds once, and where the product is stored it rounds
twice; and so has a division by a constant, which is a multiplication where XLA sees the constant, what XLA computes as
something else where it sees both steps of it, such as `a / sqrt(b)` or a conversion to fewer bits and back, and
whatever is made of numbers in 16 bits, which are computed in 32 and may stay so until they are stored. So a split after
which the two sides of such a comparison are made of one of these from two places is not offered.

    steady = Steady(start)          # of a program whose equations are numbered
    steady.holds(candidate)         # whether the sides of every comparison share each such sum's place

Both sides may also be made of one array that is computed once, from whatever places: where the body of a scan takes a
maximum of its own sum, it does not matter that the state which it was given comes from here or from there.

Two comparisons may have a place each: the nearest neighbours of rows and those of columns are found in two loops, each
with distances of its own.

XLA itself computes an element-wise equation again in each kernel that reads it, as in that of a maximum and in that
which compares with it. What may be rounded otherwise in the two is split only sealed, on CPUs.

A maximum of two values that is compared with one of them, as in its derivative, is compared with what it was made of
there: wherever both came from, it is one value that is on both sides.

What is sealed (`exla.passes.seal`) is computed by the same code wherever it is cut alike, so that its places are one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from exla import _compat
from exla._compat import Literal
from exla.ir.memory import Path
from exla.ir.primitives import FUSIBLE
from exla.ir.program import Program, program_of, variables
from exla.ir.scopes import equation_number
from exla.passes.paths import program_at
from exla.passes.rounding import LOOKED_THROUGH, depends_on_place, is_inexact, is_narrow, is_sealed, made_by
from exla.passes.split.loop import Carry, Loop

COMPARISONS = frozenset({"eq", "ne"})
CHOOSING = frozenset({"max", "min", "clamp"})
"""Element-wise equations whose result is one of their operands."""


@dataclass(frozen=True, kw_only=True)
class Steady:
    """What must be computed in one place.

    Attributes:
      program: whose equations are numbered.
      seals: whether what is computed several times can be sealed for the device (`Machine.keeps_branches`).
    """

    program: Program
    seals: bool = True

    @cached_property
    def numbers(self) -> frozenset[Name]:
        """The equations that both sides of some comparison of floating point numbers are made of."""
        return frozenset().union(*(shared for shared, _ in self._compared))

    @cached_property
    def source(self) -> str:
        """The user's line of the first such comparison; "" where there is none."""
        return next((source for _, source in self._compared), "")

    @cached_property
    def comparisons(self) -> list[tuple[Path, int]]:
        """Where such comparisons are: the way to the program, and the position there."""
        places = [place for place, (shared, _) in self._walked.compared.items() if shared]
        return [(tuple(zip(place[:-1:2], place[1::2], strict=True)), place[-1]) for place in places]

    @cached_property
    def is_computed_again(self) -> bool:
        """Whether something whose bits depend on its place is computed in two places, though it is one equation.

        XLA computes element-wise equations again in each kernel that reads them: that of a maximum, and that which
        compares with it. Where the two may round otherwise, the value must be sealed.
        """
        return self.seals and any(
            _is_computed_again(program_at(self.program, path), position) for path, position in self.comparisons
        )

    @cached_property
    def _compared(self) -> list[tuple[frozenset[Name], str]]:
        """What both sides of a comparison are made of, where there is such, and the user's line of it."""
        return [(shared, source) for shared, source in self._walked.compared.values() if shared]

    @cached_property
    def _walked(self) -> Walk:
        walk = Walk(None)
        if _compares(self.program):
            walk.run(self.program, [NOWHERE] * len(self.program.invars), ())
        return walk

    def holds(self, candidate: Program) -> bool:
        """Whether the sides of each comparison in a program that splits made of this one share their places."""
        if not self.numbers:
            return True
        if self.is_computed_again:
            return False
        if "steady" not in candidate.known:
            walk = Walk(self.numbers)
            walk.run(candidate, [NOWHERE] * len(candidate.invars), ())
            candidate.known["steady"] = walk.holds
        return candidate.known["steady"]


def is_with_choice(program: Program, comparison: Any) -> bool:
    """Whether one side of a comparison is the larger or smaller one of the other and something else."""
    one, other = comparison.invars
    return _is_chosen_from(program, one, other) or _is_chosen_from(program, other, one)


def _is_chosen_from(program: Program, chosen: Any, var: Any) -> bool:
    """Whether a value is the larger or smaller one of another and something else."""
    position = None if isinstance(chosen, Literal) else program.producers.get(chosen)
    eqn = None if position is None else program.eqns[position]
    return eqn is not None and eqn.primitive.name in CHOOSING and any(v is var for v in eqn.invars)


def is_comparison(eqn: Any) -> bool:
    """Whether two values in floating point are compared for equality: not one with itself, which asks for NaNs."""
    if eqn.primitive.name not in COMPARISONS:
        return False
    one, other = eqn.invars
    return one is not other and is_inexact(one) and not isinstance(one, Literal) and not isinstance(other, Literal)


def _compares(program: Program) -> bool:
    """Whether floating point numbers are compared for equality anywhere in a program; most compare none."""
    return any(map(_compares_anywhere, program.eqns))


def _compares_anywhere(eqn: Any) -> bool:
    """Whether an equation compares floating point numbers for equality, or a body of it does."""
    return (
        is_comparison(eqn)
        or ("loop" in eqn.params and _compares(eqn.params["loop"].body))
        or any(_compares(program_of(body.jaxpr)) for body in _compat.bodies(eqn))
    )


def compared_in(program: Program) -> frozenset[Any]:
    """What is compared for equality in a program, or read by a body that compares, and what it is a view of."""
    if "compared" not in program.known:
        found, stack = set[Any](), [v for e in program.eqns if _compares_anywhere(e) for v in _numbers(e)]
        while stack:
            var = stack.pop()
            if var not in found:
                found.add(var)
                position = program.producers.get(var)
                if position is not None and program.eqns[position].primitive.name in LOOKED_THROUGH:
                    stack += _numbers(program.eqns[position])
        program.known["compared"] = frozenset(found)
    return program.known["compared"]


def _numbers(eqn: Any) -> list[Any]:
    """The floating point numbers that an equation reads."""
    return [v for v in variables(eqn.invars) if is_inexact(v)]


Place = tuple[int, ...]
"""Positions of the loops around an equation and, last, its own; of what is sealed, how it is cut."""
Name = int | Place
"""The number of an equation; its place in a program that has no numbers."""


class Array(NamedTuple):
    """A value that is computed once, whatever it is made of: both sides of a comparison may be made of it.

    Attributes:
      key: which; on another turn of a loop of the user's it is another one.
      places: the equations that it is made of, each with a place that computes it.
    """

    key: Place
    places: frozenset[tuple[Name, Place]]


Reach = frozenset[Array]
"""What a value is made of."""
NOWHERE: Reach = frozenset()
SEALED = -2
"""What the place of a sealed equation begins with, which no position is."""


def places(reach: Reach) -> frozenset[tuple[Name, Place]]:
    return frozenset().union(*(array.places for array in reach))


def _names(reach: Reach) -> set[Name]:
    """The equations that a value is made of."""
    return {name for array in reach for name, _ in array.places}


def _other_turn(reach: Reach) -> Reach:
    """What a value is made of, seen from where the arrays of one turn are not those of the next."""
    return frozenset(Array((-1, *at), frozenset(((name, at),))) for name, at in places(reach))


class Walk:
    """Follows which places reach the two sides of each comparison.

    Attributes:
      numbers: the equations that are followed; None = all whose bits depend on where they are computed.
      compared: the place of each comparison -> the equations that both its sides are made of, and the user's line.
      holds: whether each of these reaches both sides of a comparison as one array, or from one place.
    """

    def __init__(self, numbers: frozenset[Name] | None) -> None:
        self.numbers = numbers
        self.compared: dict[Place, tuple[frozenset[Name], str]] = {}
        self.holds = True
        self._chunks: tuple[int, ...] = ()

    def run(self, program: Program, given: Sequence[Reach], here: Place) -> list[Reach]:
        """What the results of a program are made of, from what its inputs are."""
        known: dict[Any, Reach] = dict(zip(program.invars, given, strict=True))

        def of(v: Any) -> Reach:
            return NOWHERE if isinstance(v, Literal) else known.get(v, NOWHERE)

        for position, eqn in enumerate(program.eqns):
            operands, place = [of(v) for v in eqn.invars], (*here, position)
            if eqn.primitive.name == "exla_split":
                results = self._loop(eqn.params["loop"], operands, place)
            else:
                self.meet(program, position, operands, place)
                results = self.equation(program, eqn, operands, place)
            known.update(zip(eqn.outvars, results, strict=True))
        return [of(v) for v in program.outvars]

    def meet(self, program: Program, position: int, operands: Sequence[Reach], place: Place) -> None:
        """See what comes together in an equation."""
        eqn = program.eqns[position]
        if is_comparison(eqn) and not self._is_one(program, eqn):
            self._compare(operands[0], operands[1], place, program.source(position))

    def at(self, eqn: Any, place: Place) -> Place:
        """Where an equation is computed, as far as it matters for its bits."""
        if not is_sealed(eqn):
            return place
        return (SEALED, *self._chunks, SEALED, *(n for v in (*eqn.invars, *eqn.outvars) for n in v.aval.shape))

    def equation(self, program: Program, eqn: Any, operands: Sequence[Reach], place: Place) -> list[Reach]:
        """What the results of an equation are made of."""
        made = NOWHERE.union(*operands)
        has_turns = _compat.bodies(eqn) and not is_sealed(eqn)
        results = self._turns(eqn, operands, place) if has_turns else [made] * len(eqn.outvars)
        number = equation_number(eqn)
        name = place if number is None else number
        if (
            name in self.numbers
            if self.numbers is not None and number is not None
            else self._varies(program, eqn, name)
        ):
            own = frozenset(((name, self.at(eqn, place)),))
            return [frozenset((Array((*place, k), own | places(reach)),)) for k, reach in enumerate(results)]
        return results

    def _is_one(self, program: Program, comparison: Any) -> bool:
        """Whether a split leaves a maximum to be compared with the very value that it was chosen from."""
        return self.numbers is not None and is_with_choice(program, comparison)

    def _varies(self, program: Program, eqn: Any, name: Name) -> bool:
        """Whether an equation that is to be followed has other bits where it is computed elsewhere."""
        return (self.numbers is None or name in self.numbers) and depends_on_place(program, eqn)

    def _turns(self, eqn: Any, operands: Sequence[Reach], place: Place) -> list[Reach]:
        """What the results of the user's control flow are made of: what its turns make of what they are given."""
        turns, every = _compat.turns(eqn), range(len(eqn.outvars))
        taken = {p for turn in turns for p in turn.takes}
        chosen_by = NOWHERE.union(*(reach for p, reach in enumerate(operands) if p not in taken))
        given, before, results = list(operands), list[Reach](), [chosen_by for _ in every]
        while given != before:  # what one turn makes, the next may read
            before = list(given)
            for k, turn in enumerate(turns):
                there, takes = (*place, k), [places(before[p]) for p in turn.takes]
                inner = [frozenset((Array((*there, -1 - j), at),)) if at else NOWHERE for j, at in enumerate(takes)]
                made = self.run(program_of(turn.body.jaxpr), inner, there)
                for reach, becomes, gives in zip(map(_other_turn, made), turn.becomes, turn.gives, strict=True):
                    if becomes is not None:
                        reach = given[becomes] = given[becomes] | reach
                    for result in every if gives is None else (gives,):
                        results[result] |= reach
        return results

    def _loop(self, loop: Loop, operands: Sequence[Reach], place: Place) -> list[Reach]:
        """What a chunk loop's results are made of; the remainder computes the same in the same place."""
        body = loop.body
        given = {v: operands[k] for v, k, _ in loop.inputs(body)}
        states = loop.states(body)
        starts = [NOWHERE.union(*(operands[k] for k in c.start)) for c in loop.carries for _ in range(c.parts)]
        given.update(zip(states, starts, strict=True))
        while True:
            around, self._chunks = self._chunks, (*self._chunks, loop.chunk)
            partials = self.run(body, [given.get(v, NOWHERE) for v in body.invars], place)
            self._chunks = around
            results, carried = list[Reach](), list[Reach]()
            for output in loop.outputs:
                mine, partials = partials[: output.parts], partials[output.parts :]
                results += [NOWHERE.union(*mine)] * len(output.avals)
                carried += mine if isinstance(output, Carry) else []
            grown = {v: given[v] | reach for v, reach in zip(states, carried, strict=True)}
            if all(given[v] == reach for v, reach in grown.items()):
                return results
            given.update(grown)

    def _compare(self, left: Reach, right: Reach, place: Place, source: str) -> None:
        known, _ = self.compared.get(place, (frozenset[Name](), source))
        shared = _names(left) & _names(right)
        self.compared[place] = (known | shared, source)
        arrays, found = defaultdict[Name, set[Place]](set), defaultdict[Name, set[Place]](set)
        for array in left | right if shared else ():
            for name, at in array.places:
                arrays[name].add(array.key)
                found[name].add(at)
        self.holds &= all(len(arrays[name]) == 1 or len(found[name]) == 1 for name in shared)


def compared(program: Program, comparison: int) -> list[int]:
    """What a side of a comparison is, and the other is made of: positions of the equations that make it."""
    one, other = program.eqns[comparison].invars
    found = []
    for v, w in ((one, other), (other, one)):
        at = made_by(program, v, LOOKED_THROUGH - {"convert_element_type"})
        if at is not None and at in before(program, w):
            found.append(at)
    return found


def before(program: Program, var: Any, through: Callable[[Any], bool] = lambda eqn: True) -> set[int]:
    """Positions of the equations that a value is made of.

    Args:
      program: the program.
      var: the value.
      through: which equations are followed to their operands; the others are found, and not gone beyond.
    """
    found: set[int] = set()
    stack = variables([var])
    while stack:
        position = program.producers.get(stack.pop())
        if position is not None and position not in found:
            found.add(position)
            stack += program.operands[position] if through(program.eqns[position]) else []
    return found


def _is_computed_again(program: Program, comparison: int) -> bool:
    """Whether what is compared is computed in the kernel of a reduction, and again where it is compared with that."""
    sides = program.eqns[comparison].invars
    for at in compared(program, comparison):
        kernel = (program.eqns[p] for p in before(program, program.eqns[at].outvars[0], _is_fused))
        if any(_is_fused(e) and depends_on_place(program, e) and not any(map(is_narrow, e.outvars)) for e in kernel):
            later = {p for v in sides for p in before(program, v) if p > at and not _is_fused(program.eqns[p])}
            if any(at in before(program, program.eqns[p].outvars[0]) for p in later):
                return True
    return False


def _is_fused(eqn: Any) -> bool:
    return eqn.primitive.name in FUSIBLE
