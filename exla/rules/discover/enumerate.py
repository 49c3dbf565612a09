"""Enumeration: every graph over given inputs, by number of equations, and which of them are equal.

Values with one fingerprint are a *class*. A class is found with its fewest equations; of the graphs that find it so,
the one with the least peak becomes its representative, and larger graphs are built from representatives only. This is
the pruning by common subgraphs: a graph over any other member equals one that is enumerated, by the smaller pair that
is found already.

    signature ("ij", "jk", "k"):   inputs A[ij], B[jk], v[k]
    1 equation:                    sum_j(A), A * B, sum_j(A * B), ...
    2 equations:                   sum_k(sum_j(A * B) * v) and sum_j(A * sum_k(B * v)): one class, a pair

Operands are read by axis name, so that a transposition is never an equation: it would only rename. What else is left
out: inputs of more than two axes and values of more than three, an input that is read under two names (as in A A^T,
which is an instance of A B^T), `exp` of what an `exp` went into, and `log` of anything but sums and products of `exp`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from exla.rules.discover.cost import peak_elements
from exla.rules.discover.fingerprint import Residues, apply, digest, draw
from exla.rules.discover.terms import LETTERS, Term, make

MOST_AXES_OF_INPUT = 2
MOST_AXES_OF_VALUE = 3
MOST_AXES = 4
LIMITS = {"axes": MOST_AXES, "axes_of_an_input": MOST_AXES_OF_INPUT, "axes_of_a_value": MOST_AXES_OF_VALUE}

Found = tuple[str, bool, int, list[tuple[Term, tuple[int, ...]]]]
"""Of a new class: axes, whether it is positive, its inputs as a bit mask, and its graphs, each with its operands."""


@dataclass(frozen=True, slots=True)
class Node:
    """The representative of a class.

    Attributes:
      term: how it is computed.
      axes: its axes.
      needs: numbers of the classes whose equations it consists of, its own among them; none for an input.
      inputs: the inputs it reads, as a bit mask.
      residues: its value.
      is_positive: whether it is made of exponentials by sums and products, so that it has a logarithm.
    """

    term: Term
    axes: str
    needs: frozenset[int]
    inputs: int
    residues: Residues
    is_positive: bool


@dataclass(frozen=True, kw_only=True)
class Enumerated:
    """All graphs over one signature.

    Attributes:
      graphs: how many graphs that read every input there are, by number of equations.
      classes: how many different values among these.
      seconds: how long each size took.
      equal: the graphs of each class that has several which read every input; the representative first.
    """

    graphs: dict[int, int]
    classes: dict[int, int]
    seconds: dict[int, float]
    equal: list[list[Term]]


def signatures(inputs: int) -> list[tuple[str, ...]]:
    """Every choice of at most so many inputs, up to renaming, smallest first."""
    letters = LETTERS[:MOST_AXES]
    kinds = ["".join(c) for r in range(1, MOST_AXES_OF_INPUT + 1) for c in itertools.combinations(letters, r)]
    found: dict[tuple[str, ...], None] = {}
    for count in range(1, inputs + 1):
        for chosen in itertools.combinations_with_replacement(kinds, count):
            found.setdefault(_renamed(chosen))
    return list(found)


def _renamed(signature: Sequence[str]) -> tuple[str, ...]:
    used = sorted({a for axes in signature for a in axes})
    best = []
    for names in itertools.permutations(LETTERS[: len(used)]):
        table = dict(zip(used, names, strict=True))
        best.append(tuple(sorted("".join(sorted(table[a] for a in axes)) for axes in signature)))
    return min(best)


def enumerate_graphs(signature: Sequence[str], equations: int, seed: int) -> Enumerated:
    """Enumerate the graphs over a signature.

    Args:
      signature: the axes of each input.
      equations: the most equations of a graph.
      seed: of the random values.
    """
    return _Enumeration(tuple(signature), seed).run(equations)


@dataclass
class _Enumeration:
    """The classes that are known so far."""

    signature: tuple[str, ...]
    seed: int
    nodes: list[Node] = field(default_factory=list)
    members: dict[bytes, list[Term]] = field(default_factory=dict)
    by_size: list[list[int]] = field(default_factory=list)
    having: dict[int, list[int]] = field(default_factory=dict)

    def run(self, equations: int) -> Enumerated:
        for number, axes in enumerate(self.signature):
            residues = draw(axes, number, self.seed)
            self.members[digest(axes, residues)] = [("in", number, axes)]
            self.nodes.append(Node(("in", number, axes), axes, frozenset(), 1 << number, residues, False))
        self.by_size.append(list(range(len(self.nodes))))
        graphs: dict[int, int] = {}
        classes: dict[int, int] = {}
        seconds: dict[int, float] = {}
        full = (1 << len(self.signature)) - 1
        complete: set[bytes] = set()
        for size in range(1, equations + 1):
            started = time.perf_counter()
            new: dict[bytes, Found] = {}
            graphs[size] = 0
            for candidate in self._candidates(size):
                graphs[size] += self._evaluate(*candidate, full=full, new=new)
            classes[size] = sum(inputs == full for _, _, inputs, _ in new.values())
            complete |= {key for key, (_, _, inputs, _) in new.items() if inputs == full}
            self._add(new, is_last=size == equations)
            seconds[size] = time.perf_counter() - started
        equal = [terms for key, terms in self.members.items() if key in complete and len(terms) > 1]
        return Enumerated(graphs=graphs, classes=classes, seconds=seconds, equal=equal)

    def _evaluate(self, op: str, axes: str, operands: tuple[int, ...], full: int, new: dict[bytes, Found]) -> bool:
        """Put one graph with its equals; return whether it has a value and reads every input."""
        nodes = [self.nodes[k] for k in operands]
        value = apply(op, axes, [n.residues for n in nodes])
        if value is None:
            return False
        result = _axes(op, axes, nodes)
        key = digest(result, value)
        inputs = nodes[0].inputs | nodes[-1].inputs
        term = make(op, axes, *(n.term for n in nodes))
        if key in self.members:
            if inputs == full:
                self.members[key].append(term)
        elif key in new:
            new[key][3].append((term, operands))
        else:
            is_positive = op != "log" and (op == "exp" or all(n.is_positive for n in nodes))
            new[key] = (result, is_positive, inputs, [(term, operands)])
        return inputs == full

    def _add(self, new: dict[bytes, Found], is_last: bool) -> None:
        level = []
        for key, (axes, positive, inputs, found) in new.items():
            if len(found) > 1:
                found.sort(key=lambda f: peak_elements(f[0]).sum())
            self.members[key] = [term for term, _ in found]
            if is_last or len(axes) > MOST_AXES_OF_VALUE:
                continue
            term, operands = found[0]
            residues = apply(term[0], term[1], [self.nodes[k].residues for k in operands])
            assert residues is not None
            number = len(self.nodes)
            needs = frozenset().union(*(self.nodes[k].needs for k in operands)) | {number}
            self.nodes.append(Node(term, axes, needs, inputs, residues, positive))
            for k in needs:
                self.having.setdefault(k, []).append(number)
            level.append(number)
        self.by_size.append(level)

    def _candidates(self, size: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        every = sorted({a for axes in self.signature for a in axes})
        for k in self.by_size[size - 1]:
            node = self.nodes[k]
            for axes in _subsets(node.axes):
                yield "sum", axes, (k,)
            if len(node.axes) < MOST_AXES_OF_VALUE:
                for a in every:
                    if a not in node.axes:
                        yield "broadcast", a, (k,)
            yield "exp", "", (k,)
            if node.is_positive:
                yield "log", "", (k,)
        for k, other in self._pairs(size - 1):
            x, y = self.nodes[k], self.nodes[other]
            joint = set(x.axes) | set(y.axes)
            if len(joint) <= MOST_AXES_OF_VALUE:
                yield "add", "", (k, other)
                yield "multiply", "", (k, other)
            for axes in _subsets("".join(a for a in x.axes if a in y.axes)):
                if len(joint) - len(axes) <= MOST_AXES_OF_VALUE:
                    yield "dot", axes, (k, other)

    def _pairs(self, size: int) -> Iterator[tuple[int, int]]:
        """Pairs of classes that have `size` equations together; each once, the larger number first."""
        if size == 0:
            yield from itertools.combinations_with_replacement(reversed(self.by_size[0]), 2)
            return
        for first in range(1, size + 1):
            for k in self.by_size[first]:
                needs = self.nodes[k].needs
                if first == size:
                    yield from ((k, other) for other in (*self.by_size[0], *sorted(needs)))
                    continue
                for second in range(size - first, first + 1):
                    shared = first + second - size
                    others = sorted({o for n in needs for o in self.having[n]}) if shared else self.by_size[second]
                    for other in others:
                        found = self.nodes[other].needs
                        if other < k and len(found) == second and len(needs & found) == shared:
                            yield k, other


def _axes(op: str, axes: str, nodes: Sequence[Node]) -> str:
    joint = {a for n in nodes for a in n.axes}
    return "".join(sorted(joint | set(axes) if op == "broadcast" else joint - set(axes)))


def _subsets(axes: str) -> list[str]:
    return ["".join(c) for r in range(1, len(axes) + 1) for c in itertools.combinations(axes, r)]
