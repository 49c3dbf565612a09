"""What is computed alone must not meet the rest of a value where a last bit decides.

A part of a value that is computed alone (`exla.passes.split.part`) is computed by other code than the whole value: the
product of one row and one column adds in another order than the product of all. An element may be told from itself
then: `k > k[i, j]` counts how many are above it, and it is not above itself. So a part is not computed alone where both
come together, by whatever arithmetic, and something jumps there: a comparison, a sort, the root or logarithm of a
difference, a conversion to integers. Nor where two parts of other shapes do.

Once elements are summed up with others it does not matter which of them were rounded how, and what is chosen by them
(an index, a truth value) is no number of theirs any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from exla.ir.primitives import named
from exla.ir.program import Program
from exla.ir.scopes import is_alone
from exla.passes.decisions import Sink
from exla.passes.rounding import is_inexact
from exla.passes.steady import NOWHERE, Name, Place, Reach, Steady, Walk, places

CHOOSING = named("eq ne lt le gt ge eq_to lt_to le_to argmin argmax is_finite sort top_k")
"""What chooses by comparing: the integers and truth values that come of it are no numbers of what was compared."""
JUMPING = CHOOSING | named("""
    sign floor ceil round rem nextafter convert_element_type bitcast_convert_type reduce_precision
    sqrt rsqrt cbrt log log1p pow asin acos atan2 acosh atanh erf_inv lgamma digamma
""")
"""What may give quite another number, or none, where its operand differs by a last bit."""
DIVIDING = named("div integer_pow")
"""What does so for what is not quite 0."""
SUMMING = named("""
    reduce_sum reduce_prod dot_general conv_general_dilated cumsum cumprod cumlogsumexp reduce_window_sum scatter-add
    fft
""")
WHOLE: Place = ()
"""Where what is not computed alone is computed."""


def allows(steady: Steady, program: Program, decisions: Iterable[Any]) -> bool:
    """Whether what jumps in a program, made by decisions of the one that `steady` is of, jumps where it did."""
    return steady.holds(program) and (not any(isinstance(d, Sink) for d in decisions) or is_apart(program))


def is_apart(program: Program) -> bool:
    """Whether no part that a program computes alone meets the rest of its value where a last bit decides."""
    if "apart" not in program.known:
        walk = _Meetings(None)
        walk.run(program, [NOWHERE] * len(program.invars), ())
        program.known["apart"] = walk.holds
    return program.known["apart"]


class _Meetings(Walk):
    """Follows how what meets was computed: alone, and of what shapes, or not."""

    def meet(self, program: Program, position: int, operands: Sequence[Reach], place: Place) -> None:
        eqn = program.eqns[position]
        name = eqn.primitive.name
        if name in DIVIDING and eqn.params.get("y", -1) < 0:
            operands = operands[-1:]
        elif name not in JUMPING or (name == "convert_element_type" and is_inexact(eqn.outvars[0])):
            return
        kinds: dict[Name, Place] = {}
        for which, at in places(NOWHERE.union(*operands)):
            self.holds &= kinds.setdefault(which, at) == at

    def equation(self, program: Program, eqn: Any, operands: Sequence[Reach], place: Place) -> list[Reach]:
        if eqn.primitive.name in SUMMING:
            operands = [NOWHERE] * len(operands)
        results = super().equation(program, eqn, operands, place)
        if eqn.primitive.name in CHOOSING:
            return [r if is_inexact(v) else NOWHERE for r, v in zip(results, eqn.outvars, strict=True)]
        return results

    def at(self, eqn: Any, place: Place) -> Place:
        return tuple(n for v in (*eqn.invars, *eqn.outvars) for n in (-1, *v.aval.shape)) if is_alone(eqn) else WHOLE
