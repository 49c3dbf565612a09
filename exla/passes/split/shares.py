"""A region on the shares of devices: each of them computes its own, all at once, in one `shard_map`.

    map_region(region, spread) -> Program

What a loop over the region would slice is shared out, what it would stack lies where it was computed, and what it would
combine leaves as one partial state of each device, which are merged outside. Where the region itself needs what is
combined, as softmax needs the sum, the devices exchange it inside, and what little is computed from it to be read again
is computed by each of them. The body is told its first index, so that rules which count indices (iota, masks, random
bits) are right on every share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla import _compat
from exla._compat import Literal
from exla.ir.program import Program, trace_function, value_bytes, variables
from exla.ir.spread import Spread
from exla.passes.split.body import LoopMaker, OneChunk
from exla.passes.split.combine import COMBINERS, Combiner
from exla.passes.split.regions import Cut, Instance, Region, Sliced, carried_of, factors_of

Made = tuple[Instance, Sliced | None]
"""What leaves: the instance that computes it, and the variable that is cut; None = what the instance reduces."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Mapped:
    """A region that is computed on shares.

    Attributes:
      region: the region.
      small_bytes: values up to this size may be computed by every device.
    """

    region: Region
    small_bytes: int

    @cached_property
    def why_not(self) -> str | None:
        """Why it cannot be; None where it can."""
        if self.region.repairs:
            return "its sums run on from chunk to chunk"
        found = (self._why_not(instance) for instance in sorted(self.region.instances))
        return next((reason for reason in found if reason is not None), self._inside[2])

    def _why_not(self, instance: Instance) -> str | None:
        position, name, window = instance
        rule = factors_of(self.region.program, position).rule
        where = f"`{self.region.program.eqns[position].primitive.name}` at {self.region.program.source(position)}"
        if carried_of(self.region.program, instance) is not None:
            return f"{where} runs through the axis in order"
        if window or any(cut is not None and cut[1] for _, cut in self.region.operands(instance)):
            return f"{where} reaches into other shares"
        if name in rule.reduced and (self.combiner(instance).across is None or rule.apart.get(name)):
            return f"{where} selects from the whole axis"
        return None

    def combiner(self, instance: Instance) -> Combiner:
        """How what an instance reduces is merged."""
        return COMBINERS.get(factors_of(self.region.program, instance[0]).rule.reduced[instance[1]])

    def reduced(self, instance: Instance) -> list[Any]:
        """The variables that an instance reduces the axis to."""
        position, name, _ = instance
        placed = factors_of(self.region.program, position).results[name]
        return [v for v, p in zip(self.region.program.eqns[position].outvars, placed, strict=True) if p is None]

    @cached_property
    def made(self) -> dict[Any, Made]:
        """Variable -> what leaves as it."""
        found: dict[Any, Made] = {}
        for output in self.region.outputs:
            of = self.reduced(output.instance) if output.stacked is None else [output.stacked[0]]
            found.update((v, (output.instance, output.stacked)) for v in of)
        return found

    @property
    def leaves(self) -> list[tuple[Any, Cut | None]]:
        """What it reads: a variable, and how it is cut or None."""
        return self._inside[0]

    @property
    def between(self) -> frozenset[int]:
        """Positions of the equations outside the region that every device computes for it."""
        return self._inside[1]

    @cached_property
    def exchanged(self) -> frozenset[Instance]:
        """The instances that reduce what is needed inside."""
        program = self.region.program
        read = [v for i in self.between for v in variables(program.eqns[i].invars)]
        read += [v for i in self.region.instances for v, _ in self._read_whole(i)]
        return frozenset(self.made[v][0] for v in read if v in self.made)

    def _read_whole(self, instance: Instance) -> list[tuple[Any, Cut | None]]:
        """What an instance reads that no other computes for it, cut or whole."""
        operands = self.region.operands(instance)
        return [o for o in operands if not isinstance(o[0], Literal) and (o[1] is None or o not in self.region.makers)]

    @cached_property
    def _inside(self) -> tuple[list[tuple[Any, Cut | None]], frozenset[int], str | None]:
        """The leaves, the equations between, and what cannot be among them."""
        program = self.region.program
        leaves: dict[tuple[Any, Cut | None], None] = {}
        between: set[int] = set()
        todo = [o for i in sorted(self.region.instances) for o in self._read_whole(i)]
        while todo:
            var, cut = todo.pop(0)
            if self.region.available.get(var, 0) == 0:
                leaves[var, cut] = None
            elif var in self.made and cut is None and self.made[var][1] is None:
                continue
            elif var in self.made or cut is not None or not self._may_be_between(program.producers[var]):
                return [], frozenset(), f"it needs {program.describe(var)} of all shares"
            elif program.producers[var] not in between:
                between.add(program.producers[var])
                todo += [(v, None) for v in variables(program.eqns[program.producers[var]].invars)]
        return list(leaves), frozenset(between), None

    def _may_be_between(self, position: int) -> bool:
        eqn = self.region.program.eqns[position]
        if self.region.program.factors(position) is None or _compat.bodies(eqn):
            return False
        return all(value_bytes(v) <= self.small_bytes for v in eqn.outvars)


def map_region(mapped: Mapped, spread: Spread) -> Program:
    """Compute a region on the shares that devices have of its factor.

    Args:
      mapped: the region, for which there is no `why_not`.
      spread: how the factor is shared out, evenly.

    Returns:
      The program with the region's equations in a `shard_map`.
    """
    program = mapped.region.program
    outside, wanted = _outside(mapped)
    made = {v for v in mapped.made if v in wanted}
    needed = {v for v, _ in mapped.leaves}
    before: list[int] = []
    for position in reversed(outside):
        if not needed.isdisjoint(mapped.region.outside(position).outvars):
            needed.update(variables(mapped.region.outside(position).invars))
            before.insert(0, position)

    def run(*inputs: Any) -> list[Any]:
        env: dict[Any, Any] = dict(zip(program.invars, inputs, strict=True))

        def evaluate(positions: Sequence[int]) -> None:
            for position in positions:
                eqn = mapped.region.outside(position)
                results = _compat.bind(eqn, *(v.val if isinstance(v, Literal) else env[v] for v in eqn.invars))
                env.update((v, r) for v, r in zip(eqn.outvars, results, strict=True) if v not in made)

        evaluate(before)
        env.update(_run(mapped, spread, [env[v] for v, _ in mapped.leaves], made))
        evaluate([p for p in outside if p not in before])
        return [v.val if isinstance(v, Literal) else env[v] for v in program.outvars]

    return trace_function(run, [v.aval for v in program.invars], program.consts)


def _outside(mapped: Mapped) -> tuple[list[int], set[Any]]:
    """Positions of the equations that still run outside, and the variables that they and the results need."""
    program = mapped.region.program
    wanted, found = {v for v, _ in mapped.leaves} | set(variables(program.outvars)), list[int]()
    for position in sorted(mapped.region.whole, reverse=True):
        eqn = mapped.region.outside(position)
        if eqn.effects or any(v in wanted and v not in mapped.made for v in eqn.outvars):
            wanted.update(variables(eqn.invars))
            found.append(position)
    return found[::-1], wanted


def _run(mapped: Mapped, spread: Spread, operands: Sequence[Any], wanted: set[Any]) -> dict[Any, Any]:
    """Bind the `shard_map`; what of the region is wanted outside."""
    size = mapped.region.size // spread.shares
    leaving = list(dict.fromkeys(made for v, made in mapped.made.items() if v in wanted))
    counts: list[int] = []

    def on_one(first: Any, *values: Any) -> list[Any]:
        share = _Share(mapped=mapped, names=spread.names, size=size)
        share.compute(first[0], values)
        found = [share.leaving(*made) for made in leaving]
        counts[:] = map(len, found)
        return [array for arrays in found for array in arrays]

    along = [None if cut is None else cut[0] for _, cut in mapped.leaves]
    left: list[int | None] = []
    for instance, stacked in leaving:
        of = [stacked[1][0]] if stacked is not None else [None] if instance in mapped.exchanged else [0]
        context = mapped.region.program.context(instance[0])
        left += of * (1 if stacked is not None else len(context.results))
    results = _compat.share_out(
        [lax.mul(lax.iota(jnp.int32, spread.shares), jnp.int32(size)), *operands],
        on_one,
        mesh=spread.mesh,
        names=spread.names,
        taken=[0, *along],
        left=left,
    )
    env: dict[Any, Any] = {}
    for (instance, stacked), count in zip(leaving, counts, strict=True):
        mine, results = results[:count], results[count:]
        if stacked is not None:
            env[stacked[0]] = mine[0]
            continue
        if instance not in mapped.exchanged:
            combiner = mapped.combiner(instance)
            assert combiner.across is not None
            merged = [combiner.across(part) for part in mine]
            mine = list(combiner.finish(mapped.region.program.context(instance[0]), merged))
        env.update(zip(mapped.reduced(instance), mine, strict=True))
    return env


@dataclass(frozen=True, kw_only=True, eq=False)
class _Share:
    """The values of one device's share while the region is traced on it."""

    mapped: Mapped
    names: tuple[str, ...]
    size: int

    @cached_property
    def chunk(self) -> OneChunk:
        return OneChunk(
            maker=LoopMaker(region=self.mapped.region, level=0), size=self.size, offset=None, before={}, given={}
        )

    def compute(self, offset: Any, values: Sequence[Any]) -> None:
        """Evaluate the region on the share, and what lies between."""
        region, given = self.mapped.region, self.chunk.given
        self.chunk.offset = offset
        given.update(zip(self.mapped.leaves, values, strict=True))
        steps = sorted([*region.instances, *((position, "", ()) for position in self.mapped.between)])
        for instance in steps:
            if instance in region.instances:
                self.chunk.compute(instance)
                if instance in self.mapped.exchanged:
                    finished = self._exchanged(instance)
                    given.update(((v, None), x) for v, x in zip(self.mapped.reduced(instance), finished, strict=True))
                continue
            eqn = region.program.eqns[instance[0]]
            operands = [v.val if isinstance(v, Literal) else given[v, None] for v in eqn.invars]
            given.update(((v, None), x) for v, x in zip(eqn.outvars, _compat.bind(eqn, *operands), strict=True))

    def _exchanged(self, instance: Instance) -> list[Any]:
        """What an instance reduces, of all devices."""
        combiner = self.mapped.combiner(instance)
        state = [combiner.exchange(combiner.prepare(part), self.names) for part in self.chunk.after[instance]]
        return list(combiner.finish(self.mapped.region.program.context(instance[0]), state))

    def leaving(self, instance: Instance, stacked: Sliced | None) -> list[Any]:
        """What leaves as one variable that is cut, or as the results or partial state of an instance."""
        if stacked is not None:
            return [lax.convert_element_type(self.chunk.made[stacked], stacked[0].aval.dtype)]
        if instance in self.mapped.exchanged:
            return [self.chunk.given[v, None] for v in self.mapped.reduced(instance)]
        prepare = self.mapped.combiner(instance).prepare
        return [lax.expand_dims(prepare(part), (0,)) for part in self.chunk.after[instance]]
