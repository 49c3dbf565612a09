"""What is used instead of a program that obeys as it is: what is predicted to be far faster, or is found to be faster.

Wasteful algebra and big intermediates cost time as well as memory. A plain program that is predicted to run for long is
held against what the beam makes of it, and of its rewrites, under a limit that leaves room for a part of its
temporaries alone. Where others can be weighed against it by how long they run (`exla.search.weigh`), that decides. Else
only what is predicted to be so much faster that it was so in every campaign (`Machine.sure_gain`) is used.

What a prediction cannot vouch for is left out: work inside a loop that has no rate of its own, such as a library's, or
turns that nobody counts; and products in another order, which may overflow where the program's own do not. What is not
predicted to be faster by so much is named in the plan, for whoever may let it run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from exla.ir.memory import programs_of
from exla.ir.primitives import FUSIBLE, REDUCERS, SCATTERS, STANDING, VIEWS, named
from exla.ir.program import Program
from exla.search.attempt import Attempt
from exla.search.beam import speed
from exla.search.choice import Choice
from exla.search.cost import predict_s
from exla.search.space import Candidate, Space
from exla.search.strategy import starts
from exla.search.weigh import by_time, can_weigh
from exla.strict import tolerate
from exla.targets.machine import Machine

LEAST_S = 0.01
"""Predicted time of a plain program below which planning is not worth the call: it takes a tenth of a second."""
WORTH_WEIGHING = 1.25
"""Predicted gain from which on it is worth the time to compile another program and to weigh it."""
STORED = 0.25
"""Share of the plain program's projected temporaries that its compiler counts at least, if the time to store them is to
be believed: where libraries reduce what is never stored, as for a variance, chunks gain nothing."""
LEFT = 0.5
"""Share of the plain program's temporaries that is left to what is to be faster."""
LEAST_TURN_S = 5e-5
"""Predicted time of a turn of a user's loop in a chunk, below which it takes several times as long as predicted."""
MOST_EQUATIONS = 250
"""Of a program that is looked at: one that obeys is not to wait for seconds."""
MOST_TRIED = 15_000
"""As `Space.most_tried`, likewise."""
MOST_SPLITS = 2
"""One after another, likewise."""
LOOPS = named("exla_split scan")
"""Whose turns are known; what they compute is looked at by itself."""
PRICED = FUSIBLE | VIEWS | REDUCERS | SCATTERS | STANDING | LOOPS | named("dot_general top_k sort gather")
"""Primitives whose time in a loop is predicted by a rate of their own."""


def faster(attempt: Attempt, plain: Choice, make_space: Callable[[], Space]) -> Choice:
    """What is used of a plain program that obeys, and of what is predicted to be faster.

    Args:
      attempt: that compiled it.
      plain: the program as `jax.jit` compiles it.
      make_space: makes the space of what can be done to it.

    Returns:
      The plain program, or what takes less time and obeys too.
    """
    options, call = attempt.options, attempt.call
    if options.memory_limit is None or options.numerics == "exact" or call.inline or call.devices > 1:
        return plain
    with tolerate("looking for what is faster"):
        return _faster(attempt, plain, make_space)
    return plain


def _faster(attempt: Attempt, plain: Choice, make_space: Callable[[], Space]) -> Choice:
    if len(attempt.call.program.eqns) > MOST_EQUATIONS:
        return plain
    space = replace(make_space(), reorders=False, most_tried=MOST_TRIED)
    root = space.root
    if root.seconds < LEAST_S:
        return plain
    weighs = can_weigh(attempt, plain)
    least_gain = WORTH_WEIGHING if weighs else space.machine.sure_gain
    plain_s = root.seconds if weighs else surely_s(plain.compiled_bytes.temporaries, space)
    if least_gain == math.inf or plain_s < LEAST_S:
        return plain
    candidate = fastest(space, plain_s / min(least_gain, WORTH_WEIGHING))
    attempt.declined, attempt.sources = space.declined, space.sources
    kept = plain
    if candidate is not None and not attempt.wrong.has(candidate.decisions):
        why = "" if weighs else f"predicted to take {candidate.seconds / plain_s:.2f} of its time"
        if candidate.seconds <= plain_s / least_gain:
            kept = _kept(attempt, plain, attempt.candidate(candidate), why)
        else:
            kept = replace(plain, hint=f'another is {why}, which is not sure; verify="run" times both')
    attempt.chosen(kept)
    return replace(kept, tried=tuple(attempt.tried))


def _kept(attempt: Attempt, plain: Choice, other: Choice | None, why: str) -> Choice:
    """What is kept of the plain program and another, if that obeys; "" = how long they run says why."""
    if other is None:
        return plain
    if why:
        return replace(other, instead=why)
    kept, settled = by_time(attempt, (plain, other)) or (plain, "")
    return plain if kept is plain else replace(other, instead=settled)


def fastest(space: Space, most_s: float) -> Candidate | None:
    """What is predicted to take the least time, with no more temporaries than a part of what the program has as it is.

    Args:
      space: what can be done; the program as it is obeys.
      most_s: seconds that it may take.

    Returns:
      A candidate whose predicted time can be believed; None where there is none.
    """
    goal, found = replace(space.goal, bytes=most_bytes(space.root)), list[Candidate]()
    for start in starts(space):
        if predict_s(start.program, _at_best(space.machine)) <= most_s:
            found += [start] if start.decisions else []
            found += [c for c in space.ranked(start, goal, MOST_SPLITS) if len(c.splits) <= MOST_SPLITS]
    return believed(filter(space.is_met, found), most_s, space.machine)


def most_bytes(root: Candidate) -> int:
    """The peak that may be left of a program's, so that chunks are worth their time."""
    return root.peak.bytes - int((1 - LEFT) * root.peak.temporary_bytes)


def believed(candidates: Iterable[Candidate], most_s: float, machine: Machine) -> Candidate | None:
    """The fastest by prediction of those whose prediction can be believed; None where none takes so few seconds."""
    priced = (c for c in candidates if c.seconds <= most_s and _is_priced(c.program, machine))
    return min(priced, key=speed, default=None)


def surely_s(temporaries: int, space: Space) -> float:
    """What a plain program takes at least; what it stores is priced where its compiler counts that it is stored.

    Args:
      temporaries: bytes that the compiler counts.
      space: of the program.
    """
    is_stored = temporaries >= STORED * space.root.peak.temporary_bytes
    machine = space.machine if is_stored else _at_best(space.machine)
    return predict_s(space.root.program, machine) + machine.touching_s(temporaries)


def _at_best(machine: Machine) -> Machine:
    """A machine on which nothing takes longer than in the best of chunks: all data are near, all sums short."""
    return replace(
        machine,
        chained=machine.elements,
        blocked=machine.elements,
        bytes_per_s=math.inf,
        cached_bytes_per_s=math.inf,
        spilled_bytes_per_s=math.inf,
    )


def _is_priced(program: Program, machine: Machine, in_loop: bool = False) -> bool:
    """Whether all that chunk loops compute has a rate, and no turn of a user's loop in them is mostly its overhead."""
    for eqn in program.eqns:
        name, bodies = eqn.primitive.name, programs_of(eqn)
        if in_loop and name not in PRICED:
            return False
        if in_loop and name == "scan" and sum(predict_s(body, machine) for body in bodies) < LEAST_TURN_S:
            return False
        if not all(_is_priced(body, machine, in_loop or name == "exla_split") for body in bodies):
            return False
    return True
