"""Predicted seconds and bytes of a program on a machine: a rough roofline that only ranks candidates.

Each equation costs its arithmetic at a rate per kind, plus the traffic of what it stores; what is not fused starts a
kernel. A loop costs its body, for whole vectors of indices, times its trips, plus what every trip adds: starting its
kernels, reading whole operands again, and reading and writing the state that it combines into. Trips too small to be
worth dividing among the cores of a CPU are run by one of them. How fast a device is at what is its `Machine`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Set
from functools import lru_cache
from typing import Any

import numpy as np

from exla import _compat
from exla._compat import Literal, is_on_host
from exla.ir.blocks import COMPLEX, block_of
from exla.ir.code import TPU
from exla.ir.factors import Placement
from exla.ir.memory import Peak, Storing, fused_of, project
from exla.ir.primitives import BRANCHED, FUSIBLE, FUSING, REDUCERS, SCATTERS, SERIAL, TRANSCENDENTAL, VIEWS, named
from exla.ir.products import adds_nothing, copied_bytes
from exla.ir.program import Program, program_of, value_bytes
from exla.ir.split_products import Cutting, idleness
from exla.ir.weighed import Rates
from exla.passes.split.loop import Combine
from exla.targets.machine import Machine, Work

FUSED_CHEAPLY = FUSIBLE - TRANSCENDENTAL
PRODUCTS = named("dot_general")
EXPONENTIALS = named("exp exp2 expm1 logistic")
UNROLLED = 8
"""A reduction along so many indices is made of whole vectors whatever is beside it."""
WARP = 32
"""Threads of a GPU that reduce a row together."""
LEAST_DEPTH = 256
"""Contracted indices for which a GPU computes a tile of a product in the time that a tile takes at least."""
SHORTEST = 16
"""Indices up to which one thread reduces them all."""
SHARED_CACHES = 4
"""The last-level cache, shared with others, in units of what one chunk should take of it."""
IN_VECTORS = 4
"""Complex numbers that a CPU divides at once where it makes vectors of them, against one that a reduction reads."""
BRANCHES = 4
"""Divisions that a complex root, logarithm or power takes as long as."""
STORED_IN_CACHE = 16
"""Twice the last-level cache of a GPU, in the same units: values up to which it stores what it could compute again."""


def predict_s(program: Program, machine: Machine) -> float:
    """Predict the seconds one run takes."""
    return _work_s(program, machine) + _kernels(program) * machine.kernel_s


def predict_with_memory_s(program: Program, peak: Peak, machine: Machine) -> float:
    """Predict the seconds one run takes, crowding and memory that is touched first included."""
    seconds = predict_s(program, machine) * machine.crowding(peak.temporary_bytes)
    return seconds + machine.touching_s(peak.temporary_bytes - peak.outputs_bytes)


def changed_s(before: Program, after: Program, machine: Machine) -> tuple[float, float]:
    """Predict the seconds of the equations that only one of two programs has: of those gone, and of those new."""
    return _work_s(before, machine, without=after), _work_s(after, machine, without=before)


def _work_s(program: Program, machine: Machine, without: Program | None = None) -> float:
    """Seconds of a program once its kernels are started; of what another one does not have."""
    if without is not None:
        return _added_s(program, machine, {id(eqn) for eqn in without.eqns})
    key = ("work_s", machine)
    if key not in program.known:  # candidates share the loops that no split has changed
        program.known[key] = _added_s(program, machine)
    return program.known[key]


def _added_s(program: Program, machine: Machine, left_out: Set[int] = frozenset()) -> float:
    """Seconds of a program's equations added up, but for those with some identities."""
    paces = _paces(program, machine)
    return sum(
        _equation_s(program, eqn, machine) * paces.get(position, 1.0)
        for position, eqn in enumerate(program.eqns)
        if id(eqn) not in left_out
    )


def _kernels(program: Program) -> int:
    """How many kernels a program starts, those in loops and control flow apart."""
    if "kernels" not in program.known:
        program.known["kernels"] = sum(_starts_kernel(eqn) for eqn in program.eqns)
    return program.known["kernels"]


def _starts_kernel(eqn: Any) -> bool:
    name = eqn.primitive.name
    if name in FUSIBLE or name in ("exla_split", "device_put") or _compat.bodies(eqn):
        return False
    return not adds_nothing(eqn)


def projected(program: Program, machine: Machine, *, fused: bool = True, searching: bool = False) -> Peak:
    """The projected peak of a program on a machine; `fused` and `searching` as of `storing_of`."""
    return project(program, storing_of(machine, fused, searching))


@lru_cache
def storing_of(machine: Machine, fused: bool = True, searching: bool = False) -> Storing:
    """What the compiler of a machine stores of a program.

    Args:
      machine: the machine.
      fused: as of `Storing`.
      searching: whether the compiler still has a choice: a search had better not rely on what may live in memory on a
        TPU's chip to live there, and on a CPU it tries the library that packs least for products as well.
    """
    if machine.multiprocessors:
        cutting = Cutting.of(machine.multiprocessors, machine.capability)
        cached_bytes = STORED_IN_CACHE * machine.cache_bytes
        rates = Rates(flops=machine.peak_flops, bytes_per_s=machine.peak_bytes_per_s, capability=machine.capability)
        return Storing(
            fused=fused,
            window=None,
            recomputes=True,
            gathers=True,
            cached_bytes=cached_bytes,
            cutting=cutting,
            rates=rates,
        )
    if machine.on_chip_bytes:
        chip_bytes = max(machine.on_chip_bytes - machine.instruction_bytes, 0) if fused and not searching else 0
        return Storing(
            fused=fused,
            window=None,
            recomputes=True,
            joins=True,
            narrow=True,
            tiled=True,
            chip_bytes=chip_bytes,
            table_bytes=machine.on_chip_bytes,
            code=TPU if machine.counts_code else None,
        )
    return Storing(
        fused=fused,
        window=machine.longest_fused_reduction,
        blocks=machine.blocks,
        threads=machine.threads,
        packs_once=searching,
        copies=True,
        breadth_first=True,
    )


def work_of(program: Program, machine: Machine | None = None) -> Work:
    """What a program spends its predicted time on."""
    machine = machine or Machine()
    total = predict_s(program, machine)
    if total <= 0:
        return Work()
    products, exponentials, others = (
        _spent_s(program, machine, names) / total for names in (PRODUCTS, EXPONENTIALS, TRANSCENDENTAL - EXPONENTIALS)
    )
    return Work(products=products, exponentials=max(exponentials - others, 0.0))


def _spent_s(program: Program, machine: Machine, names: Collection[str]) -> float:
    """Predicted seconds of some primitives, in loops too."""
    spent = 0.0
    for eqn in program.eqns:
        if eqn.primitive.name in names:
            spent += _equation_s(program, eqn, machine)
        else:
            turns, bodies = _turns(eqn)
            spent += turns * sum(_spent_s(body, machine, names) for body in bodies)
    return spent


def _turns(eqn: Any) -> tuple[float, list[Program]]:
    """How often an equation runs programs of its own, as far as is known, and which."""
    if eqn.primitive.name == "exla_split":
        loop = eqn.params["loop"]
        return loop.size / loop.chunk, [loop.body]
    if eqn.primitive.name not in ("scan", "while", "cond", "shard_map", "exla_sealed"):
        return 0, []
    return int(eqn.params.get("length", 1)), [program_of(j) for j in _compat.inner_jaxprs(eqn) if not j.constvars]


def _elements(v: Any) -> int:
    return math.prod(getattr(v.aval, "shape", ()))


def _state_s(loop: Any, machine: Machine) -> float:
    """Seconds per trip to read and write what the loop combines its outputs in; near where it is small."""
    combined = (o for o in loop.outputs if isinstance(o, Combine))
    count_bytes = 4 * sum(math.prod(aval.shape) for o in combined for aval in (*o.avals, *o.besides))
    if count_bytes <= machine.near_bytes:
        return 2 * count_bytes / machine.near_bytes_per_s
    return _traffic_s(2 * count_bytes, machine)


def _traffic_s(count_bytes: float, machine: Machine) -> float:
    is_cached = count_bytes <= SHARED_CACHES * machine.cache_bytes
    return count_bytes / (machine.cached_bytes_per_s if is_cached else machine.bytes_per_s)


def _paces(program: Program, machine: Machine) -> dict[int, float]:
    """Position -> times as long as else that reductions take, and the equations they fuse; where it is not once.

    On a CPU, short reductions whose results have one vector as their last axis, with the cheap ones among what they
    fuse. On a GPU, reductions of columns too few for all multiprocessors.
    """
    key = ("paces", machine.lanes, machine.longest_fused_reduction, machine.multiprocessors, machine.one_vector)
    if key not in program.known:
        fused = FUSIBLE if machine.multiprocessors else FUSED_CHEAPLY
        paces = dict[tuple[int, ...] | None, float]()
        for eqn in program.eqns:
            if eqn.primitive.name in REDUCERS and (pace := _pace(eqn, machine)) != 1:
                shape = eqn.invars[0].aval.shape
                paces[shape] = max(pace, paces.get(shape, pace))
        shapes = {position: _shape_within(eqn, fused) for position, eqn in enumerate(program.eqns)}
        program.known[key] = {position: paces[shape] for position, shape in shapes.items() if shape in paces}
    return program.known[key]


def _shape_within(eqn: Any, fused: Collection[str]) -> tuple[int, ...] | None:
    """The shape of what a reduction reads, or of what an equation that it may fuse computes; None of any other."""
    name = eqn.primitive.name
    if name in REDUCERS:
        return eqn.invars[0].aval.shape
    return getattr(eqn.outvars[0].aval, "shape", ()) if name in fused else None


def _pace(eqn: Any, machine: Machine) -> float:
    """Times as long as else that a reduction takes, with what it fuses."""
    if not machine.multiprocessors:
        longest = machine.longest_fused_reduction or 0
        return machine.one_vector if _is_short_in_one_vector(eqn, machine.lanes, longest) else 1
    if not _reduces_columns(eqn):
        return 1  # each row has threads of its own
    return math.sqrt(max(machine.multiprocessors / max(_elements(eqn.outvars[0]) / WARP, 1), 1))


def _reduces_columns(eqn: Any) -> bool:
    axes = tuple(eqn.params.get("axes", ()))
    return bool(axes) and len(eqn.invars[0].aval.shape) - 1 not in axes


def _shapes_of_columns(program: Program) -> frozenset[Any]:
    """Shapes of what is reduced along columns."""
    if "columns" not in program.known:
        reducers = (eqn for eqn in program.eqns if eqn.primitive.name in REDUCERS)
        program.known["columns"] = frozenset(e.invars[0].aval.shape for e in reducers if _reduces_columns(e))
    return program.known["columns"]


def _is_short_in_one_vector(eqn: Any, lanes: int, longest: int) -> bool:
    shape = eqn.invars[0].aval.shape
    is_minor = len(shape) > 1 and tuple(eqn.params.get("axes", ())) == (len(shape) - 1,)
    return is_minor and shape[-2] == lanes and UNROLLED < shape[-1] <= longest


def _equation_s(program: Program, eqn: Any, machine: Machine) -> float:
    name = eqn.primitive.name
    if name == "exla_split":
        return _loop_s(eqn, machine)
    if name in VIEWS:
        return 0.0
    made = sum(_elements(v) for v in eqn.outvars)
    if adds_nothing(eqn):
        return made / machine.elements if name == "dot_general" else 0.0
    if name == "dot_general":
        stored = sum(value_bytes(v) for v in (*eqn.invars, *eqn.outvars) if not _is_never_stored(program, v, machine))
        packed = copied_bytes(program, eqn) * (machine.product_passes - 1)
        moved = _traffic_s(stored, machine) * (1 + packed / max(stored, 1))
        if not machine.multiprocessors:
            return _product_flops(eqn, machine.matrix_tile) / machine.flops + moved
        cutting = Cutting.of(machine.multiprocessors, machine.capability)
        flops = _product_flops(eqn, machine.matrix_tile, LEAST_DEPTH)
        return idleness(eqn, cutting) * (flops / machine.flops + moved)
    if name == "conv_general_dilated":
        least_depth = LEAST_DEPTH if machine.multiprocessors else 1
        moved = _traffic_s(sum(value_bytes(v) for v in (*eqn.invars, *eqn.outvars)), machine)
        return _convolution_flops(eqn, machine.matrix_tile, least_depth) / machine.flops + moved
    if name in BRANCHED and machine.threads and eqn.outvars[0].aval.dtype in COMPLEX:
        longest = machine.longest_fused_reduction or 0
        at_once = 1 if _is_reduced_at_once(program, eqn.outvars[0], longest) else IN_VECTORS
        return (1 if name == "div" else BRANCHES) * made / (machine.serials * at_once)
    if name in SERIAL:
        return made / machine.serials
    if name in TRANSCENDENTAL:
        return made / machine.transcendentals
    if name in FUSIBLE:
        users = {program.eqns[i].primitive.name for v in eqn.outvars for i, _ in program.consumers.get(v, ())}
        stored = 0 if users and users <= FUSING else sum(value_bytes(v) for v in eqn.outvars)
        is_logic = all(getattr(v.aval, "dtype", None) == np.bool_ for v in eqn.invars)  # masks of whole vectors
        return (0 if is_logic else made / machine.elements) + _traffic_s(stored, machine)
    read = sum(_elements(v) for v in eqn.invars)
    if name in REDUCERS:
        return max(read / _reduction_rate(program, eqn, machine), _spilled_s(made, machine))
    if name in ("top_k", "approx_top_k"):
        if machine.threads and eqn.invars[0].aval.dtype != np.float32:
            return read / machine.compares  # XLA:CPU selects from float32 alone, and sorts anything else
        rows = max(read / max(eqn.invars[0].aval.shape[-1], 1), 1)
        idle = max(machine.multiprocessors / rows, 1)  # each of a GPU's takes a row
        return read * idle / machine.selects + rows * machine.select_row_s
    if name == "sort":
        return read / machine.compares
    if name in SCATTERS:
        return sum(_elements(v) for v in eqn.invars[1:]) / machine.scatters
    if name == "device_put":
        return _moved_s(eqn, machine)
    turns, bodies = _turns(eqn)
    if bodies:
        return turns * sum(predict_s(body, machine) for body in bodies)
    if name == "gather":  # it reads what it takes of its operand
        read = made + _elements(eqn.invars[1])
    return (made + read) / machine.elements


def _is_reduced_at_once(program: Program, var: Any, longest: int) -> bool:
    """Whether a reduction of few indices reads a value, with or without others between: no array is made of it."""
    stack, seen = [var], {var}
    while stack:
        for position, _ in program.consumers.get(stack.pop(), ()):
            reader = program.eqns[position]
            if reader.primitive.name in REDUCERS:
                shape = reader.invars[0].aval.shape
                if all(shape[axis] <= longest for axis in reader.params.get("axes", ())):
                    return True
            elif reader.primitive.name in FUSIBLE and reader.outvars[0] not in seen:
                seen.add(reader.outvars[0])
                stack.append(reader.outvars[0])
    return False


def _is_never_stored(program: Program, v: Any, machine: Machine) -> bool:
    """Whether a TPU computes a product, or what is multiplied, inside the fusion that reads it."""
    if not machine.on_chip_bytes or isinstance(v, Literal) or v not in program.producers:
        return False
    return v not in program.outvars and v not in fused_of(program, storing_of(machine)).stored


def _reduction_rate(program: Program, eqn: Any, machine: Machine) -> float:
    """Elements per second: long reductions are chains that wait, or in blocks; short ones have GPUs' own rate."""
    longest, axes = machine.longest_fused_reduction, eqn.params.get("axes", ())
    reduced = math.prod(eqn.invars[0].aval.shape[axis] for axis in axes)
    if 1 < reduced < WARP:
        if reduced > SHORTEST:
            return min(machine.elements, machine.shortened_nearby)
        row_bytes = value_bytes(eqn.invars[0]) / max(eqn.invars[0].aval.shape[0], 1)
        is_near = row_bytes <= machine.near_row_bytes or eqn.outvars[0].aval.shape in _shapes_of_columns(program)
        return min(machine.elements, machine.shortened_nearby if is_near else machine.shortened)
    if longest is None or reduced <= longest:
        return machine.elements
    return machine.blocked if machine.blocks and block_of(program, eqn) is not None else machine.chained


def _spilled_s(elements: int, machine: Machine) -> float:
    """Seconds that a reduction of so many results takes at least: a TPU's compiler accumulates only so much at once."""
    count_bytes = 4 * elements
    is_near = machine.accumulator_bytes is None or count_bytes <= machine.accumulator_bytes
    return 0.0 if is_near else count_bytes / machine.spilled_bytes_per_s


def _moved_s(eqn: Any, machine: Machine) -> float:
    """Seconds to move values between the device's memory and the host's; placing them where they are takes none."""
    pairs = zip(eqn.invars, eqn.outvars, strict=True)
    moved = sum(max(value_bytes(v), value_bytes(r)) for v, r in pairs if is_on_host(v.aval) != is_on_host(r.aval))
    return moved / machine.host_bytes_per_s + machine.kernel_s if moved and machine.host_bytes_per_s else 0.0


def _product_flops(eqn: Any, tile: int, least_depth: int = 1) -> float:
    """What a matrix unit computes for a product: whole tiles of its rows and columns, at least so long where one
    is full."""
    (contracted, _), (batched, _) = eqn.params["dimension_numbers"]
    left, right = (v.aval.shape for v in eqn.invars)
    depth = math.prod(left[k] for k in contracted)
    batch = math.prod(left[k] for k in batched)
    sides = [math.prod(shape) // max(depth * batch, 1) for shape in (left, right)]
    return _tiled_flops(batch, sides, depth, tile, least_depth)


def _convolution_flops(eqn: Any, tile: int, least_depth: int = 1) -> float:
    """The same of a convolution: a product of what its windows see, a row for each place, with its kernel."""
    groups = eqn.params["feature_group_count"] * eqn.params["batch_group_count"]
    kernel, result = eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    outputs = max(kernel[eqn.params["dimension_numbers"].rhs_spec[0]], 1)
    sides = [math.prod(result) // outputs, outputs // groups]
    return _tiled_flops(groups, sides, math.prod(kernel) // outputs, tile, least_depth)


def _tiled_flops(batch: int, sides: Sequence[int], depth: int, tile: int, least_depth: int) -> float:
    if min(sides) >= tile:
        depth = max(depth, least_depth)
    return 2 * batch * depth * math.prod(-(-side // tile) * tile for side in sides)


def _merge_s(loop: Any, machine: Machine) -> float:
    """Seconds per trip to merge what was selected so far with what this chunk selected."""
    merged = [o for o in loop.outputs if isinstance(o, Combine) and o.combiner == "top_k"]
    elements = sum(math.prod(o.avals[0].shape) for o in merged)
    rows = sum(math.prod(o.avals[0].shape[:-1]) for o in merged)
    return 2 * elements / machine.selects + rows * machine.select_row_s


def _loop_s(eqn: Any, machine: Machine) -> float:
    loop = eqn.params["loop"]
    trips, kernels = loop.size / loop.chunk, _kernels(loop.body)
    strided = sum(
        value_bytes(v) / trips
        for v, p in zip(eqn.invars, loop.operands, strict=True)
        if isinstance(p, Placement) and p.axis > 0
    )
    whole = -(-loop.chunk // machine.lanes) * machine.lanes if loop.chunk > machine.lanes else loop.chunk
    work = whole / loop.chunk * _work_s(loop.body, machine) + _merge_s(loop, machine)
    work += _state_s(loop, machine) + _traffic_s(strided, machine)
    return trips * min(
        work + kernels * machine.kernel_s + machine.trip_s,
        work * machine.one_core + kernels * machine.one_core_kernel_s + machine.one_core_trip_s,
    )
