"""Bodies of control flow: which axes of the values in them are one index, and a body on a part of it.

    axes = Axes([body], in_scan=True)
    axes.names(body.invars)            # axis -> a name for its index, where the body can be cut along it
    cut(body, axes, root, size=8)      # the body for 8 of its indices

Every equation of a body ties the axes along which one of its factors runs, if its indices are independent of each other
there. An axis that some equation needs whole keeps its whole index from being cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from exla import _compat
from exla._compat import Literal
from exla.ir.factors import Adds, Chunk, Factors
from exla.ir.program import Program, as_struct, evaluate

Node = tuple[Any, int]
"""A variable of a body and one of its axes."""


class Axes:
    """The axes of the values in some bodies, joined where they are one index.

    Args:
      bodies: the bodies.
      in_scan: whether they are a scan's, which may sum over an index, and is told where a chunk of it begins.
    """

    def __init__(self, bodies: Iterable[Program], in_scan: bool) -> None:
        self._parent: dict[Node, Node] = {}
        self._whole: set[Node] = set()
        self._in_scan = in_scan
        self._summing: list[tuple[Node, int, Adds]] = []
        self._counting: list[Node] = []
        for body in bodies:
            for position in range(len(body.eqns)):
                self._tie(body, position)

    def _tie(self, body: Program, position: int) -> None:
        eqn, factors = body.eqns[position], body.factors(position)
        values = (*eqn.invars, *eqn.outvars)
        alone = {(n, k) for n, v in enumerate(values) if not isinstance(v, Literal) for k in ranks(v)}
        for name in () if factors is None else factors.names:
            assert factors is not None
            tied = self.tied(eqn, factors, name)
            if tied:
                self.join([(values[n], k) for n, k in tied])
                alone -= set(tied)
                node = _one_of(eqn, tied)
                adds = _adds(eqn, factors, name)
                if adds is not None:
                    self._summing.append((node, position, adds))
                if name in factors.rule.counted:
                    self._counting.append(node)
        for n, k in alone:
            self._whole.add(self.find((values[n], k)))

    def tied(self, eqn: Any, factors: Factors, name: str) -> list[tuple[int, int]]:
        """(which operand or result, axis) along which a factor runs, if a body can be cut along it."""
        return independent(eqn, factors, name, self._in_scan)

    def summing(self, root: Node) -> dict[int, Adds]:
        """Positions of the equations that sum over an index -> what they add up."""
        return {position: adds for node, position, adds in self._summing if self.find(node) == root}

    def counts(self, root: Node) -> bool:
        """Whether values of a chunk of an index depend on where it begins."""
        return any(self.find(node) == root for node in self._counting)

    def find(self, node: Node) -> Node:
        root = node
        while self._parent.get(root, root) != root:
            root = self._parent[root]
        self._parent[node] = root
        return root

    def join(self, nodes: Sequence[Node]) -> None:
        """Make some axes one index."""
        first = self.find(nodes[0])
        for node in nodes[1:]:
            root = self.find(node)
            if root != first:
                self._parent[root] = first
                if root in self._whole:
                    self._whole.add(first)

    def names(self, values: Iterable[Any]) -> dict[Node, str]:
        """A name for every index that runs along an axis of some values and can be cut."""
        along: dict[Node, list[Node]] = {}
        for node in list(self._parent):
            along.setdefault(self.find(node), []).append(node)
        roots: dict[Node, str] = {}
        for var in values:
            for k in ranks(var):
                root = self.find((var, k))
                group = along.get(root, [(var, k)])
                alone = len({v for v, _ in group}) == len(group)
                if root not in self._whole and alone and var.aval.shape[k] > 1:
                    roots.setdefault(root, f"c{len(roots)}")
        return roots


def ranks(var: Any) -> range:
    """The axes of a variable; an abstract token has none."""
    return range(len(getattr(var.aval, "shape", ())))


def _one_of(eqn: Any, tied: Sequence[tuple[int, int]]) -> Node:
    n, axis = tied[0]
    return (*eqn.invars, *eqn.outvars)[n], axis


def _adds(eqn: Any, factors: Factors, name: str) -> Adds | None:
    """What an equation adds up over a factor; None where it does nothing of the kind."""
    if factors.rule.reduced.get(name) == "sum":
        return Adds(results=frozenset(range(len(eqn.outvars))))
    carried = factors.rule.carried.get(name)
    return None if carried is None else carried.adds


def independent(eqn: Any, factors: Factors, name: str, in_scan: bool = False) -> list[tuple[int, int]]:
    """(which operand or result, axis) along which a factor runs, if its indices are independent of each other.

    Args:
      eqn: the equation.
      factors: its factors.
      name: the name of one.
      in_scan: whether they may also be summed over, or count from where a chunk begins.
    """
    rule = factors.rule
    is_in_order = name in rule.reduced or name in rule.carried
    if is_in_order and not (in_scan and _adds(eqn, factors, name) is not None):
        return []
    values = zip((*eqn.invars, *eqn.outvars), (*factors.operands[name], *factors.results[name]), strict=True)
    placed = [(n, p) for n, (v, p) in enumerate(values) if p is not None and not isinstance(v, Literal)]
    if any(p.block != 1 or p.halo is not None for _, p in placed):
        return []
    return [(n, p.axis) for n, p in placed] if in_scan or name not in rule.counted else []


def on_chunk(body: Program, axes: Axes, root: Node, size: int, offset: Any) -> Callable[[Any, list[Any]], list[Any]]:
    """Evaluates the equations of a body on `size` indices of an index, the first of them at an offset."""
    positions = {id(eqn): i for i, eqn in enumerate(body.eqns)}

    def step(eqn: Any, operands: list[Any]) -> list[Any]:
        position = positions[id(eqn)]
        factors = body.factors(position)
        for name in () if factors is None else factors.names:
            assert factors is not None
            tied = axes.tied(eqn, factors, name)
            if tied and axes.find(_one_of(eqn, tied)) == root:
                context = body.context(position)
                chunk = Chunk(context=context, factors=factors, factor=name, size=size, offset=offset)
                with _compat.equation_context(eqn):
                    return list(factors.rule.replay(chunk, *operands))
        return _compat.bind(eqn, *operands)

    return step


def cut(body: Program, axes: Axes, root: Node, size: int) -> Any:
    """A body as a closed jaxpr of values that have `size` indices along an index, wherever they begin."""

    def struct(var: Any) -> Any:
        whole = as_struct(var.aval)
        shape = tuple(size if axes.find((var, k)) == root else n for k, n in enumerate(whole.shape))
        return jax.ShapeDtypeStruct(shape, whole.dtype, weak_type=whole.weak_type)

    step = on_chunk(body, axes, root, size, np.int32(0))  # which nothing in it counts from
    return jax.make_jaxpr(lambda *values: evaluate(body.jaxpr, values, step))(*map(struct, body.invars))
