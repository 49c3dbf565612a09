"""The distribute pass: what is made of different comparisons for equality is made of values of its own.

    rewrite: reduce_sum((a + b) * g)  ->  reduce_sum(a * g) + reduce_sum(b' * g')

Where a is made of `x == min(x, 0)` and b of `x == min(x, 1)`, as in the gradient of the Chamfer distance, whatever cuts
`x` cuts both minima with it, and the comparisons need it in several loops, where what is compared must be computed in
one (`exla.passes.steady`). Apart, the minima over rows and all that follows from them are computed in one loop over the
rows, those over columns in one over the columns, each from an `x` of its own: every comparison after the first gets a
copy of the large values that it and its followers read, computed again of what is small (b', g'). A sum whose terms
follow from different comparisons is taken of each term by itself.

It takes the time of the copies, and is chosen where nothing else obeys the limit. The terms are the same and are added
in another order; under numerics="exact", and in types below 32 bits, nothing is distributed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from jax import lax

from exla import _compat
from exla._compat import Literal
from exla.errors import ReplayMiss
from exla.ir.memory import Path
from exla.ir.numbering import DRAWING
from exla.ir.primitives import named
from exla.ir.program import Program, is_zero, value_bytes, variables
from exla.passes.collect import ADDS, LINEAR
from exla.passes.decisions import Distribute
from exla.passes.paths import at_site, bodies_to_rewrite
from exla.passes.reorder import TYPES
from exla.passes.rewritten import Get, rewritten_at
from exla.passes.rounding import made_by
from exla.passes.seal import SMALLER
from exla.passes.steady import Steady, is_comparison, is_with_choice

SUMS = named("reduce_sum dot_general")
MOST_COMPARISONS = 8
"""Copies that are made at most, and one."""
MOST_TERMS = 16
"""A sum of more is not taken term by term."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """One of the terms that a value is the sum of.

    Attributes:
      leaf: the value that it is made of.
      which: of which comparison's copy.
      subtracted: whether it is subtracted.
      steps: what is done with the leaf, as positions of equations and of their operands.
    """

    leaf: Any
    which: int
    subtracted: bool = False
    steps: tuple[tuple[int, int], ...] = ()

    def through(self, program: Program, get: Get) -> Any:
        """The term, taken through its steps."""
        value = get(self.leaf)
        for position, k in self.steps:
            eqn = program.eqns[position]
            (value,) = _compat.bind(eqn, *(value if i == k else get(v) for i, v in enumerate(eqn.invars)))
        return lax.neg(value) if self.subtracted else value


@dataclass(frozen=True, kw_only=True)
class Apart:
    """What follows from which comparison in a program; comparisons with one extreme are one.

    Attributes:
      program: the program.
      first: position of the first comparison of a large value with an extreme, which large values are reduced to.
      large: the values of which a comparison gets a copy.
      made: these, and all that is made of them.
      follows: value -> the comparisons that it is made of through large values, a set of bits.
      leads: value -> the comparisons that are made of it, likewise.
      owners: position of what reduces large values to an extreme -> the comparison with that.
    """

    program: Program
    first: int
    large: Set[Any]
    made: Set[Any]
    follows: Mapping[Any, int]
    leads: Mapping[Any, int]
    owners: Mapping[int, int]

    @classmethod
    def of(cls, program: Program) -> Apart | None:
        """Of a program; None where no large value leads to several through others, or one cannot be copied."""
        compared = {at: max(map(value_bytes, eqn.invars)) for at, eqn in enumerate(program.eqns) if is_comparison(eqn)}
        least = max(compared.values(), default=0) // SMALLER
        large, made, late, follows = set[Any](), set[Any](), set[Any](), dict[Any, int]()
        extremes, owns = dict[int, int](), dict[int, int]()
        for position, eqn in enumerate(program.eqns):
            large.update(v for v in eqn.outvars if value_bytes(v) > least)
            read = program.operands[position]
            if (eqn.effects or eqn.primitive.name in DRAWING) and not large.isdisjoint(eqn.outvars):
                return None
            if not large.isdisjoint(eqn.outvars) or not made.isdisjoint(read):
                made.update(eqn.outvars)
            if any(v in late or (v in made and v not in large) for v in read):
                late.update(eqn.outvars)
            bits = _union(follows, (v for v in read if v in large))
            if compared.get(position, 0) > least:
                extreme = next((at for v in eqn.invars if (at := _extreme(program, v, made - large)) is not None), None)
                if extreme is not None:
                    owns[position] = extremes.setdefault(extreme, len(extremes))
                    bits |= 1 << owns[position]
                elif not late.isdisjoint(eqn.outvars) and not is_with_choice(program, eqn):
                    bits |= 1  # its other side may be an extreme of the first copy all the same
            follows |= dict.fromkeys(eqn.outvars, bits)
        owners = _owners(program, extremes, large, made)
        if owners is None or not 1 < len(extremes) <= MOST_COMPARISONS:
            return None
        leads, directly = dict[Any, int](), dict[Any, int]()
        for position in reversed(range(len(program.eqns))):
            own = 1 << owns[position] if position in owns else 0
            made_of_it = program.eqns[position].outvars
            for bits_of, among in ((leads, made_of_it), (directly, [v for v in made_of_it if v in large])):
                further = own | _union(bits_of, among)
                bits_of.update({v: further | bits_of.get(v, 0) for v in program.operands[position]})
        if not any(bits & (bits - 1) for v, bits in directly.items() if v in large):
            return None
        return cls(
            program=program, first=min(owns), large=large, made=made, follows=follows, leads=leads, owners=owners
        )

    def computes(self) -> dict[int, Callable[[Get], list[Any]]]:
        """How each small value is computed that is made of a copy, by position; none where copies would mix.

        What follows from a comparison reads what its copy makes of it: another's would be compared with the extreme of
        one, which may have other bits.
        """
        known: list[dict[Any, Any]] = [{} for _ in range(MOST_COMPARISONS)]
        found = dict[int, Callable[[Get], list[Any]]]()
        for position, eqn in enumerate(self.program.eqns):
            made, read = (self.large & set(v) for v in (eqn.outvars, self.program.operands[position]))
            if eqn.effects or (made and len(made) < len(eqn.outvars)):  # it stays one, for the first copy
                if (_union(self.follows, read | set(eqn.outvars)) | 1 << self.owners.get(position, 0)) & ~1:
                    return {}
                continue
            if made or not read:
                continue
            terms = self._terms_of(eqn)
            if len(terms) == 1 and position in self.owners:
                terms = (replace(terms[0], which=self.owners[position]),)
            if any(self._follows(term) & ~(1 << term.which) for term in terms):
                return {}
            if len(terms) > 1 or terms[0].which > 0:
                found[position] = functools.partial(self._compute, position, terms, known)
        results = (v for v in variables(self.program.outvars) if v in self.large)
        return {} if _union(self.follows, results) & ~1 else found

    def _follows(self, term: Term) -> int:
        """The comparisons from which follows what a term is made of."""
        read = [v for at, k in term.steps for i, v in enumerate(self.program.eqns[at].invars) if i != k]
        return _union(self.follows, (v for v in variables([term.leaf, *read]) if v is term.leaf or v in self.large))

    def _compute(self, position: int, terms: tuple[Term, ...], known: list[dict[Any, Any]], get: Get) -> list[Any]:
        """The results of an equation that makes small values of large ones."""
        if len(terms) > 1:
            parts = [t.through(self.program, self._copy(known[t.which], t.which, get)) for t in terms]
            return [functools.reduce(lax.add, parts)]
        eqn = self.program.eqns[position]
        return _compat.bind(eqn, *map(self._copy(known[terms[0].which], terms[0].which, get), eqn.invars))

    def _term(self, value: Any) -> Term:
        """A value as a term, of the comparison that it follows from, or else leads to."""
        bits = 0 if isinstance(value, Literal) else self.follows.get(value, 0) or self.leads.get(value, 0)
        return Term(leaf=value, which=bits.bit_length() - 1 if bits and bits & (bits - 1) == 0 else 0)

    def _copy(self, there: dict[Any, Any], which: int, get: Get) -> Get:
        """From a value of the program to the one that a comparison has of it: a copy of what is large.

        What a copy is made of goes through barriers, so that nobody takes one copy for another.
        """

        def copied(atom: Any) -> Any:
            if which == 0 or isinstance(atom, Literal) or (atom in self.made and atom not in self.large):
                return get(atom)
            if atom in there:
                return there[atom]
            if atom in self.large:
                for position in self._made_of(atom, there):
                    eqn = self.program.eqns[position]
                    there.update(zip(eqn.outvars, _compat.bind(eqn, *map(copied, eqn.invars)), strict=True))
            else:
                there[atom] = get(atom)
                for _ in range(which):
                    there[atom] = lax.optimization_barrier(there[atom])
            return there[atom]

        return copied

    def _made_of(self, value: Any, there: Mapping[Any, Any]) -> list[int]:
        """The equations that make a large value of what is small, or there, in order."""
        stack, found = [value], set[int]()
        while stack:
            position = self.program.producers[stack.pop()]
            if position not in found:
                found.add(position)
                stack += [v for v in self.program.operands[position] if v in self.large and v not in there]
        return sorted(found)

    def _terms_of(self, eqn: Any) -> tuple[Term, ...]:
        """What an equation makes as a sum of terms that follow from different comparisons; itself where it is none."""
        result = eqn.outvars[0]
        if eqn.primitive.name not in SUMS or str(result.aval.dtype) not in TYPES:
            return (self._term(result),)
        return self._terms[result]

    @functools.cached_property
    def _terms(self) -> dict[Any, tuple[Term, ...]]:
        """Each value that follows from a comparison as a sum of terms."""
        found = dict[Any, tuple[Term, ...]]()
        for position, eqn in enumerate(self.program.eqns):
            terms = self._sum(position, found) if len(eqn.outvars) == 1 else ()
            is_sum = 1 < len(terms) <= MOST_TERMS
            found |= {v: terms if is_sum else (self._term(v),) for v in eqn.outvars}
        return found

    def _sum(self, position: int, known: Mapping[Any, tuple[Term, ...]]) -> tuple[Term, ...]:
        """An equation's result as a sum of several terms; nothing where it is none."""
        eqn = self.program.eqns[position]
        if not self.follows.get(eqn.outvars[0]):
            return ()
        terms = [() if isinstance(v, Literal) else known.get(v, ()) for v in eqn.invars]
        name = eqn.primitive.name
        if name in ADDS or name == "sub":
            one, other = (of or (self._term(v),) for of, v in zip(terms, eqn.invars, strict=True))
            if len({_union(self.follows, variables([v])) for v in eqn.invars} - {0}) == 2 or len(one) + len(other) > 2:
                return (*one, *(replace(t, subtracted=t.subtracted ^ (name == "sub")) for t in other))
        k = next((k for k in self._linear_in(eqn) if len(terms[k]) > 1), None)
        return () if k is None else tuple(replace(t, steps=(*t.steps, (position, k))) for t in terms[k])

    def _linear_in(self, eqn: Any) -> Iterator[int]:
        """The operands of an equation that makes of their sum the sum of what it makes of them."""
        if eqn.primitive.name in LINEAR:
            yield from range(len(eqn.invars))
        elif eqn.primitive.name == "div":
            yield 0
        elif eqn.primitive.name == "select_n":
            cases = range(1, len(eqn.invars))
            yield from (k for k in cases if all(is_zero(self.program, eqn.invars[i]) for i in cases if i != k))


def enumerate_distributions(steady: Steady) -> Iterator[Distribute]:
    """Offer to make what follows from different comparisons of values of its own.

    Args:
      steady: of the program.

    Yields:
      One decision for each program that has such comparisons, which names the first of them.
    """
    if steady.numbers:
        yield from _distributions(steady.program, ())


def _distributions(program: Program, path: Path) -> Iterator[Distribute]:
    apart = Apart.of(program)
    if apart is not None and apart.computes():
        yield Distribute(path=path, site=program.site(apart.first))
    for body, inner in bodies_to_rewrite(program, path):
        yield from _distributions(body, inner)


def apply_distribute(program: Program, decision: Distribute) -> Program:
    """Replay a distribution.

    Raises:
      ReplayMiss: if there are no such comparisons.
    """

    def change(inner: Program, position: int) -> Program:
        apart = Apart.of(inner)
        computes = apart.computes() if apart is not None and apart.first == position else {}
        if not computes:
            raise ReplayMiss(f"{decision}: it is not the first of comparisons from which different things follow")
        return rewritten_at(inner, computes)

    return at_site(program, decision, change)


def _extreme(program: Program, value: Any, small: Set[Any]) -> int | None:
    """The position of what makes a side of a comparison, where it is one of some small values, whatever moves it."""
    position = made_by(program, value)
    return None if position is None or small.isdisjoint(program.eqns[position].outvars) else position


def _owners(program: Program, extremes: Mapping[int, int], large: Set[Any], made: Set[Any]) -> dict[int, int] | None:
    """Which comparison each equation belongs to that reduces large values to an extreme; None where one has two."""
    found: dict[int, int] = {}
    for extreme, which in extremes.items():
        stack, seen = [extreme], set[int]()
        while stack:
            position = stack.pop()
            if position in seen:
                continue
            seen.add(position)
            read = program.operands[position]
            touched = [*read, *program.eqns[position].outvars]
            if not large.isdisjoint(touched) and found.setdefault(position, which) != which:
                return None
            stack += [program.producers[v] for v in read if v in made and v not in large]
    return found


def _union(bits: Mapping[Any, int], values: Iterable[Any]) -> int:
    return functools.reduce(int.__or__, (bits.get(v, 0) for v in values), 0)
