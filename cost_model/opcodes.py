"""The opcode ids of TpuGraphs: bytes, from 1.

    opcode_id("add")        # 2
    opcode_id("erf")        # 0: newer than the table

XLA names its opcodes in the HLO; TpuGraphs numbered those of its day. The numbers are part of the data set's format, so
that an opcode that XLA has added since is not given one: it is 0, and whoever asks is told its name.

Source: the opcode table of github.com/google-research-datasets/tpu_graphs.
"""

from __future__ import annotations

UNKNOWN = 0
"""The id of an opcode that the table does not have."""

OPCODES = (
    *("abs", "add", "add-dependency", "after-all", "all-reduce", "all-to-all", "atan2", "batch-norm-grad"),
    *("batch-norm-inference", "batch-norm-training", "bitcast", "bitcast-convert", "broadcast", "call", "ceil"),
    *("cholesky", "clamp", "collective-permute", "count-leading-zeros", "compare", "complex", "concatenate"),
    *("conditional", "constant", "convert", "convolution", "copy", "copy-done", "copy-start", "cosine"),
    *("custom-call", "divide", "domain", "dot", "dynamic-slice", "dynamic-update-slice", "exponential"),
    *("exponential-minus-one", "fft", "floor", "fusion", "gather", "get-dimension-size", "set-dimension-size"),
    *("get-tuple-element", "imag", "infeed", "iota", "is-finite", "log", "log-plus-one", "and", "not", "or", "xor"),
    *("map", "maximum", "minimum", "multiply", "negate", "outfeed", "pad", "parameter", "partition-id", "popcnt"),
    *("power", "real", "recv", "recv-done", "reduce", "reduce-precision", "reduce-window", "remainder"),
    *("replica-id", "reshape", "reverse", "rng", "rng-get-and-update-state", "rng-bit-generator"),
    *("round-nearest-afz", "rsqrt", "scatter", "select", "select-and-scatter", "send", "send-done", "shift-left"),
    *("shift-right-arithmetic", "shift-right-logical", "sign", "sine", "slice", "sort", "sqrt", "subtract", "tanh"),
    *("trace", "transpose", "triangular-solve", "tuple", "tuple-select", "while", "cbrt", "all-gather"),
    *("collective-permute-start", "collective-permute-done", "logistic", "dynamic-reshape", "all-reduce-start"),
    *("all-reduce-done", "reduce-scatter", "all-gather-start", "all-gather-done", "opt-barrier", "async-start"),
    *("async-update", "async-done", "round-nearest-even", "stochastic-convert", "tan"),
)
"""Names, in the order of their ids: the first is 1."""

_IDS = {name: number for number, name in enumerate(OPCODES, start=1)}


def opcode_id(name: str) -> int:
    """The id of an opcode, by XLA's name; 0 where TpuGraphs has none."""
    return _IDS.get(name, UNKNOWN)


def opcode_name(number: int) -> str:
    """XLA's name of an id; "unknown" of 0.

    Raises:
      IndexError: if there is no such id.
    """
    return "unknown" if number == UNKNOWN else OPCODES[number - 1]
