"""The 140 numbers that describe one HLO instruction, in the order of TpuGraphs.

GROUPS is the table: a group of features has a name and a meaning for each, and a function that reads their values from
the instruction. NODE_FEATURES is all of them, name -> meaning. The values are plain integers:

    node_row(Node(instruction=add, is_root=True))[:2]        # [1, 0]

What a list is padded with, and what stands where an instruction has no such field, was found from the files that
TpuGraphs published; `features.py` says what, and how.

Source: the feature table of github.com/google-research-datasets/tpu_graphs (Phothilimthana et al., "TpuGraphs", 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from exla.cost_model.hlo_pb2 import HloInstructionProto, PrimitiveType

AXES = 6
"""How many axes of a shape, window or layout are features; sums and products are over all axes."""
SHORT_AXES = 2
"""How many axes of slices and pads are."""
SPATIAL_AXES = 4

ELEMENT_TYPES = (
    *("invalid_type", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "bf16"),
    *("c64", "c128", "tuple", "opaque_type", "token"),
)
"""The element types that have a feature, in order."""

STAND_INS = {
    **dict.fromkeys(("s1", "s2", "s4"), "s8"),
    **dict.fromkeys(("u1", "u2", "u4"), "u8"),
    **dict.fromkeys(("f8e5m2", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "f8e3m4"), "f16"),
    **dict.fromkeys(("f4e2m1fn", "f8e8m0fnu"), "f16"),
    "buffer": "opaque_type",
}
"""Element type that is newer than TpuGraphs -> the narrowest of its kind that has a feature."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """What the features of one node are read from.

    Attributes:
      instruction: the proto.
      is_root: whether it is the root of its computation.
    """

    instruction: HloInstructionProto
    is_root: bool


@dataclass(frozen=True, kw_only=True)
class Group:
    """Features that are read together.

    Attributes:
      meanings: name -> meaning, in order.
      read: a node -> as many integers.
    """

    meanings: Mapping[str, str]
    read: Callable[[Node], Sequence[int]]


def element_type(instruction: HloInstructionProto) -> str:
    """XLA's name of an instruction's element type, which may be one that has no feature."""
    number = instruction.shape.element_type
    if number == PrimitiveType.PRIMITIVE_TYPE_INVALID:
        return "invalid_type"
    return PrimitiveType.Name(number).lower() if number in PrimitiveType.values() else f"element type {number}"


def element_type_feature(name: str) -> str:
    """The element type whose feature one has: its own, that of its stand-in, or the invalid one."""
    name = STAND_INS.get(name, name)
    return name if name in ELEMENT_TYPES else "invalid_type"


def node_row(node: Node) -> list[int]:
    """The 140 features of a node."""
    return [value for group in GROUPS for value in group.read(node)]


def _padded(values: Iterable[int], count: int) -> list[int]:
    first = list(values)[:count]
    return first + [0] * (count - len(first))


def _totals(values: Sequence[int]) -> list[int]:
    """Sum and product, which are 0 and 1 of nothing; both within 64 bits."""
    return [max(-(2**63), min(total, 2**63 - 1)) for total in (sum(values), math.prod(values))]


def _spread(values: Sequence[int], count: int) -> list[int]:
    return _padded(values, count) + _totals(values)


def _one(name: str, meaning: str, read: Callable[[Node], int]) -> Group:
    return Group(meanings={name: meaning}, read=lambda node: [int(read(node))])


def _numbered(name: str, meaning: str, count: int) -> dict[str, str]:
    return {f"{name}_{axis}": f"{meaning} {axis}" for axis in range(count)}


def _list(name: str, meaning: str, count: int, read: Callable[[HloInstructionProto], Iterable[int]]) -> Group:
    return Group(meanings=_numbered(name, meaning, count), read=lambda node: _padded(read(node.instruction), count))


def _totalled(name: str, meaning: str, count: int, read: Callable[[HloInstructionProto], Iterable[int]]) -> Group:
    """A list with its sum and its product."""
    totals = {f"{name}_{total}": f"{total} over all axes of: {meaning}" for total in ("sum", "product")}
    return Group(
        meanings={**_numbered(name, f"{meaning}, axis", count), **totals},
        read=lambda node: _spread(list(read(node.instruction)), count),
    )


def _read_element_type(node: Node) -> list[int]:
    name = element_type_feature(element_type(node.instruction))
    return [int(name == one) for one in ELEMENT_TYPES]


def _read_dimensions(instruction: HloInstructionProto) -> list[int]:
    return [
        max(size, 0) for size in instruction.shape.dimensions
    ]  # an unbounded axis has the least integer as its size


def _tuple_size(node: Node) -> int:
    shape = node.instruction.shape
    return len(shape.tuple_shapes) if shape.element_type == PrimitiveType.TUPLE else 0


def _window(field: str, meaning: str) -> Group:
    def read(instruction: HloInstructionProto) -> Iterable[int]:
        return [getattr(axis, field) for axis in instruction.window.dimensions]

    return _totalled(f"window_{field}", f"window's {meaning}", AXES, read)


def _read_reversal(node: Node) -> list[int]:
    flags = [int(axis.window_reversal) for axis in node.instruction.window.dimensions]
    return [*_padded(flags, AXES), sum(flags), len(flags) - sum(flags)]


def _convolution(field: str, meaning: str) -> Group:
    name = f"convolution_dim_numbers_{field}_dim"
    return _one(
        name, meaning, lambda node: getattr(node.instruction.convolution_dimension_numbers, f"{field}_dimension")
    )


def _spatial(operand: str) -> Group:
    def read(instruction: HloInstructionProto) -> Iterable[int]:
        return getattr(instruction.convolution_dimension_numbers, f"{operand}_spatial_dimensions")

    name = f"convolution_dim_numbers_{operand}_spatial_dims"
    return _list(name, f"which axis of the {operand} is spatial axis", SPATIAL_AXES, read)


def _slice(field: str) -> Group:
    def read(instruction: HloInstructionProto) -> Iterable[int]:
        return [getattr(axis, field) for axis in instruction.slice_dimensions]

    return _totalled(f"slice_dims_{field}", f"{field} of a slice", SHORT_AXES, read)


def _padding(side: str) -> Group:
    def read(instruction: HloInstructionProto) -> Iterable[int]:
        return [getattr(axis, f"edge_padding_{side}") for axis in instruction.padding_config.dimensions]

    return _totalled(f"padding_config_edge_padding_{side}", f"what a pad adds at the {side} end", SHORT_AXES, read)


GROUPS = (
    _one("is_root", "1 of the root of its computation", lambda node: node.is_root),
    _one("element_size_in_bits", "always 0: a field that XLA gave up", lambda node: 0),
    Group(
        meanings={f"shape_element_type_is_{name}": f"1 where the element type is {name}" for name in ELEMENT_TYPES},
        read=_read_element_type,
    ),
    _totalled("shape_dimensions", "size", AXES, _read_dimensions),
    _one("shape_tuple_shapes_size", "how many values a tuple holds; 0 of what is no tuple", _tuple_size),
    _one("parameter_number", "k of the k-th parameter, from 0", lambda node: node.instruction.parameter_number),
    _list("dimensions", "axes that a reduce, broadcast, ... names: number", AXES, lambda i: i.dimensions),
    _window("size", "size"),
    _window("stride", "stride"),
    _window("padding_low", "padding at the low end"),
    _window("padding_high", "padding at the high end"),
    _window("window_dilation", "dilation"),
    _window("base_dilation", "dilation of what it slides over"),
    Group(
        meanings={
            **_numbered("window_window_reversal", "1 where the window is reversed, axis", AXES),
            "window_window_reversal_true_count": "how many axes of the window are reversed",
            "window_window_reversal_false_count": "how many are not",
        },
        read=_read_reversal,
    ),
    _convolution("input_batch", "which axis of a convolution's input is the batch"),
    _convolution("input_feature", "which axis of its input is the features"),
    _spatial("input"),
    _convolution("kernel_input_feature", "which axis of its kernel is the input's features"),
    _convolution("kernel_output_feature", "which axis of its kernel is the output's features"),
    _spatial("kernel"),
    _convolution("output_batch", "which axis of its output is the batch"),
    _convolution("output_feature", "which axis of its output is the features"),
    _one("feature_group_count", "groups of features", lambda node: node.instruction.feature_group_count),
    _one("batch_group_count", "groups of the batch", lambda node: node.instruction.batch_group_count),
    _slice("start"),
    _slice("stride"),
    _slice("limit"),
    _totalled("dynamic_slice_sizes", "size of a dynamic slice", SHORT_AXES, lambda i: i.dynamic_slice_sizes),
    _padding("low"),
    _padding("high"),
    _one("is_stable", "1 of a sort that is stable", lambda node: node.instruction.is_stable),
    _list(
        "layout_minor_to_major", "axes from fastest to slowest: number", AXES, lambda i: i.shape.layout.minor_to_major
    ),
)

NODE_FEATURES = {name: meaning for group in GROUPS for name, meaning in group.meanings.items()}
"""Name -> meaning of each feature, in order."""
