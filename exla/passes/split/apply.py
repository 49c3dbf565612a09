"""Splitting a program: a region and a chunk size become loop equations.

    split_program(region, chunk) -> Program

The equations of the region are traced once at the chunk's shapes and, where the chunk does not divide the
factor, once at the remainder's. Equations outside stay as they are and in their order; each loop runs as soon as
what it reads is there. Only where sums are repaired after their loop is the whole program traced again.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from exla import _compat
from exla._compat import Literal
from exla.errors import RuleError
from exla.ir.program import Program, trace_function, variables
from exla.passes.arrange import as_they_lie
from exla.passes.split.body import Leaf, Saved, Unfinished, late_variables, loop_results, make_loop, repairs_at
from exla.passes.split.loop import Loop, split_p
from exla.passes.split.online import finished
from exla.passes.split.regions import Region

Loops = dict[int, tuple[Loop, list[Leaf]]]
"""Level -> its loop, and what that reads."""
Node = tuple[str, int]
"""What runs in a rewritten program: ("loop", level), ("whole", position), or ("repair", position) after its loop."""


def split_program(region: Region, chunk: int) -> Program:
    """Cut a region's factor into chunks.

    Args:
      region: what is cut.
      chunk: indices of the factor per trip, at least 1, below the factor's size.

    Returns:
      The program with one `exla_split` equation for each level of the region of which anything is wanted.
    """
    loops = {level: make_loop(region, level, chunk) for level in region.levels if loop_results(region, level)}
    order = _order(region, {level: leaves for level, (_, leaves) in loops.items()})
    return as_they_lie(_traced(region, loops, order) if region.repairs else _spliced(region, loops, order))


def _spliced(region: Region, loops: Loops, order: list[Node]) -> Program:
    """The program's own equations around those of the loops."""
    program = region.program
    names: dict[Any, Any] = {v: v for v in program.invars}

    def read(v: Any) -> Any:
        return v if isinstance(v, Literal) else names[v]

    eqns = []
    for kind, k in order:
        if kind == "loop":
            invars = [read(v) for v, _ in loops[k][1]]
            eqn = _loop_equation(region, k, loops[k][0], invars)
            made = loop_results(region, k)
        else:
            eqn = region.outside(k)
            invars = [read(v) for v in eqn.invars]
            made = [(v, v not in names) for v in eqn.outvars]
        outvars = []
        for (v, wanted), result in zip(made, eqn.outvars, strict=True):
            is_new = isinstance(v, _compat.Var) and v not in names
            outvars.append(v if wanted and is_new else _compat.Var(result.aval))
            if wanted:
                names[v] = outvars[-1]
        eqns.append(eqn.replace(invars=invars, outvars=outvars))
    outvars = [read(v) for v in program.outvars]
    return Program(jaxpr=program.jaxpr.replace(eqns=eqns, outvars=outvars), consts=program.consts)


def _traced(region: Region, loops: Loops, order: list[Node]) -> Program:
    """The program traced again with the loops and the repairs of their sums."""
    program = region.program

    def rewritten(*inputs: Any) -> list[Any]:
        env: dict[Any, Any] = dict(zip(program.invars, inputs, strict=True))

        def read(v: Any) -> Any:
            return v.val if isinstance(v, Literal) else env[v]

        for kind, k in order:
            if kind == "loop":
                loop, leaves = loops[k]
                results = _run_loop(region, k, loop, [read(v) for v, _ in leaves])
                made = loop_results(region, k)
                env.update((v, r) for (v, wanted), r in zip(made, results, strict=True) if wanted)
            elif kind == "repair":
                for repair, (var,) in repairs_at(region, k):
                    env[var] = finished(repair, env[Unfinished(var)], {v: read(v) for v in late_variables(repair)})
            else:
                eqn = region.outside(k)
                results = _compat.bind(eqn, *(read(v) for v in eqn.invars))
                env.update((v, r) for v, r in zip(eqn.outvars, results, strict=True) if v not in env)
        return [read(v) for v in program.outvars]

    return trace_function(rewritten, [v.aval for v in program.invars], program.consts)


def _run_loop(region: Region, level: int, loop: Loop, operands: Sequence[Any]) -> list[Any]:
    """Bind the loop of a level, with the origins of what it computes."""
    made = (v.origin if isinstance(v, Saved | Unfinished) else v for v, _ in loop_results(region, level))
    return split_p.bind(*operands, loop=loop, origins=tuple(map(region.program.origin, made)))


def _loop_equation(region: Region, level: int, loop: Loop, operands: Sequence[Any]) -> Any:
    """The equation of a level's loop; its operands, and the variables of its results, are still to be named."""
    program = trace_function(lambda *values: _run_loop(region, level, loop, values), [v.aval for v in operands])
    return program.eqns[-1]


def _order(region: Region, leaves: dict[int, list[Leaf]]) -> list[Node]:
    """Order of what runs: by need, earliest equation first."""
    program = region.program
    reads: dict[Node, list[Any]] = {}
    makes: dict[Any, Node] = {}
    for position in region.whole:
        reads["whole", position] = variables(region.outside(position).invars)
    for level, found in leaves.items():
        reads["loop", level] = [v for v, _ in found if not isinstance(v, Literal)]
        makes.update((v, ("loop", level)) for v, wanted in loop_results(region, level) if wanted)
    for (position, _, _), repair in region.repairs.items():
        (var,) = program.eqns[position].outvars
        if Unfinished(var) in makes:
            reads["repair", position] = [Unfinished(var), *late_variables(repair)]
            makes[var] = ("repair", position)
    for position in region.whole:
        for v in region.outside(position).outvars:
            makes.setdefault(v, ("whole", position))
    needs = {node: {makes[v] for v in values if v in makes} - {node} for node, values in reads.items()}
    users: dict[Node, list[Node]] = {}
    for node, before in needs.items():
        for other in before:
            users.setdefault(other, []).append(node)

    def priority(node: Node) -> int:
        return max(i for i, _, _ in region.body(node[1])) if node[0] == "loop" else node[1]

    ready = [(priority(n), n) for n, before in needs.items() if not before]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for user in users.get(node, ()):
            needs[user].discard(node)
            if not needs[user]:
                heapq.heappush(ready, (priority(user), user))
    if len(order) != len(needs):
        raise RuleError("the loops of a split wait for each other; this is a bug in exla")
    return order
