"""Convolutions and window reductions: batch and feature axes are factors, spatial axes are whole.

A window reduction's axis on which the window is a single element and nothing is strided, padded or dilated is a
factor as well.
"""

from __future__ import annotations

from exla.ir.factors import FACTOR_RULES, EquationContext, FactorRule, axis_names, tokens


@FACTOR_RULES.register("conv_general_dilated")
def conv_general_dilated(context: EquationContext) -> FactorRule:
    """`n c _ _, o c _ _ -> n o _ _` with c summed; with groups only what the groups leave independent."""
    numbers = context.params["dimension_numbers"]
    left: list[str | None] = [None] * len(context.operands[0].shape)
    right: list[str | None] = [None] * len(context.operands[1].shape)
    result: list[str | None] = [None] * len(context.results[0].shape)
    reduced = {}
    if context.params["batch_group_count"] == 1:
        left[numbers.lhs_spec[0]] = result[numbers.out_spec[0]] = "n"
        if context.params["feature_group_count"] == 1:
            right[numbers.rhs_spec[0]] = result[numbers.out_spec[1]] = "o"
            left[numbers.lhs_spec[1]] = right[numbers.rhs_spec[1]] = "c"
            reduced = {"c": "sum"}
    return FactorRule(
        equation=f"{tokens(left)}, {tokens(right)} -> {tokens(result)}",
        reduced=reduced,
        whole="a convolution's windows reach across its spatial axes",
    )


@FACTOR_RULES.register(
    "reduce_window_sum",
    "reduce_window_max",
    "reduce_window_min",
    "reduce_window",
    "select_and_scatter_add",
    "select_and_gather_add",
)
def window(context: EquationContext) -> FactorRule:
    """`a0 _ -> a0 _`, and the same for every other array: axes with a window of one element."""
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
    still = [(w, s, tuple(pad), b, d) == (1, 1, (0, 0), 1, 1) for w, s, pad, b, d in columns]
    names = tokens([n if keep else None for n, keep in zip(axis_names(len(still)), still, strict=True)])
    left, right = (", ".join(names if v.shape else "" for v in side) for side in (context.operands, context.results))
    return FactorRule(equation=f"{left} -> {right}", whole="windows reach across the axis")


@FACTOR_RULES.register("reduce")
def reduce(context: EquationContext) -> FactorRule:
    """`a0 _, a0 _, ,  -> a0, a0`: a reduction by the user's own function keeps the axes that it does not reduce."""
    count = len(context.results)
    axes = context.params["dimensions"]
    names = [None if k in axes else n for k, n in enumerate(axis_names(len(context.operands[0].shape)))]
    left = ", ".join([*(tokens(names) for _ in range(count)), *("" for _ in range(count))])
    right = ", ".join(tokens([n for n in names if n is not None]) for _ in range(count))
    return FactorRule(equation=f"{left} -> {right}", whole="the reducing function is the user's own")
