"""Match: find a traced pattern in a program, however it is spelled there.

Both are walked from a result towards the inputs, as `exla.ir.indexed` describes: equation by equation they must be the
same, whatever order the axes have and whichever operand of a sum or product comes first.

An axis of the pattern is known by where it appears: the `k` of `sum_k (x[i, k] - y[j, k])^2` is summed, and is in both
arguments. Each index of the program is compared with that. Several with the appearance of one pattern axis are taken
together (points that lie on a grid are still points), one that no pattern axis is like is a batch axis if it reaches
the result (the pattern is vmapped), and anything else is no match.

What it does not do: look through reshapes that split or join axes, or through control flow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from exla import _compat
from exla._compat import Literal
from exla.ir.indexed import RENAMING, Indexed, Term
from exla.ir.primitives import ELEMENTWISE, REDUCERS, named
from exla.ir.program import Program
from exla.ir.rewrites import Match
from exla.passes.patterns import BATCH, Pattern

COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne", "add_any"})
BY_AXIS = named("""
    dimension_numbers axes dimension axis dimensions sharding out_sharding shape start_indices limit_indices strides
    weak_type new_sizes
""")
"""Parameters that name axes or sizes which the factor rule has followed already, or that do not matter."""
UNORDERED = REDUCERS | {"dot_general"}
"""Primitives to which it is all the same which of the axes that they end is which."""
MOST_STEPS = 4000


Place = tuple[tuple[int | None, ...], tuple[int | None, ...]]
"""Indices of both sides that belong together: what an equation reduces, a whole axis, the axis of an iota."""


@dataclass(frozen=True)
class _Seen:
    """What the walk has compared so far: the trace of both sides, in the same order."""

    leaves: tuple[tuple[str, Term, Term], ...] = ()
    """(argument, its term in the pattern, its term in the program) for each appearance."""
    places: tuple[Place, ...] = ()
    numbers: tuple[tuple[Any, Any], ...] = ()
    """Integers of both sides that must be equal, or stand for a size."""
    inside: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Found:
    """A match, with what is needed to rewrite it.

    Attributes:
      match: for guards.
      terms: argument name -> its term in the program.
      groups: index of the pattern -> indices of the program that it stands for, outermost first.
      arguments: argument name -> the pattern's indices along its axes.
      batch: further indices of the result.
      sizes: index -> how many.
      results: terms of the results.
      axes: for each result of the pattern, the pattern's indices along its axes.
      leaves: the program's variables that the pattern's equations read.
    """

    match: Match
    terms: Mapping[str, Term]
    groups: Mapping[int, tuple[int, ...]]
    arguments: Mapping[str, tuple[int | None, ...]]
    batch: tuple[int, ...]
    sizes: Mapping[int, int]
    results: tuple[Term, ...]
    axes: tuple[tuple[int | None, ...], ...]
    leaves: tuple[Any, ...]


class Matcher:
    """One attempt to find a pattern at one equation."""

    def __init__(self, pattern: Pattern, program: Program) -> None:
        self.pattern = pattern
        self.names = dict(zip(pattern.program.invars, pattern.axes, strict=True))
        self.left, self.right = Indexed(pattern.program), Indexed(program)
        self.steps = 0

    def at(self, position: int) -> Found | None:
        """The match whose results are those of the equation at `position`."""
        ours, theirs = self.pattern.program.eqns[self.pattern.root], self.right.program.eqns[position]
        if ours.primitive.name != theirs.primitive.name or len(ours.outvars) != len(theirs.outvars):
            return None
        wanted = set(self.pattern.program.outvars)
        first = [self.left.whole(v) for v in ours.outvars]
        second = [self.right.whole(v) for v in theirs.outvars]
        for var, theirs_var in zip(ours.outvars, theirs.outvars, strict=True):
            if var not in wanted and not _compat.is_drop(theirs_var) and theirs_var in self._used():
                return None
        _share(first, ours)
        _share(second, theirs)
        for seen in self._equation(self.pattern.root, position, first, second, _Seen()):
            found = self._read(seen, position, first, second)
            if found is not None:
                return found
        return None

    def _used(self) -> set[Any]:
        program = self.right.program
        return set(program.consumers) | {v for v in program.outvars if not isinstance(v, Literal)}

    def _terms(self, ours: Term, theirs: Term, seen: _Seen) -> Iterator[_Seen]:
        """Every way in which a term of the pattern is one of the program."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            return
        ours, theirs = self.left.peel(ours), self.right.peel(theirs)
        if isinstance(ours.atom, Literal):
            if isinstance(theirs.atom, Literal):
                yield _Seen(seen.leaves, seen.places, (*seen.numbers, (ours.atom.val, theirs.atom.val)), seen.inside)
            return
        name = self.names.get(ours.atom)
        if name is not None:
            before = next((t for n, _, t in seen.leaves if n == name), None)
            if before is None or _same(before.atom, theirs.atom):
                yield _Seen((*seen.leaves, (name, ours, theirs)), seen.places, seen.numbers, seen.inside)
            return
        if isinstance(theirs.atom, Literal):
            return
        i, k = self.left.program.producers.get(ours.atom), self.right.program.producers.get(theirs.atom)
        if i is None or k is None:
            return
        first = [ours if v is ours.atom else None for v in self.left.program.eqns[i].outvars]
        second = [theirs if v is theirs.atom else None for v in self.right.program.eqns[k].outvars]
        yield from self._equation(i, k, first, second, seen)

    def _equation(
        self, i: int, k: int, ours: Sequence[Term | None], theirs: Sequence[Term | None], seen: _Seen
    ) -> Iterator[_Seen]:
        first, second = self.left.program.eqns[i], self.right.program.eqns[k]
        name = first.primitive.name
        if name != second.primitive.name or len(first.invars) != len(second.invars):
            return
        if [t is None for t in ours] != [t is None for t in theirs]:
            return
        numbers = _parameters(first.params, second.params)
        if numbers is None or (name == "slice" and _ranges(first) != _ranges(second)):
            return
        a, b = self.left.operands(i, ours), self.right.operands(k, theirs)
        if a is None or b is None:
            return
        if name == "convert_element_type" and _kinds(first) != _kinds(second):
            return
        places = [] if name in ELEMENTWISE else _places(first, second, (a, ours), (b, theirs))
        if places is None:
            return
        start = _Seen(seen.leaves, (*seen.places, *places), (*seen.numbers, *numbers), seen.inside | {k})
        yield from self._all(list(zip(a, b, strict=True)), start)
        if len(a) == 2 and name in (*COMMUTATIVE, "dot_general"):
            yield from self._all([(a[0], b[1]), (a[1], b[0])], start)

    def _all(self, pairs: list[tuple[Term, Term]], seen: _Seen) -> Iterator[_Seen]:
        if not pairs:
            yield seen
            return
        for after in self._terms(*pairs[0], seen):
            yield from self._all(pairs[1:], after)

    def _read(self, seen: _Seen, position: int, ours: Sequence[Term], theirs: Sequence[Term]) -> Found | None:
        """Check that the indices of both sides correspond, and say how."""
        left, right = _appearances(seen, 0, ours), _appearances(seen, 1, theirs)
        names: dict[int, str] = {}
        for argument, term, _ in seen.leaves:
            for axis, index in zip(self.pattern.axes[argument], term.indices, strict=True):
                if index is not None and names.setdefault(index, axis) != axis:
                    return None
        for index in left:
            size = self.left.sizes[index]
            names.setdefault(index, next((n for n, s in self.pattern.sizes.items() if s == size), f"{size}:{index}"))
        groups: dict[int, list[int]] = {index: [] for index in left}
        batch = []
        reach = {i for t in theirs for i in t.indices if i is not None}
        by_appearance = {where: index for index, where in left.items()}
        for index, where in right.items():
            if where in by_appearance:
                groups[by_appearance[where]].append(index)
            elif index in reach and not any(kind == "place" for kind, *_ in where):
                batch.append(index)
            else:
                like = [mine for mine in by_appearance if _lacks_only_arguments(where, mine)]
                if len(like) != 1:
                    return None
                groups[by_appearance[like[0]]].append(index)
        sizes: dict[str, int] = {}
        for mine, group in groups.items():
            size = math.prod(self.right.sizes[i] for i in group)
            if sizes.setdefault(names[mine], size) != size:
                return None
        if not all(_stands_for(a, b, self.pattern.sizes, sizes) for a, b in seen.numbers):
            return None
        vmapped = [index for index in left if names[index] == BATCH]
        terms: dict[str, Term] = {}
        for argument, _, term in seen.leaves:
            if terms.setdefault(argument, term) is not term and not self._same_axes(seen, argument, groups, batch):
                return None
        program = self.right.program
        cone = _cone(program, position, {t.atom for t in terms.values() if not isinstance(t.atom, Literal)})
        if not all(_is_view(program, i) for i in cone - seen.inside):
            return None
        read = (v for i in sorted(cone) for v in program.eqns[i].invars if not isinstance(v, Literal))
        inner = {v for i in cone for v in program.eqns[i].outvars}
        return Found(
            match=Match(
                program=program,
                position=position,
                bound={n: t.atom for n, t in terms.items()},
                dtypes={n: t.atom.aval.dtype for n, t in terms.items()},
                sizes=sizes,
                inside=cone,
            ),
            terms=terms,
            groups={mine: tuple(group) for mine, group in groups.items()},
            batch=(*(i for mine in vmapped for i in groups[mine]), *batch),
            sizes=dict(self.right.sizes),
            results=tuple(theirs),
            arguments={n: _without(term.indices, vmapped) for n, term, _ in reversed(seen.leaves)},
            axes=tuple(_without(t.indices, vmapped) for t in ours),
            leaves=tuple(dict.fromkeys(v for v in read if v not in inner)),
        )

    def _same_axes(self, seen: _Seen, argument: str, groups: Mapping[int, list[int]], batch: Sequence[int]) -> bool:
        """Whether an argument that appears several times is read along corresponding axes each time."""
        owner = {i: mine for mine, group in groups.items() for i in group} | {i: i for i in batch}
        read = [
            [(owner.get(-1 if i is None else i), i in batch) for i in theirs.indices if i is not None]
            for n, _, theirs in seen.leaves
            if n == argument
        ]
        mine = [[i for i in ours.indices if i is not None] for n, ours, _ in seen.leaves if n == argument]
        for other, axes in zip(read[1:], mine[1:], strict=True):
            renamed: dict[Any, Any] = dict(zip(mine[0], axes, strict=True))
            for (a, is_batch), (b, other_batch) in zip(read[0], other, strict=True):
                if is_batch != other_batch or (a != b if is_batch else renamed.get(a, a) != b):
                    return False
        return True


def _share(terms: list[Term], eqn: Any) -> None:
    """Let the results of one equation that have the same shape share their indices."""
    for k, term in enumerate(terms):
        if eqn.outvars[k].aval.shape == eqn.outvars[0].aval.shape:
            terms[k] = Term(term.atom, terms[0].indices)


def _without(indices: Sequence[int | None], gone: Sequence[int]) -> tuple[int | None, ...]:
    return tuple(i for i in indices if i not in gone)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Literal) or isinstance(b, Literal):
        return isinstance(a, Literal) and isinstance(b, Literal) and np.array_equal(a.val, b.val)
    return a is b


def _places(
    first: Any, second: Any, ours: tuple[Sequence[Term], Sequence[Any]], theirs: tuple[Sequence[Term], Sequence[Any]]
) -> list[Place] | None:
    """The indices that an equation ends or begins on each side, each a place of its own where the order matters."""
    if first.primitive.name == "iota":
        both = [terms[0].indices[eqn.params["dimension"]] for eqn, (_, terms) in ((first, ours), (second, theirs))]
        return [((both[0],), (both[1],))]
    if first.primitive.name == "concatenate":  # a part of one index has none
        along = [
            [t.indices[eqn.params["dimension"]] for t in (*of[0], *of[1])]
            for eqn, of in ((first, ours), (second, theirs))
        ]
        return [((i,), () if k is None else (k,)) for i, k in zip(*along, strict=True)]
    sides: list[tuple[list[int], list[int]]] = []
    for operands, results in (ours, theirs):
        below = [i for t in operands for i in t.indices if i is not None]
        above = [i for t in results if t is not None for i in t.indices if i is not None]
        ends, begins = (i for i in below if i not in above), (i for i in above if i not in below)
        sides.append((list(dict.fromkeys(ends)), list(dict.fromkeys(begins))))
    if first.primitive.name in UNORDERED:
        return [(tuple(sides[0][0]), tuple(sides[1][0]))]
    if any(len(mine) != len(other) for mine, other in zip(*sides, strict=True)):
        return None
    return [((i,), (k,)) for mine, other in zip(*sides, strict=True) for i, k in zip(mine, other, strict=True)]


def _ranges(eqn: Any) -> list[tuple[int, int]]:
    """Where a slice begins, and its stride, for each axis that it shortens."""
    starts = eqn.params["start_indices"]
    strides = eqn.params["strides"] or [1] * len(starts)
    shapes = zip(eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape, strict=True)
    return [(a, s) for a, s, (before, after) in zip(starts, strides, shapes, strict=True) if before != after]


def _kinds(eqn: Any) -> tuple[str, str]:
    """What is converted into what: b(oolean), i(nteger), f(loating), c(omplex)."""
    kinds = [np.dtype(v.aval.dtype).kind for v in (eqn.invars[0], eqn.outvars[0])]
    return kinds[0].replace("u", "i").replace("V", "f"), kinds[1].replace("u", "i").replace("V", "f")


def _appearances(seen: _Seen, side: int, results: Sequence[Term]) -> dict[int, frozenset[Any]]:
    """Index -> everywhere that it appears, in terms that both sides share."""
    found: dict[int, set[Any]] = {}
    for n, (argument, *terms) in enumerate(seen.leaves):
        for index in terms[side].indices:
            if index is not None:
                found.setdefault(index, set()).add(("leaf", n, argument))
    for n, place in enumerate(seen.places):
        for index in place[side]:
            if index is not None:
                found.setdefault(index, set()).add(("place", n))
    for n, term in enumerate(results):
        for index in term.indices:
            if index is not None:
                found.setdefault(index, set()).add(("result", n))
    return {index: frozenset(where) for index, where in found.items()}


def _lacks_only_arguments(theirs: frozenset[Any], ours: frozenset[Any]) -> bool:
    """Whether an index would be a pattern axis if some arguments, which do not have it, were broadcast along it."""
    return theirs < ours and all(kind == "leaf" for kind, *_ in ours - theirs) and any(k == "leaf" for k, *_ in theirs)


def _parameters(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[Any, Any]] | None:
    """Pairs of numbers that must agree; None where some parameter is another one."""
    numbers: list[tuple[Any, Any]] = []
    for name in ours:
        if name in BY_AXIS or name not in theirs:
            continue
        if not _agree(ours[name], theirs[name], numbers):
            return None
    return numbers


def _agree(a: Any, b: Any, numbers: list[tuple[Any, Any]]) -> bool:
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_agree(x, y, numbers) for x, y in zip(a, b, strict=True))
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, (int, np.integer)):
        return _is_type(a) and _is_type(b) or bool(a == b)
    numbers.append((a, b))
    return isinstance(b, (int, np.integer))


def _is_type(x: Any) -> bool:
    """Whether a parameter is a dtype: patterns are traced in float32 and match every dtype that their guard admits."""
    return x is None or isinstance(x, (np.dtype, type)) or (hasattr(x, "dtype") and not hasattr(x, "shape"))


def _stands_for(a: Any, b: Any, pattern_sizes: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """Whether two numbers are equal, or the pattern's is the size of an axis and the program's the size there."""
    axis = None if np.ndim(a) else next((n for n, s in pattern_sizes.items() if s == a), None)
    if axis is not None and axis in sizes:
        return bool(b == sizes[axis])
    return np.array_equal(a, b, equal_nan=_is_floating(a) and _is_floating(b))


def _is_floating(x: Any) -> bool:
    return np.asarray(x).dtype.kind == "f"


def _cone(program: Program, position: int, stop: set[Any]) -> frozenset[int]:
    """Positions of what computes an equation's results from some values."""
    found: set[int] = set()
    stack = [position]
    while stack:
        i = stack.pop()
        if i in found:
            continue
        found.add(i)
        for v in program.eqns[i].invars:
            if not isinstance(v, Literal) and v not in stop and v in program.producers:
                stack.append(program.producers[v])
    return frozenset(found)


def _is_view(program: Program, position: int) -> bool:
    return program.eqns[position].primitive.name in RENAMING


def find(pattern: Pattern, program: Program, position: int) -> Found | None:
    """Find a pattern at one equation.

    Args:
      pattern: a traced spelling.
      program: the program.
      position: the equation that would make the pattern's results.

    Returns:
      The match, or None.
    """
    return Matcher(pattern, program).at(position)
