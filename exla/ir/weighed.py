"""Whether XLA:GPU computes a value in each fusion that reads it, or stores it: by its own estimate of both.

    distances = jnp.sqrt(jnp.sum((x[:, None] - y) ** 2, axis=-1))
    jnp.sum(jnp.exp(-distances), axis=1), jnp.sum(distances, axis=1)

Stored, the distances are computed once, written once and read twice; else both sums compute the root again. An H100
does 20 operations while its memory moves a byte, and by its compiler's table a root is 75 of them and an exponential
79: these distances are stored, and so they are if three sums read them, but not if two sums read nothing else.

Source: `PriorityFusion` and `GpuPerformanceModel` in XLA, and the clock cycles in its `hlo_op_profiles_data.h`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from exla.ir.primitives import FUSING, REDUCERS, VIEWS, named
from exla.ir.program import Program, value_bytes

NEWEST, OLDER = 9.0, 8.6
"""Compute capabilities whose table is that of newer cards, and of all others that have none."""
CYCLES: dict[tuple[float, int], dict[str, int]] = {
    (9.0, 4): {
        **{"add": 7, "add_any": 7, "sub": 7, "reduce_sum": 7, "mul": 3, "div": 19, "sqrt": 75, "rsqrt": 75},
        **{"exp": 79, "exp2": 82, "expm1": 190, "log": 166, "log1p": 229, "logistic": 108, "tanh": 467, "pow": 510},
        **{"cbrt": 178, "sin": 958, "cos": 978, "tan": 1955, "atan2": 431},
    },
    (9.0, 8): {
        **{"add": 15, "add_any": 15, "sub": 15, "reduce_sum": 15, "mul": 15, "div": 526, "sqrt": 332, "rsqrt": 277},
        **{"exp": 376, "exp2": 391, "expm1": 712, "log": 815, "log1p": 1259, "logistic": 917, "tanh": 431},
        **{"pow": 2205, "cbrt": 586, "sin": 554, "cos": 558, "tan": 1638, "atan2": 930},
    },
    (8.6, 4): {
        **{"exp": 86, "exp2": 89, "expm1": 381, "log": 244, "log1p": 262, "logistic": 176, "sqrt": 75, "rsqrt": 75},
        **{"tanh": 190, "pow": 925, "cbrt": 867, "sin": 662, "cos": 662, "tan": 1327, "atan2": 486},
    },
    (8.6, 8): {
        **{"add": 97, "add_any": 97, "sub": 97, "reduce_sum": 97, "mul": 97, "div": 2016, "sqrt": 986, "rsqrt": 698},
        **{"exp": 1652, "exp2": 1749, "expm1": 1900, "log": 608, "log1p": 2073, "logistic": 2412, "tanh": 1609},
        **{"pow": 5511, "cbrt": 6339, "sin": 1789, "cos": 1717, "tan": 5522, "atan2": 3747},
    },
    (8.0, 4): {"log": 259, "tanh": 504, "pow": 1221},
    (8.0, 8): {"expm1": 572, "log": 699, "log1p": 1223, "rsqrt": 329, "cbrt": 1638},
}
"""Compute capability, bytes of a number -> clock cycles that the compiler takes an element of a primitive for."""
OTHERS = 3
"""Cycles of any other primitive."""
FREE = VIEWS | named("broadcast_in_dim iota transpose rev slice pad concatenate")
EXTREME_OF = {"argmin": "least", "reduce_min": "least", "argmax": "greatest", "reduce_max": "greatest"}
OVERLAP = 0.95
"""Share of the shorter one of arithmetic and traffic that the longer one hides."""
LAUNCH_S = 1e-6
"""Seconds to start a kernel."""
MOST_BEHIND, MOST_BEYOND = 64, 1024
"""Equations of a value that are counted, and of what is computed of it, beyond which nothing is weighed."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a GPU's compiler holds against each other.

    Attributes:
      flops: operations in a second.
      bytes_per_s: memory traffic.
      capability: compute capability.
    """

    flops: float
    bytes_per_s: float
    capability: float

    def takes_s(self, operations: float, count_bytes: float) -> float:
        """Seconds of a kernel."""
        arithmetic, traffic = operations / self.flops, count_bytes / self.bytes_per_s
        return LAUNCH_S + arithmetic + traffic - OVERLAP * min(arithmetic, traffic)


def is_computed_again(program: Program, position: int, homes: Collection[int], within: Set[Any], rates: Rates) -> bool:
    """Whether the fusions that read a value compute it, each for itself.

    Args:
      program: the program.
      position: of the equation that makes the value.
      homes: positions of what is stored at the end of each of these fusions.
      within: the values after this one that are not stored.
      rates: of the card.
    """
    count_bytes = sum(value_bytes(v) for v in program.eqns[position].outvars)
    beyond = _beyond(program, position, _apart(program, homes), within)
    if beyond is None:
        return True
    operations = partial(_operations, rates=rates)
    own = sum(map(operations, _behind(program, position)))
    others = [sum(map(operations, found)) for found in beyond]
    stored = rates.takes_s(own, count_bytes) + sum(rates.takes_s(n, count_bytes) for n in others)
    return sum(rates.takes_s(own + n, 0) for n in others) <= stored


def _apart(program: Program, homes: Collection[int]) -> list[int]:
    """The fusions of which none is another: an extreme and where it is are one reduction, with two results."""
    found = dict[Any, int]()
    for home in homes:
        eqn = program.eqns[home]
        name = eqn.primitive.name
        extreme = EXTREME_OF.get(name)
        found.setdefault(home if extreme is None else (extreme, eqn.invars[0], tuple(eqn.params["axes"])), home)
    return list(found.values())


def _operations(eqn: Any, rates: Rates) -> float:
    """What an equation computes, in cycles of all elements."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    if name in FREE:
        return 0
    known = min(rates.capability, NEWEST)
    width = 8 if out.dtype == np.float64 else 4
    table = CYCLES.get((known, width), CYCLES[OLDER, width])
    count = math.prod(out.shape)
    if name in REDUCERS:
        count = math.prod(eqn.invars[0].aval.shape) - count
    return table.get(name, OTHERS) * count


def _behind(program: Program, position: int) -> Iterator[Any]:
    """The equation of a value, and those of what is computed on the way to it."""
    seen, left = {position}, [position]
    while left and len(seen) < MOST_BEHIND:
        at = left.pop()
        yield program.eqns[at]
        before = {program.producers[v] for v in program.operands[at] if v in program.producers} - seen
        found = [i for i in before if program.eqns[i].primitive.name in FUSING]
        seen.update(found)
        left += found


def _beyond(program: Program, position: int, homes: Sequence[int], within: Set[Any]) -> list[list[Any]] | None:
    """For each fusion that reads a value, the equations of what it computes from that; None where they are many."""

    def readers(at: int) -> set[int]:
        return {i for v in program.eqns[at].outvars for i, _ in program.consumers.get(v, ())}

    reached, left = set[int](), readers(position)
    inside = set[int]()
    while left:
        at = left.pop()
        reached.add(at)
        if len(reached) > MOST_BEYOND:
            return None
        if at not in homes and any(v in within for v in program.eqns[at].outvars):
            inside.add(at)
            left |= readers(at) - reached
    ends: dict[int, set[int]] = {}
    for at in sorted(reached, reverse=True):
        ends[at] = set().union(*(ends[i] for i in readers(at))) if at in inside else {at}
    return [[program.eqns[at] for at, found in ends.items() if home in found] for home in homes]
