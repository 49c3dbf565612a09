"""dot_general: batch axes and free axes stay, contracted axes are summed."""

from __future__ import annotations

from exla.ir.factors import FACTOR_RULES, EquationContext, FactorRule, axis_names


@FACTOR_RULES.register("dot_general")
def dot_general(context: EquationContext) -> FactorRule:
    """`b i k, b k j -> b i j` with k summed; any number of each."""
    (left_contract, right_contract), (left_batch, right_batch) = context.params["dimension_numbers"]
    left = axis_names(len(context.operands[0].shape), "i")
    right = axis_names(len(context.operands[1].shape), "j")
    for n, (i, j) in enumerate(zip(left_contract, right_contract, strict=True)):
        left[i] = right[j] = f"k{n}"
    for n, (i, j) in enumerate(zip(left_batch, right_batch, strict=True)):
        left[i] = right[j] = f"b{n}"
    result = [left[i] for i in left_batch]
    result += [n for n in left if n[0] == "i"] + [n for n in right if n[0] == "j"]
    return FactorRule(
        equation=f"{' '.join(left)}, {' '.join(right)} -> {' '.join(result)}",
        reduced={f"k{n}": "sum" for n in range(len(left_contract))},
    )
