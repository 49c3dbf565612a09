"""Shard maps that hand values on are joined, so that what they compute is planned together.

    residuals, loss = shard_map(forward)(x)                 loss, gradient = shard_map(both)(x)
    gradient = shard_map(backward)(residuals, x)     ->

Differentiating a `shard_map` makes two of it, and everything that the second needs of the first becomes a result of one
and an argument of the other, whole. Two with the same mesh are joined where the second reads a result of the first as
the first leaves it, and nothing outside them has to come between (`join_shards`). Where something has to, the second
may compute again what it reads (`compute_again`): all but what the devices exchange for it, which is handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from exla import _compat
from exla._compat import Literal
from exla.ir.handed import handed_on, join_all, operands_of_second, run_steps, wanted
from exla.ir.primitives import VIEWS
from exla.ir.program import Program, as_it_is, evaluate, variables

SPELLINGS = VIEWS | {"broadcast_in_dim"}


def join_shards(program: Program) -> Program:
    """The program with every two shard maps joined that can be."""
    return join_all(program, hands_on_to, _joined)


def hands_on_to(program: Program, second: int) -> list[int]:
    """The shard maps before an equation that is one too, of which it reads results, all as they are left."""
    other = program.eqns[second]
    if not _is_known(other):
        return []
    pairs = zip(other.invars, other.params["in_specs"], strict=True)
    read = [(v, spec) for v, spec in pairs if not isinstance(v, Literal) and v in program.producers]
    found = []
    for first in sorted({program.producers[v] for v, _ in read}):
        one = program.eqns[first]
        if not _is_known(one) or any(one.params[k] != other.params[k] for k in ("mesh", "newly_manual_axes")):
            continue
        left = dict(zip(one.outvars, one.params["out_specs"], strict=True))
        if all(left[v] == spec for v, spec in read if v in left):
            found.append(first)
    return found


def _is_known(eqn: Any) -> bool:
    return eqn.primitive.name == "shard_map" and bool(_compat.bodies(eqn))


def _joined(program: Program, first: int, second: int) -> tuple[Callable[[Any], list[Any]], list[int]]:
    """Two shard maps as one, and which results of the first it leaves."""
    one, other = program.eqns[first], program.eqns[second]
    kept = wanted(program, first, second)
    handed, own = handed_on(one, other)

    def both(*shards: Any) -> list[Any]:
        made = evaluate(_body(one), shards[: len(one.invars)], as_it_is)
        operands = operands_of_second(other, handed, made, shards[len(one.invars) :])
        return [*(made[k] for k in kept), *evaluate(_body(other), operands, as_it_is)]

    def join(of: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
        return _compat.map_over_shards(
            one,
            of([*one.invars, *(other.invars[k] for k in own)]),
            both,
            in_specs=[*one.params["in_specs"], *(other.params["in_specs"][k] for k in own)],
            out_specs=[*(one.params["out_specs"][k] for k in kept), *other.params["out_specs"]],
        )

    return join, kept


def compute_again(program: Program, first: int, second: int) -> Program:
    """A shard map that computes for itself what another one hands on to it.

    What the devices exchange for that is exchanged once, and handed on.

    Args:
      program: the program.
      first: the position of the other one, among `hands_on_to(program, second)`.
      second: its own position.
    """
    one, other = program.eqns[first], program.eqns[second]
    kept = wanted(program, first, second)
    handed, own = handed_on(one, other)
    body = _body(one)
    spec = _compat.one_for_each_shard(one)
    results = [body.outvars[k] for k in handed.values()]
    needed = _needed(body, results, again=True)
    inside = {v for eqn in needed for v in eqn.outvars} | set(body.invars)
    read = [v for eqn in needed for v in variables(eqn.invars)] + variables(results)
    exchanged = [v for v in dict.fromkeys(read) if v not in inside]
    first_results = [*(body.outvars[k] for k in kept), *exchanged]
    before = body.replace(outvars=first_results, eqns=_needed(body, first_results))

    def leave(*shards: Any) -> list[Any]:
        made = evaluate(before, shards, as_it_is)
        return [*made[: len(kept)], *(x[None] for x in made[len(kept) :])]

    def again(*shards: Any) -> list[Any]:
        count = len(one.invars)
        mine, brought, rest = shards[:count], shards[count : count + len(exchanged)], shards[count + len(exchanged) :]
        inner = body.replace(invars=[*body.invars, *exchanged], outvars=results, eqns=needed)
        found = evaluate(inner, [*mine, *(x[0] for x in brought)], as_it_is)
        made = dict(zip(handed.values(), found, strict=True))
        return evaluate(_body(other), operands_of_second(other, handed, made, rest), as_it_is)

    brought: list[Any] = []

    def run_first(of: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
        specs = [*(one.params["out_specs"][k] for k in kept), *(spec for _ in exchanged)]
        left = _compat.map_over_shards(one, of(one.invars), leave, out_specs=specs)
        brought[:] = left[len(kept) :]
        return left[: len(kept)]

    def run_second(of: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
        operands = [*of(one.invars), *brought, *of([other.invars[k] for k in own])]
        specs = [*one.params["in_specs"], *(spec for _ in exchanged), *(other.params["in_specs"][k] for k in own)]
        return _compat.map_over_shards(other, operands, again, in_specs=specs)

    steps = list[Any](range(len(program.eqns)))
    steps[first] = (run_first, [one.outvars[k] for k in kept])
    steps[second] = (run_second, list(other.outvars))
    is_needed = kept or exchanged or _compat.acts(one)
    return run_steps(program, steps if is_needed else [*steps[:first], *steps[first + 1 :]])


def is_computed(program: Program, var: Any) -> bool:
    """Whether computing a result of a shard map again is more than handing on what was exchanged for it."""
    position = program.producers[var]
    eqn = program.eqns[position]
    body = Program(jaxpr=_body(eqn))
    inside = body.outvars[list(eqn.outvars).index(var)]
    while inside in body.producers:
        made = body.eqns[body.producers[inside]]
        if made.primitive.name not in SPELLINGS:
            return not _compat.happens_once(made)
        inside = made.invars[0]
    return False


def _needed(body: Any, results: Sequence[Any], again: bool = False) -> list[Any]:
    """The equations that some values are made by, and those that act; again: but for what happens once."""
    wanted, found = set(variables(results)), list[Any]()
    for eqn in reversed(body.eqns):
        is_read = not wanted.isdisjoint(eqn.outvars)
        is_needed = (is_read and not _compat.happens_once(eqn)) if again else (is_read or _compat.acts(eqn))
        if is_needed:
            wanted.update(variables(eqn.invars))
            found.append(eqn)
    return found[::-1]


def _body(eqn: Any) -> Any:
    return _compat.bodies(eqn)[0].jaxpr
