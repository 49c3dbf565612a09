"""What optimised HLO stores at its peak, for people who want to know where a compiler's figure comes from.

    stored_values(compiled.as_text())   # ["fusion f32[4000,4000]{1,0:T(8,128)}: 61.0 MiB", ...], largest first

The schedule is walked as it stands: a value lives from its instruction to its last reader, a loop adds the peak of its
body. Instructions that hand on what they are given (tuples, bitcasts, in-place updates, loops) have the memory of their
operands. It is not the compiler's buffer assignment, which only some of them hand out, and names what matters all the
same. Values in a TPU's fast memory, `S(1)`, take no memory of the device.
"""

import math
import re
from collections.abc import Iterator

from exla.units import format_bytes

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_SHAPE = re.compile(r"(pred|bf16|f8\w*|[suf]\d+|c64|c128)\[([\d,]*)\](?:\{([\d,]*)(?::((?:[A-Z]\(.*?\))*))?[^}]*\})?")
_SAME = {"tuple", "get-tuple-element", "bitcast", "while", "parameter", "constant", "optimization-barrier", "copy-done"}
_IN_PLACE = {"dynamic-update-slice", "scatter"}
_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}


def shape_bytes(shape: str) -> int:
    """Bytes of a value of a type as HLO text writes it, padded to the tiles of its layout."""
    total = 0
    for kind, dims, order, notes in _SHAPE.findall(shape):
        if "S(1)" in notes:
            continue
        bits = _BITS.get(kind) or int(re.findall(r"\d+", kind)[0])
        extents = [int(d) for d in dims.split(",") if d]
        tiled = re.match(r"T\(([\d,]+)\)", notes)
        if tiled and extents and order:
            laid = [extents[int(k)] for k in order.split(",")]
            tile = [int(t) for t in tiled[1].split(",")][::-1]
            for k, t in enumerate(tile[: len(laid)]):
                laid[k] = -(-laid[k] // t) * t
            extents = laid
        total += math.prod(extents) * bits // 8
    return total


def stored_values(text: str) -> list[str]:
    """The values that are stored where a program's memory peaks, largest first, in words."""
    computations: dict[str, list[tuple[str, str, str, str]]] = {}
    entry = name = ""
    for line in text.splitlines():
        opened = _COMPUTATION.match(line)
        if opened is not None:
            name = opened[2]
            entry = name if opened[1] else entry
            computations[name] = []
        elif (match := _INSTRUCTION.match(line)) is not None and name:
            computations[name].append((match[2], match[3], match[4], match[5]))
    held = _peak(computations, entry)
    return [f"{what}: {format_bytes(size)}" for what, size in sorted(held, key=lambda pair: -pair[1])]


def _peak(computations: dict[str, list[tuple[str, str, str, str]]], name: str) -> list[tuple[str, int]]:
    made: dict[str, tuple[str, int]] = {}
    sources: dict[str, set[str]] = {}
    last: dict[str, int] = {}
    lines = computations.get(name, [])
    for i, (label, shape, opcode, rest) in enumerate(lines):
        read = {root for operand in _operands(rest) for root in sources.get(operand, ())}
        last.update(dict.fromkeys(read, i))
        if opcode in _SAME or (opcode in _IN_PLACE and read):
            sources[label] = read
        else:
            sources[label] = {label}
            made[label] = (f"{opcode} {label} {shape[:90]}", shape_bytes(shape))
    if lines:
        last.update(dict.fromkeys(sources[lines[-1][0]], len(lines)))
    live: dict[str, int] = {}
    best, best_held = -1, list[tuple[str, int]]()
    for i, (label, _, opcode, rest) in enumerate(lines):
        if label in made:
            live[label] = made[label][1]
        inner = [pair for body in _bodies(opcode, rest) for pair in _peak(computations, body)]
        now = sum(live.values()) + sum(size for _, size in inner)
        if now > best:
            best, best_held = now, [*(made[v] for v, b in live.items() if b), *inner]
        live = {v: b for v, b in live.items() if last.get(v, i) > i}
    return best_held


def _operands(rest: str) -> list[str]:
    return re.findall(r"%([\w.\-]+)", rest.partition("), ")[0])


def _bodies(opcode: str, rest: str) -> Iterator[str]:
    if opcode in ("while", "call", "conditional"):
        for names in re.findall(r"(?:body|to_apply|branch_computations)=\{?((?:%?[\w.\-]+(?:, )?)+)\}?", rest):
            yield from (n.strip("% ") for n in names.split(",") if n.strip())
