"""What XLA:CPU's libraries allocate while a program runs, bounded from its optimised HLO.

The compiler's figure covers the buffers that it assigns. Some operations are handed to a library that allocates on
its own: YNNPACK fusions, Eigen's matrix products, sorts, Fourier transforms and top-k. None of that is in
`memory_analysis()`; an argsort of 9 million floats takes 275 MiB that nobody reports.

    scratch_bytes(compiled.as_text(), threads=2)

returns the largest such scratch of any one instruction. What products, convolutions, sorts and Fourier transforms take
is in `exla.scratch`. A fusion of YNNPACK takes every value inside it, twice for the copies that it packs; one that is a
single matrix product packs its operands and writes its result where the compiler wants it. A top-k takes one index per
element of a row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from exla.scratch import convolution_bytes, product_bytes, sort_bytes, transform_bytes

_SHAPE = re.compile(r"\b(pred|token|bf16|[suf]\d+|f8\w*|c64|c128)\[([\d,]*)\]")
_ITEM_BYTES = {"pred": 1, "token": 0, "c64": 8, "c128": 16, "bf16": 2}
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?[\]})]) ([\w\-]+)\((.*)$")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) [^\n]*\{\n((?:[^}\n][^\n]*\n|\n)*)\}", re.MULTILINE)
"""Its name and the lines between its brackets."""
_FUSED = re.compile(r" fusion\(.*?\bcalls=%?([\w.\-]+)")
_LIBRARY = re.compile(r" (?:dot|convolution|sort|fft|custom-call)\(|__ynn_fusion")

Shape = tuple[str, tuple[int, ...]]
"""Element type and dimensions."""


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line of HLO text.

    Attributes:
      opcode: what it does.
      results: shapes of its result, several for a tuple.
      operands: shapes of its operands.
      text: everything after the opening bracket of its operands.
    """

    opcode: str
    results: tuple[Shape, ...]
    operands: tuple[Shape, ...]
    text: str


def scratch_bytes(hlo: str, threads: int) -> int:
    """Bound what libraries allocate outside the compiler's buffers.

    Only computations that call a library are parsed: most of a program is none of its business.

    Args:
      hlo: optimised HLO text.
      threads: threads that the libraries may use.

    Returns:
      Bytes; 0 where the program calls no library that allocates.
    """
    computations = {m[1]: m[2] for m in _COMPUTATION.finditer(hlo)}
    fused = set(_FUSED.findall(hlo))
    largest = 0
    for name, text in computations.items():
        if name in fused or _LIBRARY.search(text) is None:
            continue
        for instruction in _instructions(text, _LIBRARY):
            bound = _BOUNDS.get(instruction.opcode)
            if bound is not None:
                largest = max(largest, bound(instruction, threads))
            elif instruction.opcode == "fusion" and "__ynn_fusion" in instruction.text:
                inside = [i for name in _calls(instruction) for i in _instructions(computations.get(name, ""))]
                largest = max(largest, _ynnpack(inside))
    return largest


def _instructions(text: str, wanted: re.Pattern[str] | None = None) -> Iterator[Instruction]:
    """The instructions of a computation; only those in whose line a pattern is found where there is one."""
    found = [match for match in map(_INSTRUCTION.match, text.splitlines()) if match is not None]
    results = {match[1]: match[2] for match in found}
    shapes = cache(lambda label: tuple(_shapes(results.get(label, ""))))
    for match in found:
        if wanted is not None and wanted.search(match[0]) is None:
            continue
        label, _, opcode, arguments = match.groups()
        operands = re.findall(r"%([\w.\-]+)", arguments.partition(")")[0])
        yield Instruction(
            opcode=opcode,
            results=shapes(label),
            operands=tuple(shape for operand in operands for shape in shapes(operand)),
            text=arguments,
        )


def _calls(instruction: Instruction) -> list[str]:
    return re.findall(r"calls=%?([\w.\-]+)", instruction.text)


def _shapes(text: str) -> Iterator[Shape]:
    for kind, dims in _SHAPE.findall(text):
        yield kind, tuple(int(d) for d in dims.split(",") if d)


def _item_bytes(kind: str) -> int:
    known = _ITEM_BYTES.get(kind)
    return max(int(re.sub(r"\D.*", "", kind[1:]) or 8) // 8, 1) if known is None else known


def _bytes(shape: Shape) -> int:
    kind, dims = shape
    return _item_bytes(kind) * math.prod(dims)


def _numbers(text: str, name: str) -> Sequence[int]:
    match = re.search(name + r"=\{([\d,]*)\}", text)
    return [int(d) for d in match[1].split(",") if d] if match else []


def _ynnpack(inside: Sequence[Instruction]) -> int:
    computed = [i for i in inside if i.opcode not in ("parameter", "bitcast")]
    if [i.opcode for i in computed] == ["dot"]:
        return sum(_bytes(shape) for shape in computed[0].operands)
    return 2 * sum(_bytes(shape) for i in inside for shape in i.results)


def _dot(instruction: Instruction, threads: int) -> int:
    if len(instruction.operands) != 2:
        return 0
    (kind, left), (_, right) = instruction.operands
    contracted = _numbers(instruction.text, "lhs_contracting_dims")
    batches = _numbers(instruction.text, "lhs_batch_dims")
    depth = math.prod(left[d] for d in contracted)
    batch = math.prod(left[d] for d in batches)
    rows = math.prod(left) // max(depth * batch, 1)
    columns = math.prod(right) // max(depth * batch, 1)
    return product_bytes(
        batch=batch, rows=rows, columns=columns, depth=depth, item_bytes=_item_bytes(kind), threads=threads
    )


def _convolution(instruction: Instruction, threads: int) -> int:
    labels = re.search(r"dim_labels=(\w+)_\w+->(\w+)", instruction.text)
    size = re.search(r"\bsize=([\dx]+)", instruction.text)
    if labels is None or size is None or len(instruction.operands) != 2 or not _is_in_order(instruction):
        return 0
    groups = re.search(r"feature_group_count=(\d+)", instruction.text)
    strides = re.search(r"\bstride=([\dx]+)", instruction.text)
    is_dense = "rhs_dilate" not in instruction.text and (strides is None or {*strides[1].split("x")} == {"1"})
    (kind, image), (made, result) = instruction.operands[0], instruction.results[0]
    channels, features = image[labels[1].index("f")], result[labels[2].index("f")]
    return convolution_bytes(
        image=(math.prod(image) // max(channels, 1), channels),
        result=(math.prod(result) // max(features, 1), features),
        window=tuple(int(d) for d in size[1].split("x")),
        groups=int(groups[1]) if groups else 1,
        is_dilated=is_dense and "lhs_dilate" in instruction.text,
        item_bytes=max(_item_bytes(kind), _item_bytes(made)),
        threads=threads,
    )


def _is_in_order(instruction: Instruction) -> bool:
    """Whether a convolution's axes lie as the library wants them; XLA compiles others to plain loops."""
    return re.search(r"dim_labels=b(\d+)f_\1io->b\1f", instruction.text) is not None


def _sort(instruction: Instruction, threads: int) -> int:
    (axis,) = _numbers(instruction.text, "dimensions") or (0,)
    return sort_bytes(length=_extent(instruction.results[0], axis), operands=len(instruction.results))


def _fft(instruction: Instruction, threads: int) -> int:
    kind, dims = max((*instruction.results, *instruction.operands), key=_bytes)
    length = max(_numbers(instruction.text, "fft_length"), default=1)
    rows = math.prod(dims) // max(length, 1)
    return transform_bytes(rows=rows, length=length, item_bytes=_item_bytes(kind), threads=threads)


def _custom_call(instruction: Instruction, threads: int) -> int:
    if 'custom_call_target="TopK"' not in instruction.text or not instruction.operands:
        return 0
    return 4 * _extent(instruction.operands[0], -1)


def _extent(shape: Shape, axis: int) -> int:
    return shape[1][axis] if shape[1] else 1


_BOUNDS: dict[str, Callable[[Instruction, int], int]] = {
    "dot": _dot,
    "convolution": _convolution,
    "sort": _sort,
    "fft": _fft,
    "custom-call": _custom_call,
}
