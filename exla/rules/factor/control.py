"""Scans: the axis that a scan runs along is a carried factor, whose state is the scan's own carry.

A chunk of a scan is the same scan, of fewer steps, started from where the chunk before it ended; its values are bit for
bit those of the whole one. What the body does along other axes is not looked at here: bodies are split where they are.
"""

from __future__ import annotations

from typing import Any

from exla import _compat
from exla.ir.factors import FACTOR_RULES, Carried, Chunk, EquationContext, FactorRule, tokens


@FACTOR_RULES.register("scan")
def scan(context: EquationContext) -> FactorRule:
    """`_, _, t _ -> _, t _`: constants, carry and rows to carry and rows, with t carried."""
    consts, carry = _compat.scan_counts(context.params, len(context.operands))

    def side(values: tuple[Any, ...], before: int) -> str:
        axes = (
            [None] * len(v.shape) if k < before else ["t", *[None] * (len(v.shape) - 1)] for k, v in enumerate(values)
        )
        return ", ".join(tokens(a) for a in axes)

    def step(chunk: Chunk, state: list[Any], *operands: Any) -> tuple[list[Any], list[Any]]:
        results = chunk.bind(*operands[:consts], *state, *operands[consts + carry :], length=chunk.size)
        return results[carry:], results[:carry]

    carried = Carried(
        start=lambda context, *operands: list(operands),
        step=step,
        finish=lambda context, state: state,
        into=tuple(range(consts, consts + carry)),
        reverse=context.params["reverse"],
    )
    return FactorRule(
        equation=f"{side(context.operands, consts + carry)} -> {side(context.results, carry)}",
        carried={"t": carried},
        whole="only the axis that a scan runs along is cut",
    )
