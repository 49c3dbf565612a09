"""Splitting a program: a region and a chunk size become loop equations.

    split_program(region, chunk) -> Program

The equations of the region are traced once at the chunk's shapes and, where the chunk does not divide the
factor, once at the remainder's. Equations outside stay in their order; each loop runs as soon as what it reads
is there.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from exla import _compat
from exla._compat import Literal
from exla.errors import RuleError
from exla.ir.factors import Chunk, Passed, Placement
from exla.ir.program import Program, as_struct, trace_function
from exla.passes.split.loop import Carry, Combine, Loop, Stack, split_p
from exla.passes.split.regions import Instance, Region, Sliced, carried_of, factors_of

Leaf = tuple[Any, int | Passed | None]
"""What a loop reads: a variable or a saved state, and the axis along which it is cut or how else it is passed."""


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
                origins = tuple(program.origin(v.origin if isinstance(v, Saved) else v) for v, _ in made)
                results = split_p.bind(*(read(v) for v, _ in leaves), loop=loop, origins=origins)
                env.update((v, r) for (v, wanted), r in zip(made, results, strict=True) if wanted)
            else:
                eqn = program.eqns[k]
                results = _compat.bind(eqn, *(read(v) for v in eqn.invars))
                env.update((v, r) for v, r in zip(eqn.outvars, results, strict=True) if v not in env)
        return [read(v) for v in program.outvars]

    return trace_function(rewritten, [v.aval for v in program.invars], program.consts)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One array of the state of a carried instance before each chunk; `origin` is a variable of its equation."""

    instance: Instance
    part: int
    origin: Any


def _saved(region: Region, instance: Instance) -> list[Saved]:
    """What the loops that restart an instance read of its state."""
    origin = region.program.eqns[instance[0]].outvars[0]
    return [Saved(instance=instance, part=k, origin=origin) for k in range(len(_states(region, instance)))]


def _states(region: Region, instance: Instance) -> list[Any]:
    """Abstract values of the state of a carried instance."""
    carried = carried_of(region.program, instance)
    assert carried is not None
    context = region.program.context(instance[0])
    structs = [as_struct(context.operands[k]) for k in carried.into]
    first = jax.eval_shape(lambda *values: carried.start(context, *values), *structs)
    return [_compat.shaped_array(a.shape, a.dtype) for a in first]


@dataclass(frozen=True, kw_only=True)
class _Output:
    """One output of the loop of a level: `exported` says whether others want its results, `saved` its states."""

    instance: Instance
    stacked: Sliced | None
    exported: bool = True
    saved: bool = False


def _outputs(region: Region, level: int) -> list[_Output]:
    """The outputs of a level's loop, one for each instance that goes on from chunk to chunk among them."""
    here = [o for o in region.outputs if o.level == level]
    found = [
        _Output(instance=o.instance, stacked=o.stacked)
        for o in here
        if o.stacked is not None or not region.runs_on(o.instance, level)
    ]
    for instance in region.body(level):
        if region.runs_on(instance, level):
            mine = [o for o in here if o.instance == instance and o.stacked is None]
            exported, saved = (any(o.saved == wanted for o in mine) for wanted in (False, True))
            found.append(_Output(instance=instance, stacked=None, exported=exported, saved=saved))
    return found


def _loop_results(region: Region, level: int) -> list[tuple[Any, bool]]:
    """What the loop of one level computes, in the order of its outputs, and whether anybody takes it from there."""
    found: list[tuple[Any, bool]] = []
    for output in _outputs(region, level):
        if output.stacked is not None:
            found.append((output.stacked[0], True))
            continue
        position, name = output.instance
        placed = factors_of(region.program, position).results[name]
        results = zip(region.program.eqns[position].outvars, placed, strict=True)
        found += [(v, output.exported) for v, p in results if p is None]
        if output.saved:
            found += [(s, True) for s in _saved(region, output.instance)]
    return found


def _order(region: Region, leaves: dict[int, list[Leaf]]) -> list[tuple[bool, int]]:
    """Order of (is a loop, position or level): by need, earliest equation first."""
    program = region.program
    reads: dict[tuple[bool, int], list[Any]] = {}
    makes: dict[Any, tuple[bool, int]] = {}
    for position in region.whole:
        reads[False, position] = [v for v in program.eqns[position].invars if not isinstance(v, Literal)]
    for level, found in leaves.items():
        reads[True, level] = [v for v, _ in found if not isinstance(v, Literal)]
        makes.update((v, (True, level)) for v, wanted in _loop_results(region, level) if wanted)
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
    """The loop of one level, and the leaves that are its operands."""
    body, outputs = region.body(level), _outputs(region, level)
    leaves: list[Leaf] = []
    for instance in body:
        carried = carried_of(region.program, instance)
        for k, (var, axis) in enumerate(region.operands(instance)):
            if isinstance(var, Literal) or (carried is not None and k in carried.into):
                continue
            if axis is None or region.makers.get((var, axis)) not in body:
                leaves.append((var, axis))
        if carried is not None and not region.runs_on(instance, level):
            leaves += [(saved, Passed.TRIP) for saved in _saved(region, instance)]
    leaves = list(dict.fromkeys(leaves))
    placements = [
        Placement(axis=how, block=var.aval.shape[how] // region.size) if isinstance(how, int) else how
        for var, how in leaves
    ]
    running = [o.instance for o in outputs if o.stacked is None and region.runs_on(o.instance, level)]
    states = {instance: _states(region, instance) for instance in running}
    main, parts = _trace_body(region, body, outputs, leaves, placements, states, chunk)
    remainder = region.size % chunk
    tail = _trace_body(region, body, outputs, leaves, placements, states, remainder)[0] if remainder else None
    starts: list[Leaf] = []
    made: list[Stack | Combine | Carry] = []
    for output, count in zip(outputs, parts, strict=True):
        position, name = output.instance
        factors, context = factors_of(region.program, position), region.program.context(position)
        if output.stacked is not None:
            var, axis = output.stacked
            block = var.aval.shape[axis] // region.size
            made.append(Stack(aval=var.aval, placement=Placement(axis=axis, block=block)))
        elif output.instance in states:
            carried = factors.rule.carried[name]
            before = len(leaves) + len(starts)
            starts += [(region.program.eqns[position].invars[k], Passed.START) for k in carried.into]
            made.append(
                Carry(
                    carried=carried,
                    context=context,
                    start=tuple(range(before, len(leaves) + len(starts))),
                    states=tuple(states[output.instance]),
                    unplaced=tuple(k for k, p in enumerate(factors.results[name]) if p is None),
                    saved=-(-region.size // chunk) if output.saved else 0,
                )
            )
        else:
            made.append(Combine(combiner=factors.rule.reduced[name], context=context, parts=count))
    loop = Loop(
        body=main,
        tail=tail,
        size=region.size,
        chunk=chunk,
        operands=(*placements, *(Passed.START for _ in starts)),
        outputs=tuple(made),
        reverse=level in region.reverse,
    )
    return loop, leaves + starts


def _trace_body(
    region: Region,
    body: Sequence[Instance],
    outputs: Sequence[_Output],
    leaves: Sequence[Leaf],
    placements: Sequence[Placement | Passed | None],
    states: Mapping[Instance, Sequence[Any]],
    size: int,
) -> tuple[Program, list[int]]:
    """Trace the region's equations on one chunk; also return how many arrays each output has."""
    parts: list[int] = []

    def one_chunk(offset: Any, *values: Any) -> list[Any]:
        rest = iter(values)
        before = {instance: [next(rest) for _ in avals] for instance, avals in states.items()}
        given = dict(zip(leaves, rest, strict=True))
        made: dict[Sliced, Any] = {}
        partial: dict[Instance, Sequence[Any]] = {}
        for instance in body:
            if carried_of(region.program, instance) is not None and instance not in before:
                state = [given[saved, Passed.TRIP] for saved in _saved(region, instance)]
            else:
                state = before.get(instance, [])
            position, name = instance
            placed = factors_of(region.program, position).results[name]
            results, partial[instance] = _replay(region, instance, size, offset, given, made, state)
            eqn = region.program.eqns[position]
            made.update(((v, p.axis), r) for v, p, r in zip(eqn.outvars, placed, results, strict=True) if p is not None)
        found = [partial[o.instance] if o.stacked is None else [made[o.stacked]] for o in outputs]
        parts[:] = [len(f) for f in found]
        return [array for f in found for array in f]

    avals = [_compat.shaped_array((), "int32")]
    avals += [aval for carried in states.values() for aval in carried]
    for (var, _), placement in zip(leaves, placements, strict=True):
        if isinstance(var, Saved):
            avals.append(_states(region, var.instance)[var.part])
            continue
        shape = list(var.aval.shape)
        if isinstance(placement, Placement):
            shape[placement.axis] = size * placement.block
        avals.append(_compat.shaped_array(shape, var.aval.dtype))
    return trace_function(one_chunk, avals), parts


def _replay(
    region: Region,
    instance: Instance,
    size: int,
    offset: Any,
    given: dict[Leaf, Any],
    made: dict[Sliced, Any],
    state: list[Any],
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Evaluate one instance on the chunk.

    Returns:
      One entry for each result, None for those that the factor does not reach; and the partial or next state.
    """
    position, name = instance
    factors = factors_of(region.program, position)
    grain = factors.sizes[name] // region.size
    chunk = Chunk(
        context=region.program.context(position),
        factors=factors,
        factor=name,
        size=size * grain,
        offset=offset if grain == 1 else offset * grain,
    )
    carried = factors.rule.carried.get(name)
    operands: list[Any] = []
    for k, (var, axis) in enumerate(region.operands(instance)):
        if carried is not None and k in carried.into:
            operands.append(None)
        elif isinstance(var, Literal):
            operands.append(var.val)
        elif axis is not None and (var, axis) in made:
            operands.append(made[var, axis])
        else:
            operands.append(given[var, axis])
    placed = factors.results[name]
    with _compat.equation_context(region.program.eqns[position]):
        if carried is not None:
            found, after = carried.step(chunk, state, *operands)
            results: list[Any] = [None] * len(placed)
            for k, result in zip([k for k, p in enumerate(placed) if p is not None], found, strict=True):
                results[k] = result
        else:
            parts = list(factors.rule.replay(chunk, *operands))
            reaches = any(p is not None for p in placed)
            results, after = (parts, []) if reaches else ([None] * len(placed), parts)
    for k, (result, place) in enumerate(zip(results, placed, strict=True)):
        if place is not None and tuple(result.shape) != chunk.result_shape(k):
            raise RuleError(
                f"factor rule of {chunk.context.primitive!r}: a chunk of factor {name!r} gave shape "
                f"{tuple(result.shape)}, expected {chunk.result_shape(k)}"
            )
    return results, after
