"""The body of a chunk loop: the equations of a region, on one chunk.

`make_loop` makes the loop of one level. Its body is traced once at the chunk's shapes and, where the chunk does not
divide the factor, once at the remainder's. What is carried, and what is reduced online, goes through the body as a
state; everything else that leaves the loop is put together by the loop itself (`exla.passes.split.loop`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from exla import _compat
from exla._compat import Literal
from exla.errors import RuleError
from exla.ir.factors import Carried, Chunk, Passed, Placement, replay_unchanged
from exla.ir.primitives import VIEWS, named
from exla.ir.program import Program, aval_bytes, trace_function, value_bytes
from exla.passes.split.alike import key_of
from exla.passes.split.carrying import about, apart, carried_online, combiner_of
from exla.passes.split.combine import COMBINERS, MANY
from exla.passes.split.loop import Carry, Combine, Loop, Stack
from exla.passes.split.online import Repair, Running, moved, scaled, usable
from exla.passes.split.regions import Cut, Instance, Region, Sliced, carried_of, factors_of, numbers_of

MADE_WHERE_READ = VIEWS | named("broadcast_in_dim transpose convert_element_type")
"""Primitives whose results compilers store only where something needs them so."""

SMALL = 16
"""An operand is small that has so many times fewer bytes than what the loop writes."""

Leaf = tuple[Any, Cut | Passed | None]
"""What a loop reads: a variable or a saved state, and how it is cut or else passed."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One array of the state of a carried instance before each chunk; `origin` is a variable of its equation."""

    instance: Instance
    part: int
    origin: Any


@dataclass(frozen=True)
class Unfinished:
    """A repaired sum as the loop leaves it; `origin` is the variable that it becomes."""

    origin: Any


def repairs_at(region: Region, position: int) -> list[tuple[Repair, Sequence[Any]]]:
    """The repaired sum that an equation computes, and its variables."""
    outvars = region.program.eqns[position].outvars
    return [(repair, outvars) for (i, _, _), repair in region.repairs.items() if i == position]


def late_variables(repair: Repair) -> list[Any]:
    """The late variables that a repaired sum needs in the end."""
    return [*(v.late.var for v in repair.by), *(late.var for _, late in repair.deferred)]


def _saved(region: Region, instance: Instance) -> list[Saved]:
    """What the loops that restart an instance read of its state."""
    origin = region.program.eqns[instance[0]].outvars[0]
    return [Saved(instance=instance, part=k, origin=origin) for k in range(len(_states(region, instance)))]


def _states(region: Region, instance: Instance, carried: Carried | None = None) -> list[Any]:
    """Abstract values of the state of a carried instance; `carried` where its rule does not say how."""
    carried = carried or carried_of(region.program, instance)
    assert carried is not None
    context = region.program.context(instance[0])
    first = trace_function(lambda *values: carried.start(context, *values), [context.operands[k] for k in carried.into])
    return [_compat.shaped_array(v.aval.shape, v.aval.dtype) for v in first.outvars]


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


def loop_results(region: Region, level: int) -> list[tuple[Any, bool]]:
    """What the loop of one level computes, in the order of its outputs, and whether anybody takes it from there."""
    if ("results", level) not in region.known:
        region.known["results", level] = _loop_results(region, level)
    return region.known["results", level]


def _loop_results(region: Region, level: int) -> list[tuple[Any, bool]]:
    found: list[tuple[Any, bool]] = []
    for output in _outputs(region, level):
        if output.stacked is not None:
            found.append((output.stacked[0], True))
            continue
        position, name, _ = output.instance
        placed = factors_of(region.program, position).results[name]
        results = [v for v, p in zip(region.program.eqns[position].outvars, placed, strict=True) if p is None]
        if output.instance in region.repairs:
            results = [Unfinished(v) for v in results]
        found += [(v, output.exported) for v in results]
        if output.saved:
            found += [(s, True) for s in _saved(region, output.instance)]
    return found


def make_loop(region: Region, level: int, chunk: int) -> tuple[Loop, list[Leaf]]:
    """The loop of one level of a region, and the leaves that are its operands."""
    chunks = -(-region.size // chunk)
    maker = LoopMaker(region=region, level=level, chunks=chunks)
    main, parts = maker.body(chunk)
    remainder = region.size % chunk
    tail = maker.body(remainder)[0] if remainder else None
    starts: list[Leaf] = []
    made: list[Stack | Combine | Carry] = []
    for output, count in zip(maker.outputs, parts, strict=True):
        position, name, _ = output.instance
        factors, context = factors_of(region.program, position), region.program.context(position)
        if output.stacked is not None:
            var, (axis, _) = output.stacked
            block = var.aval.shape[axis] // region.size
            made.append(Stack(aval=var.aval, placement=Placement(axis=axis, block=block)))
        elif output.instance in maker.carried:
            carried = maker.carried[output.instance]
            before = len(maker.leaves) + len(starts)
            starts += [(region.program.eqns[position].invars[k], Passed.START) for k in carried.into]
            made.append(
                Carry(
                    carried=carried,
                    context=context,
                    start=tuple(range(before, len(maker.leaves) + len(starts))),
                    states=tuple(maker.states[output.instance]),
                    unplaced=tuple(k for k, p in enumerate(factors.results[name]) if p is None),
                    saved=chunks if output.saved else 0,
                )
            )
        else:
            made.append(Combine(combiner=combiner_of(region, output.instance, chunks), context=context, parts=count))
    loop = Loop(
        body=main,
        tail=tail,
        size=region.size,
        chunk=chunk,
        operands=(*maker.placements, *(Passed.START for _ in starts)),
        outputs=tuple(made),
        reverse=level in region.reverse,
        late=_late(region.program, [v for v, _ in maker.leaves], made),
    )
    return loop, maker.leaves + starts


def _late(program: Program, operands: Sequence[Any], outputs: Sequence[Stack | Combine | Carry]) -> int | None:
    """The operand that is computed last, of real numbers. What compilers make where it is read is left out, but for
    what is small: what it is made of would be kept for longer."""
    small = max((aval_bytes(a) for output in outputs for a in output.avals), default=0) / SMALL
    producers: dict[int, int] = {}
    for k, var in enumerate(operands):
        if isinstance(var, Saved) or not (var.aval.size and jnp.issubdtype(var.aval.dtype, jnp.floating)):
            continue
        if var in numbers_of(program):
            continue
        computed = _behind(program, var, MADE_WHERE_READ)
        position = program.producers.get(computed)
        if position is not None and (computed is var or value_bytes(var) <= small):
            producers[k] = position
    return max(producers, key=lambda k: producers[k], default=None)


def _behind(program: Program, var: Any, through: Set[str]) -> Any:
    """The variable that another one is made from by some primitives of one operand alone."""
    while var in program.producers:
        eqn = program.eqns[program.producers[var]]
        if eqn.primitive.name not in through or isinstance(eqn.invars[0], Literal):
            break
        var = eqn.invars[0]
    return var


@dataclass(frozen=True, kw_only=True, eq=False)
class LoopMaker:
    """What the loop of one level of a region reads, computes and carries, in so many chunks."""

    region: Region
    level: int
    chunks: int = 1

    @cached_property
    def instances(self) -> list[Instance]:
        return self.region.body(self.level)

    @cached_property
    def outputs(self) -> list[_Output]:
        return _outputs(self.region, self.level)

    @cached_property
    def carried(self) -> dict[Instance, Carried]:
        """The instances that go on from chunk to chunk, in the order of the outputs."""
        online = carried_online(self.region, self.level, self.chunks)
        found: dict[Instance, Carried] = {}
        for output in self.outputs:
            own = carried_of(self.region.program, output.instance)
            own = own.many if own is not None and own.many is not None and self.chunks > MANY else own
            how = own if self.region.runs_on(output.instance, self.level) else online.get(output.instance)
            if output.stacked is None and how is not None:
                found[output.instance] = how
        return found

    @cached_property
    def states(self) -> dict[Instance, list[Any]]:
        """Abstract values of the states of what is carried."""
        return {i: _states(self.region, i, carried) for i, carried in self.carried.items()}

    @cached_property
    def running(self) -> dict[Any, tuple[Repair, Running]]:
        """The late variables that the loop computes as far as it can."""
        repairs = [r for i, r in self.region.repairs.items() if i in self.carried]
        return {value.late.var: (repair, value) for repair in repairs for value in repair.by}

    @cached_property
    def deferred(self) -> set[Any]:
        """The late variables that sums are multiplied or divided by after the loop."""
        repairs = [r for i, r in self.region.repairs.items() if i in self.carried]
        return {late.var for repair in repairs for _, late in repair.deferred}

    @cached_property
    def leaves(self) -> list[Leaf]:
        program, given = self.region.program, self.region.given(self.level)
        found: list[Leaf] = []
        for instance in self.instances:
            own = carried_of(program, instance)
            for k, (var, cut) in enumerate(self.region.operands(instance)):
                if isinstance(var, Literal) or (own is not None and k in own.into):
                    continue
                if cut is None and self.region.is_late(var, self.level):
                    continue
                is_given = (var, cut) in given
                if cut is None or is_given or self.region.makers.get((var, cut)) not in self.instances:
                    found.append((var, cut))
            if own is not None and instance not in self.carried:
                found += self.restarts(instance)
        for _, value in self.running.values():
            operands = [v for i in value.chain for v in program.eqns[i].invars if not isinstance(v, Literal)]
            found += [(v, None) for v in operands if not self.region.is_late(v, self.level)]
        return list(dict.fromkeys(found))

    @cached_property
    def placements(self) -> list[Placement | Passed | None]:
        return [self._placement(var, how) if isinstance(how, tuple) else how for var, how in self.leaves]

    def _placement(self, var: Any, cut: Cut) -> Placement:
        axis, window = cut
        if window:
            step, before, extra = window
            return Placement(axis=axis, block=step, halo=(before, extra))
        return Placement(axis=axis, block=var.aval.shape[axis] // self.region.size)

    def restarts(self, instance: Instance) -> list[Leaf]:
        """The leaves from which a carried instance goes on that does not go on from chunk to chunk."""
        return [(saved, Passed.TRIP) for saved in _saved(self.region, instance)]

    def _avals(self, size: int) -> list[Any]:
        """Abstract values of what the body takes for a chunk of a size."""
        found = [_compat.shaped_array((), "int32")]
        found += [aval for states in self.states.values() for aval in states]
        for (var, _), placement in zip(self.leaves, self.placements, strict=True):
            if isinstance(var, Saved):
                found.append(_states(self.region, var.instance)[var.part])
                continue
            shape = list(var.aval.shape)
            if isinstance(placement, Placement):
                shape[placement.axis] = placement.length(size)
            found.append(_compat.shaped_array(shape, var.aval.dtype))
        return found

    def body(self, size: int) -> tuple[Program, list[int]]:
        """The equations on a chunk of a size, and how many arrays each output has; traced once where they are alike."""
        avals = self._avals(size)
        key = key_of(self, size, avals)
        if key is None:
            return self._traced(size, avals)
        bodies = self.region.program.known.setdefault("bodies", {})
        if key not in bodies:
            bodies[key] = self._traced(size, avals)
        return bodies[key]

    def _traced(self, size: int, avals: Sequence[Any]) -> tuple[Program, list[int]]:
        parts: list[int] = []

        def one_chunk(offset: Any, *values: Any) -> list[Any]:
            rest = iter(values)
            before = {instance: [next(rest) for _ in avals] for instance, avals in self.states.items()}
            chunk = OneChunk(
                maker=self, size=size, offset=offset, before=before, given=dict(zip(self.leaves, rest, strict=True))
            )
            for instance in self.instances:
                chunk.compute(instance)
            found = [chunk.after[o.instance] if o.stacked is None else [chunk.made[o.stacked]] for o in self.outputs]
            parts[:] = [len(f) for f in found]
            return [array for f in found for array in f]

        return trace_function(one_chunk, avals), parts


@dataclass(kw_only=True)
class OneChunk:
    """The values of one chunk while its equations are traced.

    Attributes:
      maker: the loop.
      size: indices of the factor in the chunk.
      offset: the first of them, a traced int32 scalar.
      before: state of what is carried, before the chunk.
      given: values of the leaves.
      made: what has been computed, cut along the factor.
      after: state of what is carried after the chunk, and partial results of what is combined.
      used: late values so far, as the chunk uses them.
    """

    maker: LoopMaker
    size: int
    offset: Any
    before: dict[Instance, list[Any]]
    given: dict[Leaf, Any]
    made: dict[Sliced, Any] = field(default_factory=dict)
    after: dict[Instance, list[Any]] = field(default_factory=dict)
    used: dict[Any, Any] = field(default_factory=dict)

    def compute(self, instance: Instance) -> None:
        """Evaluate one instance on the chunk."""
        position, name, window = instance
        region = self.maker.region
        factors, eqn = factors_of(region.program, position), region.program.eqns[position]
        step, before, extra = window or (factors.sizes[name] // region.size, 0, 0)
        start = self.offset if step == 1 else lax.mul(self.offset, np.int32(step))  # jnp's would take ten times as long
        chunk = Chunk(
            context=region.program.context(position),
            factors=factors,
            factor=name,
            size=self.size * step + extra,
            offset=lax.sub(start, np.int32(before)) if before else start,
        )
        own = carried_of(region.program, instance)
        operands = [
            None if own is not None and k in own.into else self._read(var, cut)
            for k, (var, cut) in enumerate(region.operands(instance))
        ]
        if instance in self.maker.carried and about(region, instance):
            repair, (_, cut) = region.repairs[instance], region.operands(instance)[0]
            assert cut is not None
            operands += [self.made[repair.shifted, cut], *(self._usable(repair, value) for value in repair.by)]
        carried = self.maker.carried.get(instance, own)
        placed = factors.results[name]
        results: list[Any] = [None] * len(placed)
        reached = [k for k, p in enumerate(placed) if p is not None]
        is_as_it_is = carried is None and factors.rule.replay is replay_unchanged  # which sees to the context itself
        with contextlib.nullcontext() if is_as_it_is else _compat.equation_context(eqn):
            if carried is not None:
                found, self.after[instance] = carried.step(chunk, self._state(instance), *operands)
            elif reached:
                every = list(factors.rule.replay(chunk, *operands))
                found = [every[k] for k in reached]
            else:
                found, self.after[instance] = [], list(factors.rule.replay(chunk, *operands))
        for k, result in zip(reached, found, strict=True):
            results[k] = result
            if tuple(result.shape) != chunk.result_shape(k):
                raise RuleError(
                    f"factor rule of {chunk.context.primitive!r}: a chunk of factor {name!r} gave shape "
                    f"{tuple(result.shape)}, expected {chunk.result_shape(k)}"
                )
        made = zip(eqn.outvars, placed, results, strict=True)
        self.made.update(((v, (p.axis, window)), r) for v, p, r in made if p is not None)

    def _read(self, var: Any, cut: Cut | None) -> Any:
        if isinstance(var, Literal):
            return var.val
        if (var, cut) in self.given:
            return self.given[var, cut]
        if cut is not None and (var, cut) in self.made:
            return self.made[var, cut]
        if cut is not None and (var, cut) in self.maker.region.makers:
            return self._part(var, cut)
        if var in self.maker.running:
            return self._usable(*self.maker.running[var])
        if var in self.maker.deferred:
            return jnp.ones(var.aval.shape, var.aval.dtype)
        raise RuleError(f"a chunk loop needs {var.aval.str_short()} before it is there; this is a bug in exla")

    def _part(self, var: Any, cut: Cut) -> Any:
        """A window of a value of which a wider one is there."""
        axis, (step, before, extra) = cut
        _, _, wider = self.maker.region.makers[var, cut]
        first = wider[1] - before
        return lax.slice_in_dim(self.made[var, (axis, wider)], first, first + self.size * step + extra, axis=axis)

    def _state(self, instance: Instance) -> list[Any]:
        """The state of a carried instance before the chunk."""
        if instance not in self.before:
            return [self.given[leaf] for leaf in self.maker.restarts(instance)]
        state = self.before[instance]
        repair = self.maker.region.repairs.get(instance)
        if repair is None:
            return state
        if repair.kind == "scaled":
            new = [self._so_far(repair, value, self.after, self._done(after=True)) for value in repair.by]
            old = [self._so_far(repair, value, self.before, self._done(after=False)) for value in repair.by]
            return [scaled(repair, total, old, new) for total in state]
        squares, shifts, used = apart(state, len(repair.by))
        done = repair.count // self.maker.region.size * self._done(after=False)
        context = self.maker.region.program.context(instance[0])
        combiner = COMBINERS.get(combiner_of(self.maker.region, instance, self.maker.chunks))
        (total,) = combiner.finish(context, shifts)
        growth = moved(repair, total, used, [self._usable(repair, value) for value in repair.by], done)
        sums = zip((squares, shifts), growth, strict=True)
        return [*(s for so_far, more in sums for s in combiner.merge(context, so_far, [more])), *used]

    def _usable(self, repair: Repair, value: Running) -> Any:
        """A late value so far, the same number for all that read it."""
        if value.late.var not in self.used:
            found = self._so_far(repair, value, self.after, self._done(after=True))
            self.used[value.late.var] = usable(repair, found)
        return self.used[value.late.var]

    def _done(self, *, after: bool) -> Any:
        """How many indices of the factor the chunks have covered, before or after this one."""
        region = self.maker.region
        if self.maker.level in region.reverse:
            left = lax.sub(np.int32(region.size), self.offset)
            return lax.sub(left, np.int32(0 if after else self.size))
        return lax.add(self.offset, np.int32(self.size if after else 0))

    def _so_far(self, repair: Repair, value: Running, states: dict[Instance, list[Any]], done: Any) -> Any:
        """A late value as it follows from what the loop has combined."""
        program = self.maker.region.program
        env: dict[Any, Any] = {}
        for base in value.bases:
            state = states[base]
            if repair.kind == "squared":
                state = [s * self.maker.region.size / jnp.maximum(done, 1).astype(s.dtype) for s in state]
            results = self.maker.carried[base].finish(program.context(base[0]), state)
            env.update(zip(program.eqns[base[0]].outvars, results, strict=True))
        for position in value.chain:
            eqn = program.eqns[position]
            operands = [
                v.val if isinstance(v, Literal) else env[v] if v in env else self.given[v, None] for v in eqn.invars
            ]
            env.update(zip(eqn.outvars, _compat.bind(eqn, *operands), strict=True))
        return env[value.late.var]
