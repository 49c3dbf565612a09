"""Convolutions and window reductions: batch and feature axes are factors, spatial axes are factors with a halo.

A chunk of a convolution's rows needs `(kernel - 1) * dilation + 1 - stride` rows of its operand more than its share;
what of that lies beyond the operand is replaced by what the convolution pads with. The other way round, a sum over the
rows of a long kernel, as in the gradient with respect to a kernel, is cut along with the rows of the operand that it
meets. A window that is as long as its stride has no halo: `(a w) -> a`. Dilated operands stay whole along the dilated
axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exla import _compat
from exla.ir.factors import FACTOR_RULES, Chunk, EquationContext, FactorRule, Placement, axis_names, tokens
from exla.ir.identities import full, highest, lowest


def _replay_convolution(chunk: Chunk, operand: Any, kernel: Any) -> Sequence[Any]:
    if chunk.factor == "g":
        return chunk.bind(operand, kernel, **{_grouped(chunk.context.params): chunk.size})
    place = chunk.factors.operands[chunk.factor][0]
    if place is None or place.halo is None:
        return chunk.bind(operand, kernel)
    padding = list(chunk.context.params["padding"])
    padding[chunk.context.params["dimension_numbers"].lhs_spec[2:].index(place.axis)] = (0, 0)
    return chunk.bind(chunk.mask_outside(0, operand, 0), kernel, padding=tuple(padding))


def _grouped(params: Mapping[str, Any]) -> str:
    """The parameter of a convolution that says how many groups it has; only one of them is more than one."""
    return "batch_group_count" if params["batch_group_count"] > 1 else "feature_group_count"


@FACTOR_RULES.register("conv_general_dilated")
def conv_general_dilated(context: EquationContext) -> FactorRule:
    """`n c _ _, o c h1 w1 -> n o h w` with c, h1, w1 summed; `n (g c) _ _, (g o) c h1 w1 -> n (g o) h w` in groups.

    A gradient of the kernel for each example of a batch has as many groups as there are examples. Groups of the batch
    are `(g n) c _ _, (g o) c h1 w1 -> n (g o) h w`.
    """
    p = context.params
    numbers = p["dimension_numbers"]
    left: list[str | None] = [None] * len(context.operands[0].shape)
    right: list[str | None] = [None] * len(context.operands[1].shape)
    result: list[str | None] = [None] * len(context.results[0].shape)
    reduced = {"c": "sum"}
    groups = p[_grouped(p)]
    sizes = {"g": groups, "o": context.operands[1].shape[numbers.rhs_spec[0]] // groups} if groups > 1 else {}
    left[numbers.lhs_spec[0]] = "(g n)" if p["batch_group_count"] > 1 else "n"
    left[numbers.lhs_spec[1]] = "(g c)" if p["feature_group_count"] > 1 else "c"
    right[numbers.rhs_spec[0]] = result[numbers.out_spec[1]] = "(g o)" if groups > 1 else "o"
    result[numbers.out_spec[0]], right[numbers.rhs_spec[1]] = "n", "c"
    windows = {}
    spatial = zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    for k, (axis, kernel_axis, out_axis) in enumerate(spatial):
        if p["lhs_dilation"][k] != 1:
            continue
        stride, dilation, (before, _) = p["window_strides"][k], p["rhs_dilation"][k], p["padding"][k]
        length, count = context.operands[1].shape[kernel_axis], context.results[0].shape[out_axis]
        result[out_axis] = f"s{k}"
        halo = (before, (length - 1) * dilation + 1 - stride)
        windows[f"s{k}"] = {0: Placement(axis=axis, block=stride, halo=halo)}
        right[kernel_axis] = f"t{k}"
        halo = (before, (count - 1) * stride + 1 - dilation)
        windows[f"t{k}"] = {0: Placement(axis=axis, block=dilation, halo=halo)}
        reduced[f"t{k}"] = "sum"
    return FactorRule(
        equation=f"{tokens(left)}, {tokens(right)} -> {tokens(result)}",
        reduced=reduced,
        replay=_replay_convolution,
        sizes=sizes,
        windows=windows,
        whole="a convolution's windows reach across its spatial axes",
    )


PADS_WITH = {"reduce_window_sum": full(0), "reduce_window_max": lowest, "reduce_window_min": highest}
"""Window reduction -> what it finds beyond its operand."""


def _replay_window(chunk: Chunk, *operands: Any) -> Sequence[Any]:
    """With padding where the chunk has its halo already replaced by zeros of the reduction."""
    places = chunk.factors.operands[chunk.factor]
    axes = [p.axis for p in places if p is not None and p.halo is not None]
    if not axes:
        return chunk.bind(*operands)
    padding = tuple((0, 0) if k in axes else pad for k, pad in enumerate(chunk.context.params["padding"]))
    count = len(chunk.context.results)
    fills = operands[count:] or [
        PADS_WITH[chunk.context.primitive](_compat.shaped_array((), operand.dtype)) for operand in operands
    ]
    masked = [chunk.mask_outside(k, operands[k], fills[k]) for k in range(count)]
    return chunk.bind(*masked, *operands[count:], padding=padding)


@FACTOR_RULES.register(
    *PADS_WITH,
    "reduce_window",
    "select_and_scatter_add",
    "select_and_gather_add",
)
def window(context: EquationContext) -> FactorRule:
    """`a0 (a1 w1) _ -> a0 a1 a2`, and the same for every other array, a2 with a halo where windows overlap."""
    p = context.params
    one = (1,) * len(p["window_dimensions"])
    columns = zip(
        p["window_dimensions"],
        p["window_strides"],
        p["padding"],
        p.get("base_dilation", one),
        p.get("window_dilation", one),
        strict=True,
    )
    scatters = context.primitive == "select_and_scatter_add"  # its first operand is what the windows would give
    long = context.operands[1 if scatters else 0].shape
    short = (context.operands if scatters else context.results)[0].shape
    widest: list[str | None] = []
    narrow: list[str | None] = []
    sizes, windows = {}, {}
    inputs = len(context.results) if context.primitive in (*PADS_WITH, "reduce_window") else 0
    for k, (name, (width, stride, pad, base, dilation)) in enumerate(zip(axis_names(len(one)), columns, strict=True)):
        if (width, stride, tuple(pad), base, dilation) == (1, 1, (0, 0), 1, 1):
            widest.append(name)
            narrow.append(name)
        elif width == stride and tuple(pad) == (0, 0) and base == dilation == 1 and long[k] == short[k] * stride:
            sizes[f"w{k}"] = stride
            widest.append(f"({name} w{k})")
            narrow.append(name)
        else:
            widest.append(None)
            narrow.append(name if inputs and base == 1 else None)
            placement = Placement(axis=k, block=stride, halo=(pad[0], (width - 1) * dilation + 1 - stride))
            if inputs and base == 1:
                windows[name] = {operand: placement for operand in range(inputs)}
    first = [narrow, widest] if scatters else [widest] * len(context.operands)
    left = ", ".join(tokens(axes) if v.shape else "" for v, axes in zip(context.operands, first, strict=True))
    right = ", ".join(tokens(widest if scatters else narrow) for _ in context.results)
    return FactorRule(
        equation=f"{left} -> {right}",
        replay=_replay_window,
        sizes=sizes,
        windows=windows,
        whole="windows reach across the axis",
    )


@FACTOR_RULES.register("reduce")
def reduce(context: EquationContext) -> FactorRule:
    """`a0 _, a0 _, ,  -> a0, a0`: a reduction by the user's own function keeps the axes that it does not reduce."""
    count = len(context.results)
    axes = context.params["dimensions"]
    names = [None if k in axes else n for k, n in enumerate(axis_names(len(context.operands[0].shape)))]
    left = ", ".join([*(tokens(names) for _ in range(count)), *("" for _ in range(count))])
    right = ", ".join(tokens([n for n in names if n is not None]) for _ in range(count))
    return FactorRule(equation=f"{left} -> {right}", whole="the reducing function is the user's own")
