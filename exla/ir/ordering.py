"""In which order a compiler computes what is stored.

The compilers of GPUs and TPUs look for an order that needs little memory, for which that of the program stands here.
XLA:CPU wants much to run at once: everything runs as soon as all that it reads is there, whoever was ready first. So
the matrices under two reductions are both stored before the first is reduced:

    jnp.sum(f(x)) / jnp.sum(g(x))       f(x), g(x), then the first pass of one sum, that of the other, ...

Source: `BFScheduler` in XLA's `hlo_memory_scheduler.cc`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from exla.ir.blocks import block_of, first_axis
from exla.ir.fusing import Fused
from exla.ir.primitives import FUSIBLE, WINDOWED
from exla.ir.program import Program
from exla.ir.storing import Storing

PASSING = FUSIBLE - {"exla_unless"}
"""Primitives for which nothing is stored but their results."""


def order_of(program: Program, fusions: Fused, storing: Storing) -> Sequence[int]:
    """The positions of the equations in the order in which they are computed, all for which something is stored."""
    eqns, producers = program.eqns, program.producers
    if not storing.breadth_first:
        return range(len(eqns))
    computed = [i for i, eqn in enumerate(eqns) if is_computed(eqn, fusions)]
    pending = dict.fromkeys(computed, 0)
    readers: dict[int, list[int]] = {i: [] for i in computed}
    for i in computed:
        for source in {producers[root] for root in fusions.reads[i] if root in producers}:
            readers[source].append(i)
            pending[i] += 1
    ready = deque((i, _passes(program, i, storing)) for i in computed if not pending[i])
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
                ready.append((reader, _passes(program, reader, storing)))
    return order


def is_computed(eqn: Any, fusions: Fused) -> bool:
    """Whether something is stored for an equation, be it inside a program of its own."""
    return eqn.primitive.name not in PASSING or any(v in fusions.stored for v in eqn.outvars)


def _passes(program: Program, position: int, storing: Storing) -> int:
    """In how many passes, one after the other, an equation is computed."""
    eqn, window = program.eqns[position], storing.window
    if window is None or eqn.primitive.name not in WINDOWED:
        return 1
    shape, passes = list(eqn.invars[0].aval.shape), 1
    block = block_of(program, eqn) if storing.blocks else None
    if block is not None:
        shape[block.axis] //= block.parts
        passes += 1
    if storing.blocks and (block is not None or first_axis(program, eqn) is not None):
        more = [_windows(shape[axis], window) for axis in eqn.params["axes"] if shape[axis] > 1]
        is_sum = eqn.primitive.name == "reduce_sum"  # one axis after the other
        return passes + (sum(more) + max(len(more) - 1, 0) if is_sum else max(more, default=0))
    return passes + _windows(max((shape[axis] for axis in eqn.params["axes"]), default=1), window)


def _windows(length: int, window: int) -> int:
    """In how many passes more than one an axis is reduced by windows."""
    passes = 0
    while length > window:
        length, passes = -(-length // window), passes + 1
    return passes
