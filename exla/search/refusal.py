"""What a refusal says: what holds the smallest peak that was found, and what stands in the way of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from exla import _compat
from exla._compat import Literal
from exla.errors import Holder, MemoryLimitError
from exla.ir.memory import Held, Peak
from exla.ir.program import Program, equations, value_bytes
from exla.ir.spread import Spread
from exla.options import Options
from exla.passes.decisions import Growth
from exla.passes.share import why_not_shared
from exla.passes.split.grow import grow
from exla.passes.steady import Steady
from exla.passes.store import BFLOAT16_ERROR, enumerate_stores
from exla.search.choice import Tried
from exla.search.space import Candidate
from exla.units import format_bytes

NOTABLE = 8
"""Times as large as what libraries may take a peak may be, for a refusal to name that."""

MOST_KINDS = 3
MOST_HOLDERS = 12
"""Kinds of values, and values, that hold a peak: so many are told."""

MOST_REASONS = 2
"""Why shared axes are not cut inside the shares: so many reasons are told."""
NO_LESS = 1.01
"""Times as large as another a peak may be that is no larger in a refusal's words."""
PLAIN = "Within one per cent that peak is what is counted for the program as it is: nothing that was tried helps."
EXHAUSTED = (
    "The search was ended before it had tried all splits of {count} equations: parts of the function, each with an "
    "exla.jit of its own, may be planned to the end."
)


def refusal(
    *,
    program: Program,
    options: Options,
    limit_bytes: int,
    smallest_bytes: int,
    asked: Sequence[Candidate],
    barred: Sequence[Tried] = (),
    peak: Peak,
    fixed_bytes: int,
    devices: int = 1,
    spread: Mapping[tuple[int, int], Spread] = MappingProxyType({}),
    is_exhausted: bool = False,
    plain_bytes: int | None = None,
    is_kept: bool = False,
) -> MemoryLimitError:
    """The error that names the smallest peak found, what holds it, and what blocks each from being split.

    Args:
      program: the program before any decision.
      options: the user's options.
      limit_bytes: the limit.
      smallest_bytes: the smallest peak that was found, of what may be used.
      asked: the candidates that were compiled and may be used.
      barred: those that must not.
      peak: the projected peak of the program before any decision, for where none was.
      fixed_bytes: what each device needs for arguments and results.
      devices: how many devices share the program; the limit is that of each.
      spread: (argument, axis) -> how they share it out.
      is_exhausted: whether the search came to its end before it had tried all that it would.
      plain_bytes: the peak of the program before any decision; None where it was not counted.
      is_kept: whether the records keep what has the smallest peak.
    """
    by_peak = sorted(asked, key=lambda p: p.peak.bytes)
    is_plain = plain_bytes is not None and plain_bytes <= NO_LESS * smallest_bytes
    peak = by_peak[0].peak if by_peak and not is_plain else peak
    is_fixed = fixed_bytes > limit_bytes
    if is_fixed:
        values = dict.fromkeys(v for v in (*program.invars, *program.outvars) if not isinstance(v, Literal))
        held = [Held(program=program, path=(), var=v, bytes=value_bytes(v)) for v in values]
        peak = replace(peak, held=tuple(sorted(held, key=lambda h: -h.bytes)))
    blocked = {v: why for p in by_peak[:1] for s in p.seeds for v, why in s.region.blocked.items()}
    reasons = _blocked_by_name(program, blocked)
    way = Growth(small_bytes=max(limit_bytes * devices // 64, 1), exact=options.numerics == "exact")
    shared = tuple(dict.fromkeys(why_not_shared(program, spread, [way])))[:MOST_REASONS] if spread else ()
    ended = (EXHAUSTED.format(count=program.equation_count),) if is_exhausted else ()
    holders: list[Holder] = []
    for item in peak.held[:MOST_HOLDERS]:
        here = item.program
        position = here.producers.get(item.var)
        _, source = here.origin(item.var)
        name = here.describe(item.var)
        if position is None:
            is_captured = not item.path and here.captures(item.var)
            whose = "a constant that the function captures" if is_captured else "an argument, which the caller holds"
            why = f"it is {whose}"
        elif not item.path and item.var in here.outvars:
            why = "it is an output, which must be whole in the end"
        else:
            why = reasons.get((name, source)) or _why_not(here, item.var, options)
        if devices > 1 and not item.path:
            name += f", of all {devices} devices together,"
        holder = Holder(name=name, bytes=item.bytes, source=source, blocked=why)
        if holder not in holders and len(set(holders)) == MOST_KINDS:
            break
        holders.append(holder)
    return MemoryLimitError(
        limit_bytes=limit_bytes,
        smallest_peak_bytes=smallest_bytes,
        holders=tuple(holders),
        compared="" if options.search == "off" or is_fixed else Steady(program=program).source,
        fixed_bytes=fixed_bytes if is_fixed else 0,
        is_kept=is_kept,
        hints=()
        if is_fixed or options.search == "off"
        else (
            *_libraries(peak, smallest_bytes * devices),
            *((PLAIN,) if is_plain else ()),
            *_unused(barred, limit_bytes),
            *_hints(program, peak),
            *(_narrower(peak, (smallest_bytes - limit_bytes) * devices) if options.numerics == "reassociate" else ()),
            *shared,
            *ended,
        ),
    )


def _libraries(peak: Peak, smallest_bytes: int) -> Iterator[str]:
    """What of the peak is in none of the values, where that is much."""
    if peak.library_bytes * NOTABLE > smallest_bytes:
        yield (
            f"{format_bytes(peak.library_bytes)} of it are projected for what XLA's libraries may take beside the "
            "values (a bound, as for a sort or a product)."
        )


def _unused(barred: Sequence[Tried], limit_bytes: int) -> Iterator[str]:
    """Which candidates would obey the limit and must not be used, and why."""
    by_peak = sorted((t.peak_bytes or 0, t.error) for t in barred if (t.peak_bytes or 0) <= limit_bytes)
    if by_peak:
        least, why = by_peak[0]
        which = "A candidate is" if len(by_peak) == 1 else f"{len(by_peak)} candidates are"
        yield f"{which} within the limit and not used. The smallest takes {format_bytes(least)}: {why}."


def _hints(program: Program, peak: Peak) -> Iterator[str]:
    """What the user could change."""
    made = (item.program.origin(item.var) for item in peak.held[:3])
    scans = [eqn for eqn in equations(program.jaxpr) if eqn.primitive.name == "scan"]
    forth, back = ({_compat.source_line(e) for e in scans if e.params["reverse"] == way} for way in (False, True))
    keeping = forth & back  # those of a gradient are where the scan is that it goes back through
    for source in dict.fromkeys(source for primitive, source in made if primitive == "scan" and source in keeping):
        where = f" at {source}" if source else ""
        yield f"jax.checkpoint around the body of the scan{where} may help: what a gradient needs is computed again."


def _narrower(peak: Peak, missing_bytes: int) -> Iterator[str]:
    """What `numerics="mixed"` could do, where that would be enough: values that wait take half."""
    waiting = [item for item in peak.held if next(enumerate_stores([item], ["bfloat16"]), None) is not None]
    total = sum(item.bytes for item in waiting)
    if total // 2 < missing_bytes or not waiting:
        return
    largest = max(waiting, key=lambda item: item.bytes)
    source = largest.program.origin(largest.var)[1]
    which = f"{largest.program.describe(largest.var)}{f' at {source}' if source else ''}"
    yield (
        f'numerics="mixed" may be enough: {format_bytes(total)} of float32 values wait for a later reader, the largest '
        f"{which}, and would wait as bfloat16, each off by at most {BFLOAT16_ERROR:.1%} of itself."
    )


def _blocked_by_name(program: Program, blocked: Mapping[Any, str]) -> dict[tuple[str, str], str]:
    found = {}
    for var, why in blocked.items():
        if var in program.producers:
            found[program.describe(var), program.origin(var)[1]] = why
    return found


def _why_not(program: Program, var: Any, options: Options) -> str:
    """What stands in the way of cutting a value, asked of its producer and its consumers."""
    if options.search == "off":
        return 'search="off" splits nothing; search="analytic" does'
    for axis in range(len(var.aval.shape)):
        region = grow(program, var, axis, Growth(small_bytes=1, exact=options.numerics == "exact"))
        if region is not None and var in region.blocked:
            return region.blocked[var]
    position = program.producers[var]
    if "origins" in program.eqns[position].params:
        reader = next((program.eqns[i] for i, _ in program.consumers.get(var, ())), None)
        source = "" if reader is None else program.origin(reader.outvars[0])[1]
        whom = f"what is computed at {source}" if source else "an equation"
        return f"a chunk loop writes it chunk by chunk for {whom}, which needs it whole"
    if program.factors(position) is None:
        return f"`{program.eqns[position].primitive.name}` has no factor rule"
    return "cutting it any finer leaves the peak where it is"
