"""The smallest values of which others can be computed.

    t = neg(s); u = t[:, None] * f[None, :]      u can be computed of t and f, or of s and f

A value can be kept, or computed again of others that are kept. What is kept is a cut of the graph of values, each of
which weighs its bytes, between what cannot be computed again and what is wanted; the smallest cut is what a maximum
flow fills (Ford and Fulkerson 1956). Of several as small the one next to what is wanted is taken: it leaves least to
compute.

Whether one computed number is above or equal to another is not computed again: where it is computed in another place, a
number may have another last bit, and then the largest of some numbers is none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from exla.ir.primitives import named
from exla.ir.program import Program, value_bytes, variables

T = TypeVar("T")

COMPARISONS = named("eq ne lt le gt ge")
WHOLE = 1 << 28
"""Flows are counted in 32 bits: all values together weigh so much at most."""


def smallest_values(program: Program, wanted: Iterable[Any], varies: Set[Any], free: Set[Any]) -> list[Any]:
    """The smallest values of which others can be computed.

    Args:
      program: the program, a loop's body.
      wanted: what is to be computed; variables.
      varies: what there is to keep; the other values are always at hand.
      free: what is kept anyway.

    Returns:
      The values to keep, those among them that are kept anyway too.
    """
    wanted = [v for v in dict.fromkeys(wanted) if v in varies]
    if not wanted:
        return []
    places, edges, given = _graph(program, wanted, varies)
    weights = {v: 0 if v in free else value_bytes(v) for v in places}
    return smallest_cut(weights, edges, given, wanted) or []


def smallest_cut(
    weights: Mapping[T, int | None], edges: Iterable[tuple[T, T]], given: Iterable[T], wanted: Iterable[T]
) -> list[T] | None:
    """The nodes of least weight through which all ways lead from given nodes to wanted ones.

    Args:
      weights: of each node; None where it cannot be taken.
      edges: pairs of nodes, the first of which leads to the second.
      given: where the ways begin; these may be taken themselves.
      wanted: where they end; likewise.

    Returns:
      The nodes, of several sets as light that which is next to the ends; None where no set of nodes will do.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    places = {v: k for k, v in enumerate(weights)}
    unit = sum(weight or 0 for weight in weights.values()) // WHOLE + 1
    units = [None if weight is None else -(-weight // unit) for weight in weights.values()]
    unlimited, source, sink = sum(n or 0 for n in units) + 1, 2 * len(places), 2 * len(places) + 1
    # The value v is the nodes 2 k, where it is computed, and 2 k + 1, where it is read.
    links = [(2 * k, 2 * k + 1, unlimited if n is None else n) for k, n in enumerate(units)]
    links += [(2 * places[a] + 1, 2 * places[b], unlimited) for a, b in edges]
    links += [(source, 2 * places[v], unlimited) for v in given]
    links += [(2 * places[v] + 1, sink, unlimited) for v in wanted]
    begins, ends, capacities = (np.array(column, dtype=np.int32) for column in zip(*links, strict=True))
    graph = csr_array((capacities, (begins, ends)), shape=(sink + 1, sink + 1))
    flow = maximum_flow(graph, source, sink)
    if flow.flow_value >= unlimited:
        return None
    left = graph - flow.flow
    left.eliminate_zeros()
    reaching = set(breadth_first_order(csr_array(left.T), sink, return_predecessors=False).tolist())
    return [v for v, k in places.items() if 2 * k + 1 in reaching and 2 * k not in reaching]


def _graph(
    program: Program, wanted: Iterable[Any], varies: Set[Any]
) -> tuple[dict[Any, int], list[tuple[Any, Any]], list[Any]]:
    """What wanted values are made of: places of the values, (operand, result), and what cannot be computed again."""
    places, edges, given = dict[Any, int](), list[tuple[Any, Any]](), list[Any]()
    stack = list(wanted)
    while stack:
        var = stack.pop()
        if var in places:
            continue
        places[var] = len(places)
        position = program.producers.get(var)
        if position is None or not _can_be_again(program, position):
            given.append(var)
            continue
        operands = [v for v in variables(program.eqns[position].invars) if v in varies]
        edges += [(v, var) for v in dict.fromkeys(operands)]
        stack += operands
    return places, edges, given


def _can_be_again(program: Program, position: int) -> bool:
    """Whether an equation's results can be computed again in another place."""
    eqn, factors = program.eqns[position], program.factors(position)
    if eqn.primitive.name in COMPARISONS and len(variables(eqn.invars)) == 2:
        return not jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.inexact)
    return factors is not None and not factors.rule.carried
