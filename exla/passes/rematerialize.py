"""The rematerialize pass: what a scan stacks for another one is computed again there, of less.

    rewrite: scan(stacks p[t] = exp(c - f[t])); scan(reads p[t])  ->  scan(stacks f[t]); scan(computes p[t] of f[t])

The gradient of a loop reads, turn by turn, what the loop computed on the way: for Sinkhorn's iterations of logarithms a
whole matrix of probabilities for each turn. All that they are made of is the cost, which is the same on every turn, and
two vectors. Of all that a scan stacks, the smallest values are kept of which the rest can be computed again
(`exla.ir.smallest`): for a recurrent layer the state, as `jax.checkpoint` around the body would. What reads rows of the
rest computes them in its own body, where they can be cut with what reads them; any other reader has all rows computed
at once.

That takes time, as a sink does; it is chosen where nothing cheaper obeys the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from exla import _compat
from exla._compat import Literal
from exla.errors import ReplayMiss
from exla.ir.memory import Held
from exla.ir.program import Program, value_bytes
from exla.ir.scans import Scan, Turns, of_rows
from exla.ir.smallest import smallest_values
from exla.passes.decisions import Rematerialize
from exla.passes.paths import at_site
from exla.passes.rewritten import Get, rewritten_at

WORTH = 4 / 3
"""How many times as large as what is kept it must be what a scan stacks."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What is kept of a scan's turns.

    Attributes:
      scan: the scan.
      rows: the values of a turn that are kept.
      dropped: which results are computed again.
    """

    scan: Scan
    rows: tuple[Any, ...]
    dropped: frozenset[int]


def enumerate_rematerializations(held: Sequence[Held], small_bytes: int) -> Iterator[Rematerialize]:
    """Offer to keep less of each scan that stacked a big value which is live at the peak.

    Args:
      held: what is live at the peak.
      small_bytes: values up to this size may stay.
    """
    found = dict[Rematerialize, None]()
    for item in held:
        position = item.program.producers.get(item.var)
        if item.bytes > small_bytes and position is not None and _kept(item.program, position) is not None:
            found[Rematerialize(path=item.path, site=item.program.site(position))] = None
    yield from found


def apply_rematerialize(program: Program, decision: Rematerialize) -> Program:
    """Replay a rematerialization.

    Raises:
      ReplayMiss: if the decision does not apply to this program.
    """

    def change(inner: Program, position: int) -> Program:
        kept = _kept(inner, position)
        if kept is None:
            raise ReplayMiss(f"{decision}: what it stacks is not made of much less")
        return _rewritten(inner, position, kept)

    return at_site(program, decision, change)


def _kept(program: Program, position: int) -> Kept | None:
    """The least that can be kept of a scan's turns; None where it is not much less than what the scan stacks."""
    eqn = program.eqns[position]
    scan = Scan.of(eqn)
    if scan is None:
        return None
    stacked = [k for k in _compat.stacked_by_scan(eqn) if not isinstance(scan.body.outvars[k], Literal)]
    wanted = [k for k in stacked if eqn.outvars[k] in program.consumers]
    returned = {scan.body.outvars[k] for k in stacked if eqn.outvars[k] in program.outvars}
    outvars = [scan.body.outvars[k] for k in wanted]
    rows = smallest_values(scan.body, outvars, scan.varies, {*scan.scanned, *returned})
    before = sum(map(value_bytes, dict.fromkeys(v for v in outvars if v not in returned)))
    after = sum(value_bytes(v) for v in rows if v not in returned and v not in scan.scanned)
    if before < WORTH * after or before == 0:
        return None
    dropped = frozenset(k for k in wanted if scan.body.outvars[k] not in rows)
    return Kept(scan=scan, rows=tuple(rows), dropped=dropped) if dropped else None


def _rewritten(program: Program, position: int, kept: Kept) -> Program:
    """The program whose scan keeps less, and whose other scans compute again what they read of it."""
    eqn, scan = program.eqns[position], kept.scan
    rows: dict[Any, Any] = {}
    fixed: dict[Any, Any] = {}

    def keep(get: Get) -> list[Any]:
        operands = [get(v) for v in eqn.invars]
        results, by_turn = scan.run(operands, kept.dropped, kept.rows)
        rows.update((v, by_turn[v]) for v in kept.rows)
        fixed.update(zip(scan.fixed, operands, strict=False))
        turns = Turns(scan=scan, by_turn=by_turn, fixed=dict(fixed))
        results |= {k: turns.all(scan.body.outvars[k]) for k in kept.dropped}
        return [results[k] for k in range(len(results))]

    computes: dict[int, Callable[[Get], list[Any]]] = {position: keep}
    for reader, again in _readers(program, eqn, kept):
        computes[reader] = _reading(program.eqns[reader], again, scan, rows, fixed)
    return rewritten_at(program, computes)


def _readers(program: Program, eqn: Any, kept: Kept) -> Iterator[tuple[int, dict[int, Any]]]:
    """The scans that read rows of what is dropped: position, and which operand -> the value of a turn that it is."""
    dropped = {eqn.outvars[k]: kept.scan.body.outvars[k] for k in kept.dropped}
    for position in sorted({p for v in dropped for p, _ in program.consumers[v]}):
        reader = program.eqns[position]
        again = {k: dropped[reader.invars[k]] for k in _compat.rows_of_scan(reader) if reader.invars[k] in dropped}
        if again and Scan.of(reader) is not None:
            yield position, again


def _reading(
    eqn: Any, again: dict[int, Any], made_by: Scan, rows: dict[Any, Any], fixed: dict[Any, Any]
) -> Callable[[Get], list[Any]]:
    """How a scan is evaluated that computes some of its rows of what was kept of another scan's turns."""
    scan = Scan.of(eqn)
    assert scan is not None

    def compute(get: Get) -> list[Any]:
        operands = {k: get(v) for k, v in enumerate(eqn.invars) if k not in again}

        def inputs(row: Sequence[Any]) -> list[Any]:
            return of_rows(made_by.body, list(again.values()), fixed | dict(zip(rows, row, strict=True)))

        return scan.with_rows(operands, list(again), list(rows.values()), inputs)

    return compute
