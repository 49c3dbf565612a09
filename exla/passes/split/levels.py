"""Levels: what leaves a region, and which of its loops computes it.

`close` is the second half of growing a region. It walks backwards from the program's outputs to find which values are
wanted whole and which instances are wanted at all; then forwards, to give each instance the first loop that can compute
it: `softmax` needs the maximum whole, so what follows it is one level later, unless it is computed online
(`exla.passes.split.online`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from exla._compat import Literal, for_results, is_drop
from exla.ir.program import Program, value_bytes
from exla.ir.smallest import smallest_cut
from exla.passes.decisions import Growth
from exla.passes.split.combine import COMBINERS
from exla.passes.split.online import SELECTING, Form, Repair, Running, form_of, is_mean, late_form, running, squared
from exla.passes.split.regions import (
    Cut,
    Instance,
    LoopOutput,
    Region,
    Sliced,
    body_of,
    carried_of,
    factors_of,
    numbers_of,
    operands_of,
)

Provided = tuple[Instance, Sliced | None]
"""The instance that computes a value in a loop, and along which axis the value is cut there (None: it comes whole)."""


def close(
    program: Program, instances: frozenset[Instance], size: int, how: Growth, blocked: Mapping[Any, str]
) -> Region | None:
    """Find what leaves a region, on which level, and what stays outside.

    Args:
      program: the program.
      instances: what was grown.
      size: how many indices the factor has.
      how: how it was grown.
      blocked: variable -> why it could not be cut further.

    Returns:
      The region, or None where nothing leaves it; the same one where it was grown in another way to the same end.
    """
    key = ("provided", instances, size)
    if key not in program.known:
        program.known[key] = _provided(program, instances, size)
    makers, provided = program.known[key]
    between = (v for v, p in provided.items() if _is_stacked_between(program, v, p, how.small_bytes))
    again = frozenset(between if how.again else ())
    closed = ("closed", instances, size, again, how.online, how.kept)
    if closed not in program.known:
        stacked = {v: p for v, p in provided.items() if v not in again}
        program.known[closed] = _closed(program, instances, size, how, makers, stacked, blocked)
    return program.known[closed]


def _provided(
    program: Program, instances: Set[Instance], size: int
) -> tuple[dict[Sliced, Instance], dict[Any, Provided]]:
    """Which instance computes each cut value, and which provides each value to what is outside."""
    makers: dict[Sliced, Instance] = {}
    provided: dict[Any, Provided] = {}
    for instance in sorted(instances):
        position, name, window = instance
        factors = factors_of(program, position)
        for var, at in zip(program.eqns[position].outvars, factors.results[name], strict=True):
            if at is not None:
                makers.setdefault((var, (at.axis, window)), instance)
                if not window:
                    provided.setdefault(var, (instance, (var, (at.axis, window))))
    for instance in sorted(instances):
        for var, cut in operands_of(program, instance, size):
            if cut is not None and cut[1] and (var, cut) not in makers:
                wider = next((s for s in makers if s[0] is var and _covers(s[1], cut)), None)
                if wider is not None:
                    makers[var, cut] = makers[wider]
    for instance in sorted(i for i in instances if not i[2]):
        apart = factors_of(program, instance[0]).rule.apart.get(instance[1], frozenset())
        for k, var in enumerate(program.eqns[instance[0]].outvars):
            if k not in apart:
                provided.setdefault(var, (instance, None))
    return makers, provided


def _closed(
    program: Program,
    instances: Set[Instance],
    size: int,
    how: Growth,
    makers: Mapping[Sliced, Instance],
    provided: Mapping[Any, Provided],
    blocked: Mapping[Any, str],
) -> Region | None:
    """`close`, once it is known what is stacked."""
    outputs, whole, fewer, demanded = _demand(program, size, instances, makers, provided)
    if not outputs:
        return None
    makers = {s: i for s, i in makers.items() if i in demanded}
    placed = _Levels(
        program=program, size=size, instances=instances, makers=makers, provided=provided, online=how.online
    )
    placed.run()
    reverse = frozenset(k for k, is_reverse in placed.reverse.items() if is_reverse)
    found = [LoopOutput(instance=i, stacked=s, level=placed.level[i]) for i, s in outputs]
    found += _saved(program, size, makers, found, placed.level, reverse)
    repairs = {i: r for i, r in placed.repairs.items() if i in demanded}
    region = Region(
        program=program,
        size=size,
        makers=makers,
        instances=frozenset(demanded),
        outputs=tuple(sorted(found, key=lambda o: (o.instance, *_place(program, o)))),
        reverse=reverse,
        available=placed.available,
        repairs=repairs,
        whole=frozenset(whole),
        fewer=fewer,
        between=frozenset(),
        blocked=dict(blocked),
        least_chunk=_least_chunk(program, demanded, size),
    )
    return _keeping(region, placed.level, provided, how.kept) if how.kept else region


def _keeping(region: Region, levels: Mapping[Instance, int], provided: Mapping[Any, Provided], kept: int) -> Region:
    """A region whose loops stack the smallest values that spare each what was computed so many loops ago and before."""
    if region.reverse:  # a loop that runs the other way goes on from states that are saved
        return region
    made: dict[Sliced, Instance] = {}
    for level in range(region.levels[-1], kept - 1, -1):  # what a later loop needs of more may do for an earlier one
        there = region.given(level).union(s for s, i in made.items() if levels[i] < level)
        spared = _spared(region, levels, provided, level, level - kept, there)
        made.update((sliced, region.makers[sliced]) for sliced in spared)
    stacked = {o.stacked for o in region.outputs}
    outputs = [LoopOutput(instance=i, stacked=s, level=levels[i]) for s, i in made.items() if s not in stacked]
    values = {s[0]: levels[i] + 1 for s, i in made.items()}
    return replace(
        region,
        outputs=tuple(sorted((*region.outputs, *outputs), key=lambda o: (o.instance, *_place(region.program, o)))),
        between=frozenset(values),
        available=dict(region.available) | values,
    )


def _spared(
    region: Region,
    levels: Mapping[Instance, int],
    provided: Mapping[Any, Provided],
    level: int,
    before: int,
    there: Set[Sliced],
) -> list[Sliced]:
    """The smallest values that spare the loop of a level what was computed up to another level (`before`).

    What depends on no input is no matter of computing, and what is there is sliced.
    """
    weights, edges = dict[Sliced | Instance, int | None](), list[tuple[Sliced | Instance, Sliced | Instance]]()
    given, wanted = list[Instance](), list[Sliced]()
    stack = [o.instance for o in region.outputs if o.level == level]
    seen = set(stack)
    while stack:
        reader = stack.pop()
        for sliced in ((v, cut) for v, cut in region.operands(reader) if cut is not None):
            maker = region.makers.get(sliced)
            if maker is None or sliced in there:
                continue
            if levels[maker] < level:
                is_whole = provided.get(sliced[0]) == (maker, sliced)
                weights[sliced] = value_bytes(sliced[0]) if is_whole else None
                weights[maker] = None
                edges.append((maker, sliced))
                if levels[reader] < level:
                    edges.append((sliced, reader))
                else:
                    wanted.append(sliced)
            if maker not in seen:
                seen.add(maker)
                stack.append(maker)
                if levels[maker] <= before and sliced[0] not in numbers_of(region.program):
                    given.append(maker)
    cut_through = smallest_cut(weights, edges, given, wanted) if given else None
    return [node for node in cut_through or () if len(node) == 2]


def _covers(wider: Cut, cut: Cut) -> bool:
    """Whether one window of a value holds another one."""
    (axis, window), (other_axis, other) = wider, cut
    if axis != other_axis or not window or window[0] != other[0]:
        return False
    before, after = window[1] - other[1], (window[2] - window[1]) - (other[2] - other[1])
    return before >= 0 and after >= 0


def _least_chunk(program: Program, instances: Iterable[Instance], size: int) -> int:
    """The smallest chunk that every combiner takes."""
    least = 1
    for position, name, _ in instances:
        factors = factors_of(program, position)
        grain = factors.sizes[name] // size
        if name in factors.rule.reduced:
            combiner = COMBINERS.get(factors.rule.reduced[name])
            least = max(least, -(-combiner.least_chunk(program.context(position)) // grain))
    return least


def _saved(
    program: Program,
    size: int,
    makers: Mapping[Sliced, Instance],
    outputs: Iterable[LoopOutput],
    levels: Mapping[Instance, int],
    reverse: Set[int],
) -> list[LoopOutput]:
    """The states that must be saved for the loops that run the other way than an instance which they compute."""
    found = {(o.instance, o.level): o for o in outputs}
    saved: dict[Instance, LoopOutput] = {}
    for level in range(max(levels.values()), -1, -1):
        here = [o for o in (*found.values(), *saved.values()) if o.level == level]
        for instance in body_of(program, size, makers, here):
            carried = carried_of(program, instance)
            if carried is not None and not carried.runs(level in reverse):
                saved[instance] = LoopOutput(instance=instance, stacked=None, level=levels[instance], saved=True)
    return list(saved.values())


def _is_stacked_between(program: Program, var: Any, provided: Provided, small_bytes: int) -> bool:
    """Whether a value would be stacked although it is big and no output of the program."""
    return provided[1] is not None and value_bytes(var) > small_bytes and var not in program.outvars


def _place(program: Program, output: LoopOutput) -> tuple[int, int]:
    """Sorting key of an output among those of its instance."""
    if output.stacked is None:
        return (-1, int(output.saved))
    return (list(program.eqns[output.instance[0]].outvars).index(output.stacked[0]), output.stacked[1][0])


def _demand(
    program: Program,
    size: int,
    instances: Set[Instance],
    makers: Mapping[Sliced, Instance],
    provided: Mapping[Any, Provided],
) -> tuple[set[Provided], set[int], dict[int, Any], set[Instance]]:
    """Walk backwards from the outputs: which values are needed whole, and which instances compute something.

    Where a loop computes some results of control flow, as the states of a batch, and others do not depend on what is
    cut, as what the batch has in common, these alone are computed outside, of what they need.
    """
    needed_whole = {v for v in program.outvars if not isinstance(v, Literal)}
    demanded: set[Instance] = set()
    outputs: set[Provided] = set()
    whole: set[int] = set()
    fewer: dict[int, Any] = {}
    at_position: dict[int, list[Instance]] = {}
    for instance in instances:
        at_position.setdefault(instance[0], []).append(instance)
    for i in range(len(program.eqns) - 1, -1, -1):
        eqn = program.eqns[i]
        for var in eqn.outvars:
            if var in needed_whole and var in provided:
                outputs.add(provided[var])
                demanded.add(provided[var][0])
        wanted = tuple(v in needed_whole and v not in provided for v in eqn.outvars)
        if eqn.effects or any(wanted):
            whole.add(i)
            if i in at_position and not eqn.effects:
                eqn = _for_results(program, i, wanted)
                fewer.update({i: eqn} if eqn is not program.eqns[i] else {})
            needed_whole.update(v for v in eqn.invars if not isinstance(v, Literal))
        for instance in sorted(at_position.get(i, ())):
            if instance not in demanded:
                continue
            for var, cut in operands_of(program, instance, size):
                if isinstance(var, Literal):
                    continue
                if cut is not None and (var, cut) in makers:
                    demanded.add(makers[var, cut])
                else:
                    needed_whole.add(var)
    return outputs, whole, fewer, demanded


def _for_results(program: Program, position: int, wanted: tuple[bool, ...]) -> Any:
    """An equation that computes some of its results, as far as it can leave others out."""
    key = ("for results", position, wanted)
    if key not in program.known:
        program.known[key] = for_results(program.jaxpr, program.eqns[position], wanted)
    return program.known[key]


@dataclass(kw_only=True)
class _Levels:
    """Gives each instance its level, in program order.

    An instance comes one level after the loop that computes an output which it needs whole. A carried one comes on a
    level that runs in its own direction, which the first carried instance of a level decides. Where `online`, a sum
    that can be repaired comes as early as the values do of which it needs no more than what the loop has so far.

    Attributes:
      level: of each instance.
      reverse: whether a level runs from the last index to the first.
      available: variable -> the first level at which it is there whole.
      repairs: the sums that are repaired.
      soon: of each instance, its level if late values need not be final.
      forms: how each value in a loop depends on late values; absent where it does not.
    """

    program: Program
    size: int
    instances: Set[Instance]
    makers: Mapping[Sliced, Instance]
    provided: Mapping[Any, Provided]
    online: bool
    level: dict[Instance, int] = field(default_factory=dict)
    reverse: dict[int, bool] = field(default_factory=dict)
    available: dict[Any, int] = field(default_factory=dict)
    repairs: dict[Instance, Repair] = field(default_factory=dict)
    soon: dict[Instance, int] = field(default_factory=dict)
    forms: dict[Sliced, Form] = field(default_factory=dict)

    def run(self) -> None:
        at_position: dict[int, list[Instance]] = {}
        for instance in self.instances:
            at_position.setdefault(instance[0], []).append(instance)
        for i, eqn in enumerate(self.program.eqns):
            for instance in sorted(at_position.get(i, ())):
                self._place(instance)
            reads = (v for v in eqn.invars if not isinstance(v, Literal))
            outside = max((self.available.get(v, 0) for v in reads), default=0)
            for var in eqn.outvars:
                if not is_drop(var):
                    made = self.provided.get(var)
                    self.available[var] = self.level[made[0]] + 1 if made is not None else outside

    def _place(self, instance: Instance) -> None:
        operands = [o for o in operands_of(self.program, instance, self.size) if not isinstance(o[0], Literal)]
        inside = [self.makers[v, a] for v, a in operands if a is not None and (v, a) in self.makers]
        whole = [v for v, a in operands if a is None or (v, a) not in self.makers]
        least = max([*(self.level[i] for i in inside), *(self.available.get(v, 0) for v in whole)], default=0)
        carried = carried_of(self.program, instance)
        if carried is not None and carried.reverse is not None:
            while self.reverse.setdefault(least, carried.reverse) != carried.reverse:
                least += 1
        self.level[instance] = self.soon[instance] = least
        if self.online and carried is None:
            self._hurry(instance, max((self.soon[i] for i in inside), default=0))

    def _hurry(self, instance: Instance, cut_level: int) -> None:
        """See whether an instance can do with what the loop has so far of the late values that it depends on."""
        position, name, window = instance
        forms: list[Form | None] = []
        for var, cut in operands_of(self.program, instance, self.size):
            if isinstance(var, Literal):
                forms.append(None)
            elif cut is not None and (var, cut) in self.makers:
                forms.append(self.forms.get((var, cut)))
            else:
                forms.append(late_form(var) if self.available.get(var, 0) > cut_level else None)
        form = form_of(self.program, instance, forms)
        if form is None:
            return
        factors = factors_of(self.program, position)
        for var, at in zip(self.program.eqns[position].outvars, factors.results[name], strict=True):
            if at is not None:
                self.forms[var, (at.axis, window)] = form
        if form.kind == "none":
            return
        bases = {v: i for v, (i, sliced) in self.provided.items() if sliced is None and i in self.level}
        early = {v for v in self.program.invars}
        early |= {v for v, level in self.available.items() if level <= cut_level}
        values = [running(self.program, late, bases, early) for late in form.by]
        found = [v for v in values if v is not None]
        levels = {self.level[b] for v in found for b in v.bases}
        if len(found) < len(values) or any(level < cut_level for level in levels) or len(levels) > 1:
            return
        if not all(v.bases for v in found):  # it is final, as what devices have exchanged between two loops
            return
        self.soon[instance] = max(levels, default=cut_level)
        if factors.rule.reduced.get(name) != "sum":
            return
        count = self._count(found)
        if form.kind == "scaled" and not (found and all(self._selects_a_maximum(v) for v in found)):
            return
        shifted = squared(self.program, instance) if form.kind == "squared" else None
        if form.kind == "squared" and not (count and is_mean(self.program, found[0], count) and shifted is not None):
            return
        sums = form.kind in ("scaled", "squared") and self.soon[instance] < self.level[instance]
        if sums and self._is_finished_in_time(form, self.soon[instance] + 1):
            self.level[instance] = self.soon[instance]
            self.repairs[instance] = Repair(
                kind=form.kind, by=tuple(found), deferred=form.deferred, count=count, shifted=shifted
            )

    def _selects_a_maximum(self, value: Running) -> bool:
        names = {self.program.eqns[i].primitive.name for i in value.chain}
        return names <= SELECTING and all(self._reduces(b) == "max" for b in value.bases)

    def _is_finished_in_time(self, form: Form, level: int) -> bool:
        """Whether what was put off can be done right after the loop, and no value has two roles in it."""
        by = {late.var for late in form.by}
        deferred = {late.var for _, late in form.deferred}
        others = self.repairs.values()
        by |= {v.late.var for r in others for v in r.by}
        deferred |= {late.var for r in others for _, late in r.deferred}
        return not by & deferred and all(self.available.get(v, 0) <= level for v in deferred)

    def _reduces(self, instance: Instance) -> str | None:
        return factors_of(self.program, instance[0]).rule.reduced.get(instance[1])

    def _count(self, values: Sequence[Running]) -> int:
        """How many elements go into each sum that a value is computed from; 0 where it is none."""
        bases = {b for v in values for b in v.bases}
        if len(bases) != 1:
            return 0
        (instance,) = bases
        eqn = self.program.eqns[instance[0]]
        if eqn.primitive.name != "reduce_sum" or self._reduces(instance) != "sum":
            return 0
        return math.prod(eqn.invars[0].aval.shape[k] for k in eqn.params["axes"])
