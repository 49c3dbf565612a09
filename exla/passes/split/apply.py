"""Splitting a program: a region and a chunk size become loop equations.

    split_program(region, chunk) -> Program

The equations of the region are traced once at the chunk's shapes and, where the chunk does not divide the
factor, once at the remainder's. Equations outside stay in their order; each loop runs as soon as what it reads
is there.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from exla import _compat
from exla._compat import Literal
from exla.errors import RuleError
from exla.ir.factors import Chunk, Placement
from exla.ir.program import Program, trace_function
from exla.passes.split.loop import Combine, Loop, Stack, split_p
from exla.passes.split.regions import Instance, LoopOutput, Region, Sliced

Leaf = tuple[Any, int | None]


def split_program(region: Region, chunk: int) -> Program:
    """Cut a region's factor into chunks.

    Args:
      region: what is cut.
      chunk: indices of the factor per trip, at least 1, below the factor's size.

    Returns:
      The program with one `exla_split` equation for each level of the region.
    """
    program = region.program
    loops = {level: _make_loop(region, level, chunk) for level in region.levels}
    order = _order(region, {level: leaves for level, (_, leaves) in loops.items()})

    def rewritten(*inputs: Any) -> list[Any]:
        env: dict[Any, Any] = dict(zip(program.invars, inputs, strict=True))

        def read(v: Any) -> Any:
            return v.val if isinstance(v, Literal) else env[v]

        for is_loop, k in order:
            if is_loop:
                loop, leaves = loops[k]
                made = _loop_results(region, k)
                origins = tuple(program.origin(v) for v in made)
                results = split_p.bind(*(read(v) for v, _ in leaves), loop=loop, origins=origins)
                env.update(zip(made, results, strict=True))
            else:
                eqn = program.eqns[k]
                results = _compat.bind(eqn, *(read(v) for v in eqn.invars))
                env.update((v, r) for v, r in zip(eqn.outvars, results, strict=True) if v not in env)
        return [read(v) for v in program.outvars]

    return trace_function(rewritten, [v.aval for v in program.invars], program.consts)


def _outputs(region: Region, level: int) -> list[LoopOutput]:
    return [o for o in region.outputs if o.level == level]


def _loop_results(region: Region, level: int) -> list[Any]:
    """The variables that the loop of one level computes, in the order of its outputs."""
    found: list[Any] = []
    for output in _outputs(region, level):
        if output.stacked is not None:
            found.append(output.stacked[0])
        else:
            found += region.program.eqns[output.instance[0]].outvars
    return found


def _order(region: Region, leaves: dict[int, list[Leaf]]) -> list[tuple[bool, int]]:
    """Order of (is a loop, position or level): by need, earliest equation first."""
    program = region.program
    reads: dict[tuple[bool, int], list[Any]] = {}
    makes: dict[Any, tuple[bool, int]] = {}
    for position in region.whole:
        reads[False, position] = [v for v in program.eqns[position].invars if not isinstance(v, Literal)]
    for level, found in leaves.items():
        reads[True, level] = [v for v, _ in found]
        makes.update((v, (True, level)) for v in _loop_results(region, level))
    for position in region.whole:
        for v in program.eqns[position].outvars:
            makes.setdefault(v, (False, position))
    needs = {node: {makes[v] for v in values if v in makes} - {node} for node, values in reads.items()}
    users: dict[tuple[bool, int], list[tuple[bool, int]]] = {}
    for node, before in needs.items():
        for other in before:
            users.setdefault(other, []).append(node)

    def priority(node: tuple[bool, int]) -> int:
        return max(i for i, _ in region.body(node[1])) if node[0] else node[1]

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


def _make_loop(region: Region, level: int, chunk: int) -> tuple[Loop, list[Leaf]]:
    body = region.body(level)
    leaves: list[Leaf] = []
    for instance in body:
        for var, axis in region.operands(instance):
            leaf = (var, axis)
            if isinstance(var, Literal) or leaf in leaves:
                continue
            if axis is None or region.makers.get((var, axis)) not in body:
                leaves.append(leaf)
    placements = tuple(
        None if axis is None else Placement(axis=axis, block=var.aval.shape[axis] // region.size)
        for var, axis in leaves
    )
    outputs = _outputs(region, level)
    main, parts = _trace_body(region, body, outputs, leaves, placements, chunk)
    remainder = region.size % chunk
    tail = _trace_body(region, body, outputs, leaves, placements, remainder)[0] if remainder else None
    made: list[Stack | Combine] = []
    for output, count in zip(outputs, parts, strict=True):
        position, name = output.instance
        if output.stacked is not None:
            var, axis = output.stacked
            block = var.aval.shape[axis] // region.size
            made.append(Stack(aval=var.aval, placement=Placement(axis=axis, block=block)))
        else:
            factors = region.program.factors(position)
            assert factors is not None
            context = region.program.context(position)
            made.append(Combine(combiner=factors.rule.reduced[name], context=context, parts=count))
    loop = Loop(body=main, tail=tail, size=region.size, chunk=chunk, operands=placements, outputs=tuple(made))
    return loop, leaves


def _trace_body(
    region: Region,
    body: Sequence[Instance],
    outputs: Sequence[LoopOutput],
    leaves: Sequence[Leaf],
    placements: Sequence[Placement | None],
    size: int,
) -> tuple[Program, list[int]]:
    """Trace the region's equations on one chunk; also return how many arrays each output has."""
    parts: list[int] = []

    def one_chunk(offset: Any, *values: Any) -> list[Any]:
        given = dict(zip(leaves, values, strict=True))
        made: dict[Sliced, Any] = {}
        partial: dict[Instance, Sequence[Any]] = {}
        for instance in body:
            results = _replay(region, instance, size, offset, given, made)
            position, name = instance
            factors = region.program.factors(position)
            assert factors is not None
            placed = factors.results[name]
            if any(p is not None for p in placed):
                eqn = region.program.eqns[position]
                made.update(
                    ((v, p.axis), r) for v, p, r in zip(eqn.outvars, placed, results, strict=True) if p is not None
                )
            else:
                partial[instance] = results
        found = [partial[o.instance] if o.stacked is None else [made[o.stacked]] for o in outputs]
        parts[:] = [len(f) for f in found]
        return [array for f in found for array in f]

    avals = [_compat.shaped_array((), "int32")]
    for (var, _), placement in zip(leaves, placements, strict=True):
        shape = list(var.aval.shape)
        if placement is not None:
            shape[placement.axis] = size * placement.block
        avals.append(_compat.shaped_array(shape, var.aval.dtype))
    return trace_function(one_chunk, avals), parts


def _replay(
    region: Region, instance: Instance, size: int, offset: Any, given: dict[Leaf, Any], made: dict[Sliced, Any]
) -> Sequence[Any]:
    """Evaluate one instance on the chunk and check the shapes of what it returns."""
    position, name = instance
    factors = region.program.factors(position)
    assert factors is not None
    grain = factors.sizes[name] // region.size
    chunk = Chunk(
        context=region.program.context(position),
        factors=factors,
        factor=name,
        size=size * grain,
        offset=offset if grain == 1 else offset * grain,
    )
    operands = []
    for var, axis in region.operands(instance):
        if isinstance(var, Literal):
            operands.append(var.val)
        elif axis is not None and (var, axis) in made:
            operands.append(made[var, axis])
        else:
            operands.append(given[var, axis])
    with _compat.equation_context(region.program.eqns[position]):
        results = factors.rule.replay(chunk, *operands)
    for k, (result, placed) in enumerate(zip(results, factors.results[name], strict=False)):
        if placed is not None and tuple(result.shape) != chunk.result_shape(k):
            raise RuleError(
                f"factor rule of {chunk.context.primitive!r}: a chunk of factor {name!r} gave shape "
                f"{tuple(result.shape)}, expected {chunk.result_shape(k)}"
            )
    return results
