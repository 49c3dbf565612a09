"""Element-wise primitives: every axis of the result is the same axis of every operand of that rank.

`sin`, `add`, `select_n` and their kin compute each output element from the elements at the same index, so
each axis is a factor. Scalars (a scalar predicate, the bounds of `clamp`) have no axes and are passed whole.
"""

from __future__ import annotations

from functools import lru_cache

from exla.ir.factors import FACTOR_RULES, WHOLE, EquationContext, FactorRule, axis_names
from exla.ir.primitives import ELEMENTWISE


@FACTOR_RULES.register(*ELEMENTWISE)
def elementwise(context: EquationContext) -> FactorRule:
    """`a0 a1 …, a0 a1 … -> a0 a1 …`, scalars without axes; an operand's unit axis that is stretched is whole."""
    return _along(tuple(v.shape for v in context.operands), context.results[0].shape, len(context.results))


@lru_cache(maxsize=4096)
def _along(operands: tuple[tuple[int, ...], ...], extents: tuple[int, ...], results: int) -> FactorRule:
    """The rule of operands and of so many results of these shapes; most equations of a program share theirs."""
    names = axis_names(len(extents))
    left = []
    for shape in operands:
        stretched = [e != r for e, r in zip(shape, extents, strict=False)]
        left.append(" ".join(WHOLE if s else n for n, s in zip(names, stretched, strict=False)))
    right = ", ".join(" ".join(names) for _ in range(results))
    return FactorRule(equation=f"{', '.join(left)} -> {right}")


@FACTOR_RULES.register("bitcast_convert_type")
def bitcast_convert_type(context: EquationContext) -> FactorRule:
    """`a0 a1 -> a0 a1`; where the width changes, the axis of parts is whole: `a0 -> a0 _`."""
    operand, result = context.operands[0].shape, context.results[0].shape
    names = axis_names(min(len(operand), len(result)))
    left, right = ([*names, WHOLE][: len(shape)] for shape in (operand, result))
    return FactorRule(equation=f"{' '.join(left)} -> {' '.join(right)}", whole="its parts make one number")
