"""In which order a compiler computes what is stored.

The compilers of GPUs and TPUs look for an order that needs little memory, for which that of the program stands here.
XLA:CPU wants much to run at once: everything runs as soon as all that it reads is there, whoever was ready first. So
the matrices under two reductions are both stored before the first is reduced:

    jnp.sum(f(x)) / jnp.sum(g(x))       f(x), g(x), then the first pass of one sum, that of the other, ...

Source: `BFScheduler` in XLA's `hlo_memory_scheduler.cc`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from exla.ir.fusing import Fused
from exla.ir.primitives import WINDOWED
from exla.ir.program import Program
from exla.ir.storing import Storing


def order_of(program: Program, fusions: Fused, storing: Storing) -> Sequence[int]:
    """The positions of a program's equations in the order in which they are computed."""
    eqns = program.eqns
    if not storing.breadth_first:
        return range(len(eqns))
    pending = [0] * len(eqns)
    readers: list[list[int]] = [[] for _ in eqns]
    for i, read in enumerate(fusions.reads):
        for source in {program.producers[root] for root in read if root in program.producers}:
            readers[source].append(i)
            pending[i] += 1
    ready = deque((i, _passes(eqn, storing)) for i, eqn in enumerate(eqns) if not pending[i])
    begun = set[int]()
    order = []
    while ready:
        i, left = ready.popleft()
        if i not in begun:
            begun.add(i)
            order.append(i)
        if left > 1:
            ready.append((i, left - 1))
            continue
        for reader in readers[i]:
            pending[reader] -= 1
            if not pending[reader]:
                ready.append((reader, _passes(eqns[reader], storing)))
    return order


def _passes(eqn: Any, storing: Storing) -> int:
    """In how many passes, one after the other, an equation is computed."""
    window = storing.window
    if window is None or eqn.primitive.name not in WINDOWED:
        return 1
    longest = max((eqn.invars[0].aval.shape[axis] for axis in eqn.params["axes"]), default=1)
    return max(math.ceil(math.log(max(longest, 1), window)), 1)
