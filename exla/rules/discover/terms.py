"""Terms: a graph as nested tuples, which is the form that is renamed, matched and rewritten.

    ("in", 0, "ij")                        the first input
    ("dot", "j", x, y)                     x and y are terms
    ("exp", "", x)

Equal terms are equal values, so that what a graph shares is what occurs twice in its term. Operands of `add`,
`multiply` and `dot` are kept in sorted order: a term is the same however the user swapped them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from exla.rules.graphs import Equation, Graph

Term = tuple[Any, ...]
Pair = tuple[Term, Term]

LETTERS = "ijklmn"


def make(op: str, axes: str, *operands: Term) -> Term:
    """A term; operands of commutative operations are sorted."""
    return (op, axes, *(sorted(operands, key=repr) if len(operands) == 2 else operands))


@lru_cache(maxsize=100_000)
def axes_of(term: Term) -> str:
    """The axes of a term's value, in alphabetical order."""
    op, axes, *operands = term
    if op == "in":
        return "".join(sorted(operands[0]))
    found = {a for t in operands for a in axes_of(t)}
    return "".join(sorted(found | set(axes) if op == "broadcast" else found - set(axes)))


def subterms(term: Term) -> Iterator[Term]:
    """Every subterm once, operands before what reads them."""
    seen: set[Term] = set()

    def visit(t: Term) -> Iterator[Term]:
        if t in seen:
            return
        seen.add(t)
        if t[0] != "in":
            for operand in t[2:]:
                yield from visit(operand)
        yield t

    yield from visit(term)


def inputs_of(term: Term) -> tuple[Term, ...]:
    """The inputs that a term reads, in order of their numbers."""
    return tuple(sorted((t for t in subterms(term) if t[0] == "in"), key=lambda t: t[1]))


def size_of(term: Term) -> int:
    """How many equations a term is."""
    return sum(t[0] != "in" for t in subterms(term))


def replace(term: Term, table: Mapping[Term, Term]) -> Term:
    """A term with subterms replaced."""
    if term in table:
        return table[term]
    if term[0] == "in":
        return term
    return make(term[0], term[1], *(replace(t, table) for t in term[2:]))


def to_graphs(pair: Pair) -> tuple[Graph, Graph]:
    """Both sides as graphs of the same inputs, those of the first side, with results in the same order."""
    inputs = inputs_of(pair[0])
    if not set(inputs_of(pair[1])) <= set(inputs):
        raise ValueError("the second term reads inputs that the first does not")
    output = axes_of(pair[0])
    return _to_graph(pair[0], inputs, output), _to_graph(pair[1], inputs, output)


def _to_graph(term: Term, inputs: tuple[Term, ...], output: str) -> Graph:
    numbers = {t: n for n, t in enumerate(inputs)}
    equations = []
    for t in subterms(term):
        if t[0] != "in":
            equations.append(Equation(op=t[0], operands=tuple(numbers[o] for o in t[2:]), axes=t[1]))
            numbers[t] = len(numbers)
    return Graph(inputs=tuple(t[2] for t in inputs), equations=tuple(equations), output=output)


def from_graph(graph: Graph) -> Term:
    """The term of a graph."""
    terms: list[Term] = [("in", n, axes) for n, axes in enumerate(graph.inputs)]
    for equation in graph.equations:
        terms.append(make(equation.op, equation.axes, *(terms[k] for k in equation.operands)))
    return terms[-1]


@lru_cache(maxsize=100_000)
def canonical(pair: Pair) -> Pair:
    """The same pair for all pairs that differ in the names of inputs and axes and in the order of operands."""
    inputs = inputs_of(pair[0])
    letters = sorted({a for t in inputs for a in t[2]})
    best: tuple[str, Pair] | None = None
    for names in itertools.permutations(LETTERS[: len(letters)]):
        axes = dict(zip(letters, names, strict=True))
        for order in itertools.permutations(range(len(inputs))):
            table = {t: ("in", n, "".join(sorted(axes[a] for a in t[2]))) for t, n in zip(inputs, order, strict=True)}
            renamed = (_renamed(pair[0], table, axes), _renamed(pair[1], table, axes))
            text = repr((sorted(table.values(), key=lambda t: t[1]), renamed))
            if best is None or text < best[0]:
                best = (text, renamed)
    assert best is not None
    return best[1]


def _renamed(term: Term, table: Mapping[Term, Term], axes: Mapping[str, str]) -> Term:
    if term[0] == "in":
        return table[term]
    return make(term[0], "".join(sorted(axes[a] for a in term[1])), *(_renamed(t, table, axes) for t in term[2:]))


def by_operation(rules: Iterable[Pair]) -> dict[str, list[Pair]]:
    """Rules by the operation that their first sides end with."""
    table: dict[str, list[Pair]] = {}
    for rule in rules:
        table.setdefault(rule[0][0], []).append(rule)
    return table


def rewrites(term: Term, rules: Mapping[str, Sequence[Pair]]) -> Iterator[Term]:
    """Everything that one use of one rule makes of a term; rules are given by operation.

    A rule holds with any axes in place of its own: one axis may stand for several, and one that is not summed over for
    any that the operands have beside (a rule is used on vectors, and on a batch of them).
    """
    for place in subterms(term):
        for pattern, replacement in rules.get(place[0], ()):
            for values, names in _matches(pattern, place, {}, {}):
                if _fits(values, names) and names.keys() >= _named_axes(replacement):
                    made = _instance(replacement, values, names)
                    if axes_of(made) == axes_of(place):
                        yield replace(term, {place: made})


Values = dict[Term, Term]
Names = dict[str, str]


def _matches(pattern: Term, term: Term, values: Values, names: Names) -> Iterator[tuple[Values, Names]]:
    if pattern[0] == "in":
        if values.get(pattern, term) == term:
            yield {**values, pattern: term}, names
        return
    if pattern[0] != term[0] or len(pattern[1]) > len(term[1]):
        return
    for named in _named(pattern[1], term[1], names):
        for operands in {term[2:], term[:1:-1]}:
            yield from _match_all(pattern[2:], operands, values, named)


def _match_all(patterns: Term, terms: Term, values: Values, names: Names) -> Iterator[tuple[Values, Names]]:
    if not patterns:
        yield values, names
        return
    for found, named in _matches(patterns[0], terms[0], values, names):
        yield from _match_all(patterns[1:], terms[1:], found, named)


def _named(pattern: str, axes: str, names: Names) -> Iterator[Names]:
    """Every way in which the axes of a pattern's equation can stand for those of a term's, each for one at least."""
    for choice in itertools.product(pattern, repeat=len(axes)):
        table = {p: "".join(a for a, c in zip(axes, choice, strict=True) if c == p) for p in pattern}
        if all(table.values()) and all(names.get(p, a) == a for p, a in table.items()):
            yield {**names, **table}


@lru_cache(maxsize=10_000)
def _named_axes(term: Term) -> frozenset[str]:
    return frozenset(a for t in subterms(term) if t[0] != "in" for a in t[1])


def _fits(values: Values, names: Names) -> bool:
    for pattern, term in values.items():
        axes = set(axes_of(term))
        for name, stands_for in names.items():
            if name in pattern[2] and not set(stands_for) <= axes or name not in pattern[2] and set(stands_for) & axes:
                return False
    return True


def _instance(term: Term, values: Values, names: Names) -> Term:
    if term[0] == "in":
        return values[term]
    axes = "".join(sorted(a for name in term[1] for a in names[name]))
    return make(term[0], axes, *(_instance(t, values, names) for t in term[2:]))
