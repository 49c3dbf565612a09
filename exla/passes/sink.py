"""The sink pass: a big value that a loop reads on every turn is computed there, on every turn.

    rewrite: k = exp(x @ y.T); while(body, k, v) -> while(body computing k from x and y, x, y, v)

By itself that saves nothing. But inside the body the value can be split with what reads it, and then it never exists
whole: the matrix of a Sinkhorn iteration or of a conjugate-gradient solve is recomputed chunk by chunk. It is chosen
where nothing cheaper obeys the limit, since each turn pays for it again.

Where a loop reads no more than some rows of it, found as it runs, these alone are computed, and so is what is read in
few places outside of loops (`exla.passes.split.part`): greedy choices need no matrix of distances, nor do landmarks.

Of two `shard_map`s, forward and backward, the second reads what the first hands on. It can compute that again, all but
what the devices exchange for it, and then cut it with what reads it (`exla.ir.shards`). So can the second of two
conditionals on one number (`exla.ir.branches`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from exla import _compat
from exla._compat import Literal
from exla.errors import ReplayMiss
from exla.ir.branches import branch_again, branches_before
from exla.ir.check import check
from exla.ir.memory import Held
from exla.ir.program import Program, as_it_is, as_struct, evaluate, live_equations, read_by, value_bytes
from exla.ir.scopes import SUNK
from exla.ir.shards import compute_again, hands_on_to, is_computed
from exla.passes.decisions import Sink
from exla.passes.paths import at_site
from exla.passes.rewritten import rewritten
from exla.passes.split.part import MOST_WHOLE, READS, Part

LEAST_SLICES = 2
"""So many slices make up a value, at least, that are each computed alone: blocks of a matrix, no shifts of an image."""


def enumerate_sinks(held: Sequence[Held], small_bytes: int, *, of_slices: bool = False) -> Iterator[Sink]:
    """Offer to sink each big value that is live at the peak into the loops that read it.

    Args:
      held: what is live at the peak.
      small_bytes: values up to this size may stay where they are.
      of_slices: whether to offer, too, that slices of up to half of it are computed alone.

    Yields:
      One decision for each operand of control flow that could be computed inside.
    """
    for item in held:
        program = item.program
        if item.bytes <= small_bytes or item.var not in program.producers:
            continue
        for position in _parts_read(program, item.var, small_bytes, of_slices):
            if _part(program, position, small_bytes) is not None:
                yield Sink(path=item.path, site=program.site(position), operand=0, small_bytes=small_bytes)
        for position, k in program.consumers.get(item.var, ()):
            made_at = program.producers[item.var]
            again = made_at in hands_on_to(program, position) and is_computed(program, item.var)
            again |= made_at in branches_before(program, position)
            constant = k in _compat.constants_of_bodies(program.eqns[position])
            if again or (constant and _chain(program, item.var, small_bytes)):
                yield Sink(path=item.path, site=program.site(position), operand=k, small_bytes=small_bytes)


def apply_sink(program: Program, decision: Sink) -> Program:
    """Replay a sink.

    Args:
      program: the outermost program.
      decision: the sink.

    Returns:
      The program whose control flow computes the value itself.

    Raises:
      ReplayMiss: if the decision does not apply to this program.
    """
    return at_site(program, decision, lambda inner, position: _sink(inner, position, decision))


def _sink(program: Program, position: int, decision: Sink) -> Program:
    eqn = program.eqns[position]
    if eqn.primitive.name in READS:
        part = _part(program, position, decision.small_bytes)
        if part is None:
            raise ReplayMiss(f"{decision}: the part that it reads cannot be computed alone")
        return rewritten(program, position, part.reads, part.compute)
    made = _maker(program, eqn, decision.operand)
    if made is not None and made in branches_before(program, position):
        return check(branch_again(program, made, position))
    if eqn.primitive.name == "shard_map":
        return _again(program, position, decision)
    if decision.operand not in _compat.constants_of_bodies(eqn):
        raise ReplayMiss(f"{decision}: it is not a constant of the loop")
    var = eqn.invars[decision.operand]
    chain = [] if isinstance(var, Literal) else _chain(program, var, decision.small_bytes)
    if not chain:
        raise ReplayMiss(f"{decision}: what computes the value cannot be moved")
    leaves = read_by(program, chain)

    def rewrite(closed: Any, which: int) -> Any:
        body = program.jaxpr.replace(invars=leaves, constvars=[], outvars=[var], eqns=[program.eqns[i] for i in chain])

        def run(*values: Any) -> list[Any]:
            with jax.named_scope(SUNK):
                inside = evaluate(body, values[which : which + len(leaves)], as_it_is)
            return evaluate(
                closed.jaxpr, [*closed.consts, *values[:which], *inside, *values[which + len(leaves) :]], as_it_is
            )

        avals = [v.aval for v in closed.jaxpr.invars]
        avals[which : which + 1] = [v.aval for v in leaves]
        return jax.make_jaxpr(run)(*(as_struct(a) for a in avals))

    params = _compat.with_constant_replaced(eqn, decision.operand, len(leaves), rewrite)
    invars = list(eqn.invars)
    invars[decision.operand : decision.operand + 1] = leaves
    eqns = list(program.eqns)
    eqns[position] = eqn.replace(invars=invars, params=params)
    changed = Program(jaxpr=program.jaxpr.replace(eqns=eqns), consts=program.consts)
    live = live_equations(changed)
    return check(
        Program(jaxpr=changed.jaxpr.replace(eqns=[e for i, e in enumerate(eqns) if i in live]), consts=program.consts)
    )


def _again(program: Program, position: int, decision: Sink) -> Program:
    """A shard map computes for itself all that another one hands on to it, the operand among it."""
    made_at = _maker(program, program.eqns[position], decision.operand)
    if made_at is None or made_at not in hands_on_to(program, position):
        raise ReplayMiss(f"{decision}: no shard map before it hands that on")
    return check(compute_again(program, made_at, position))


def _maker(program: Program, eqn: Any, operand: int) -> int | None:
    """Position of what makes an operand; None where nothing does, or where there is none so far behind."""
    var = eqn.invars[operand] if 0 <= operand < len(eqn.invars) else None
    return None if var is None or isinstance(var, Literal) else program.producers.get(var)


def _parts_read(program: Program, var: Any, small_bytes: int, of_slices: bool) -> Iterator[int]:
    """The equations that read a small part of a value, or of a view of it."""
    small = max(small_bytes, value_bytes(var) // MOST_WHOLE)
    for position, k in program.consumers.get(var, ()):
        eqn = program.eqns[position]
        if eqn.primitive.name == "reshape":
            yield from _parts_read(program, eqn.outvars[0], small_bytes, of_slices)
        elif eqn.primitive.name in READS and k == 0:
            most = value_bytes(var) // LEAST_SLICES if of_slices and eqn.primitive.name == "slice" else 0
            if 0 < value_bytes(eqn.outvars[0]) <= max(small, most):
                yield position


def _part(program: Program, position: int, small_bytes: int) -> Part | None:
    """How one of `READS` can compute what it reads; None where it cannot."""
    key = (_part, position, small_bytes)
    if key not in program.known:
        program.known[key] = _new_part(program, position, small_bytes)
    return program.known[key]


def _new_part(program: Program, position: int, small_bytes: int) -> Part | None:
    var = program.eqns[position].invars[0]
    while var in program.producers and program.eqns[program.producers[var]].primitive.name == "reshape":
        var = program.eqns[program.producers[var]].invars[0]
    chain = [] if isinstance(var, Literal) else _chain(program, var, small_bytes)
    if not chain or program.eqns[chain[-1]].outvars != [var]:
        return None
    part = Part(program, position, chain, small_bytes)
    return part if part.cut is not None else None


def _chain(program: Program, var: Any, small_bytes: int) -> list[int]:
    """Positions of the equations that compute a value from small ones and from inputs; empty where one cannot move."""
    found: set[int] = set()
    stack = [var]
    while stack:
        position = program.producers.get(stack.pop())
        if position is None or position in found:
            continue
        factors = program.factors(position)
        if factors is None or factors.rule.carried:
            return []
        found.add(position)
        operands = (v for v in program.eqns[position].invars if not isinstance(v, Literal))
        stack += [v for v in operands if value_bytes(v) > small_bytes]
    return sorted(found)
