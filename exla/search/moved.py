"""Values computed elsewhere before anything is split: in the loops that read them, or on each device's share.

By itself that saves nothing; but there they can be cut (`exla.passes.sink`, `exla.passes.share`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, Literal, get_args

from exla.ir.memory import Held, Path
from exla.ir.program import Program, value_bytes
from exla.passes.collect import enumerate_collections
from exla.passes.decisions import Change, Growth, Share
from exla.passes.paths import bodies_to_rewrite
from exla.passes.rematerialize import enumerate_rematerializations
from exla.passes.replay import replay
from exla.passes.share import apply_share, enumerate_shares
from exla.passes.sink import enumerate_sinks
from exla.strict import tolerate

if TYPE_CHECKING:
    from exla.search.space import Candidate, Goal, Space

Also = Literal["", "turns", "slices"]
"""What is computed elsewhere besides values that are the same on every turn."""
MOST_SINKS = 12
MOST_SHARES = 4
MOST_BARRED = 3
"""Candidates that may exchange more than the plain program before what they share is no longer computed on shares."""


def sunk(space: Space, start: Candidate, goal: Goal) -> Iterator[Candidate]:
    """A start with values computed in what reads them, on each device's share, or both.

    Args:
      space: what can be done.
      start: the program before any split.
      goal: what is wanted.
    """
    yield from _in_loops(space, start, goal)
    shared = _shared(space, start, goal) if space.spread else None
    if shared is not None:
        yield shared
        yield from _in_loops(space, shared, goal)


def thresholds(room_bytes: int, coarser: bool = False) -> list[int]:
    """Bytes of the values that may stay whole where a region grows, smallest first."""
    return sorted({max(room_bytes // share, 1) for share in ((64, 8, 3) if coarser else (64, 8))})


def room_bytes(start: Candidate, goal: Goal) -> int:
    """Bytes that a goal leaves beside arguments and results."""
    return max(goal.bytes - start.peak.arguments_bytes - start.peak.outputs_bytes, 1)


def _in_loops(space: Space, start: Candidate, goal: Goal) -> Iterator[Candidate]:
    """The program whose loops compute for themselves the big values that they read, where there are such.

    First those that are the same on every turn; then also those of which each turn reads a row, computed again of
    little, and without big sums; and then the first with the slices of big values, each computed alone.
    """
    room, known = room_bytes(start, goal), set[tuple[Change, ...]]([()])
    for also in get_args(Also):
        program, decisions = _sunk_by(space, start, room, also, step_by_step=False)
        if not space.allows(program, (*start.decisions, *decisions)):
            program, decisions = _sunk_by(space, start, room, also, step_by_step=True)
        if tuple(decisions) not in known:
            known.add(tuple(decisions))
            yield space.of(program, (*start.decisions, *decisions), start.seeds)


def _sunk_by(space: Space, start: Candidate, room: int, also: Also, step_by_step: bool) -> tuple[Program, list[Change]]:
    """What one move after the other makes of a start; step by step, none is made that must not be the last."""
    program, decisions = start.program, list[Change]()
    while len(decisions) < MOST_SINKS:
        count = len(decisions)
        with tolerate("moving a value into the loop that reads it"):
            for move in itertools.islice(_moves(space, program, room, also), MOST_SINKS if step_by_step else 1):
                made = replay(program, move)
                if not step_by_step or space.allows(made, (*start.decisions, *decisions, move)):
                    program = made
                    decisions.append(move)
                    break
        if len(decisions) == count:
            break
    return program, decisions


def _moves(space: Space, program: Program, room: int, also: Also) -> Iterator[Change]:
    """What can be done next for the loops that read big values."""
    small = max(room // 8, 1)
    held = (*space.peak(program).held, *_too_big(program, room))
    if also == "turns":
        yield from () if space.exact else enumerate_collections(program, least_bytes=small)
        yield from enumerate_rematerializations(held, small)
    yield from enumerate_sinks(held, small, of_slices=also == "slices")


def _too_big(program: Program, room: int, path: Path = ()) -> Iterator[Held]:
    """The values for which there is no room, be the peak where another one is."""
    for i, eqn in enumerate(program.eqns):
        for var in eqn.outvars:
            if value_bytes(var) > room:
                yield Held(program=program, path=path, var=var, bytes=value_bytes(var), at=i)
    for body, inner in bodies_to_rewrite(program, path):
        yield from _too_big(body, room, inner)


def _shared(space: Space, start: Candidate, goal: Goal) -> Candidate | None:
    """The program that computes on each device's share what lies along axes which they share out, if any does."""
    small = thresholds(room_bytes(start, goal))
    out = frozenset(share for share, count in space.barred_shares.items() if count >= MOST_BARRED)
    key = (start.decisions, *small, out)
    if key not in space.known_shared:
        space.known_shared[key] = _on_shares(space, start, small, out)
    return space.known_shared[key]


def _on_shares(space: Space, start: Candidate, small: Sequence[int], out: Set[Share]) -> Candidate | None:
    """A start with what can be computed on each device's share, but for what was tried in vain; None = nothing."""
    ways = [Growth(small_bytes=threshold, exact=space.exact) for threshold in small]
    program, decisions = start.program, list[Share]()
    while len(decisions) < MOST_SHARES:
        count = len(decisions)
        with tolerate("computing on each device's share"):
            offered = (s for s in enumerate_shares(program, space.spread, ways) if s not in out)
            for share in itertools.islice(offered, 1):
                program = apply_share(program, share)
                decisions.append(share)
        if len(decisions) == count:
            break
    made = space.of(program, (*start.decisions, *decisions), start.seeds) if decisions else None
    return made if made is not None and space.is_steady(made) else None
