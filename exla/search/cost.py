"""Predicted seconds of a program: a rough roofline that only ranks candidates.

Each equation costs its arithmetic at a rate per kind, plus the traffic of what it stores; a loop costs its body
times its trips, plus what every trip adds: starting its kernels, reading whole operands again, and reading and
writing the state that it combines into. Rates are for one CPU core pair and were read off micro-benchmarks; a
factor of two in any of them changes no choice that matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from exla import _compat
from exla.ir.factors import Placement
from exla.ir.primitives import FUSIBLE, REDUCERS, SCATTERS, TRANSCENDENTAL, VIEWS
from exla.ir.program import Program, value_bytes
from exla.passes.split.loop import Combine

SHARED_CACHES = 4
"""The last-level cache, shared with others, in units of what one chunk should take of it."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a machine does in a second.

    Attributes:
      flops: multiply-adds of a matrix product, times two.
      elements: cheap element-wise operations.
      transcendentals: exp, log, division and their kin.
      compares: element moves of a sort.
      scatters: elements of indices and updates that a scatter writes.
      selects: elements that a top-k looks at.
      select_row_s: time to start one row of a top-k.
      bytes_per_s: memory traffic beyond the caches.
      cached_bytes_per_s: traffic within them.
      first_touch_bytes_per_s: how fast the system hands out memory that was not in use before.
      cache_bytes: what the caches hold.
      kernel_s: time to start one kernel.
    """

    flops: float = 1e11
    elements: float = 1.2e10
    transcendentals: float = 4e9
    compares: float = 1e8
    scatters: float = 3e8
    selects: float = 1e9
    select_row_s: float = 1e-6
    bytes_per_s: float = 8e9
    cached_bytes_per_s: float = 4e10
    first_touch_bytes_per_s: float = 3e9
    cache_bytes: int = 8 << 20
    kernel_s: float = 3e-5


def predict_s(program: Program, rates: Rates) -> float:
    """Predict the seconds one run takes."""
    return sum(_equation_s(program, eqn, rates) for eqn in program.eqns)


def product_share(program: Program, rates: Rates | None = None) -> float:
    """The share of a program's predicted time that matrix products take, between 0 and 1."""
    rates = rates or Rates()
    total = predict_s(program, rates)
    return _products_s(program, rates) / total if total > 0 else 0.0


def _products_s(program: Program, rates: Rates) -> float:
    spent = 0.0
    for eqn in program.eqns:
        if eqn.primitive.name == "exla_split":
            loop = eqn.params["loop"]
            spent += loop.size / loop.chunk * _products_s(loop.body, rates)
        elif eqn.primitive.name == "dot_general":
            spent += _equation_s(program, eqn, rates)
    return spent


def _elements(v: Any) -> int:
    return math.prod(getattr(v.aval, "shape", ()))


def _state_elements(loop: Any) -> int:
    """Elements that a loop reads and writes on every trip to combine its outputs."""
    combined = (o for o in loop.outputs if isinstance(o, Combine))
    return sum(math.prod(aval.shape) for output in combined for aval in output.avals)


def _traffic_s(count_bytes: float, rates: Rates) -> float:
    is_cached = count_bytes <= SHARED_CACHES * rates.cache_bytes
    return count_bytes / (rates.cached_bytes_per_s if is_cached else rates.bytes_per_s)


def _equation_s(program: Program, eqn: Any, rates: Rates) -> float:
    name = eqn.primitive.name
    if name == "exla_split":
        return _loop_s(eqn, rates)
    if name in VIEWS:
        return 0.0
    made = sum(_elements(v) for v in eqn.outvars)
    read = sum(_elements(v) for v in eqn.invars)
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        depth = math.prod(eqn.invars[0].aval.shape[k] for k in contracted)
        stored = sum(value_bytes(v) for v in (*eqn.invars, *eqn.outvars))
        return 2 * made * depth / rates.flops + _traffic_s(stored, rates) + rates.kernel_s
    if name in TRANSCENDENTAL and not (name == "div" and isinstance(eqn.invars[1], _compat.Literal)):
        return made / rates.transcendentals
    if name in FUSIBLE:
        users = {program.eqns[i].primitive.name for v in eqn.outvars for i, _ in program.consumers.get(v, ())}
        stored = 0 if users and users <= FUSIBLE | REDUCERS else sum(value_bytes(v) for v in eqn.outvars)
        return made / rates.elements + _traffic_s(stored, rates)
    if name in REDUCERS:
        return read / rates.elements + rates.kernel_s
    if name in ("top_k", "approx_top_k"):
        rows = read / max(eqn.invars[0].aval.shape[-1], 1)
        return read / rates.selects + rows * rates.select_row_s + rates.kernel_s
    if name == "sort":
        return read / rates.compares + rates.kernel_s
    if name in SCATTERS:
        return sum(_elements(v) for v in eqn.invars[1:]) / rates.scatters + rates.kernel_s
    bodies = [predict_s(Program(jaxpr=j), rates) for j in _compat.inner_jaxprs(eqn) if not j.constvars]
    if bodies and name in ("scan", "while", "cond"):
        return int(eqn.params.get("length", 1)) * sum(bodies)
    return (made + read) / rates.elements + rates.kernel_s


def _merge_s(loop: Any, rates: Rates) -> float:
    """Seconds per trip to merge what was selected so far with what this chunk selected."""
    merged = [o for o in loop.outputs if isinstance(o, Combine) and o.combiner == "top_k"]
    elements = sum(math.prod(o.avals[0].shape) for o in merged)
    rows = sum(math.prod(o.avals[0].shape[:-1]) for o in merged)
    return 2 * elements / rates.selects + rows * rates.select_row_s


def _loop_s(eqn: Any, rates: Rates) -> float:
    loop = eqn.params["loop"]
    trips = loop.size / loop.chunk
    kernels = sum(e.primitive.name not in FUSIBLE for e in loop.body.eqns) + 2
    strided = sum(
        value_bytes(v) / trips
        for v, p in zip(eqn.invars, loop.operands, strict=True)
        if isinstance(p, Placement) and p.axis > 0
    )
    per_trip = predict_s(loop.body, rates) + kernels * rates.kernel_s
    per_trip += _merge_s(loop, rates) + _traffic_s(2 * 4 * _state_elements(loop), rates) + _traffic_s(strided, rates)
    return trips * per_trip
