"""What is computed alone must not meet the rest of a value where a last bit decides.

A part of a value that is computed alone (`exla.passes.split.part`) is computed by other code than the whole value: the
product of one row and one column adds in another order than the product of all. An element may be told from itself
then: `k > k[i, j]` counts how many are above it, and it is not above itself. So a part is not computed alone where both
come together, by whatever arithmetic, and something jumps there: a comparison, a sort, the root or logarithm of a
difference, a conversion to integers. Nor where two parts of other shapes do.

What is not known to be smooth is taken to jump. Once elements are summed up with others it does not matter which of
them were rounded how, and what is chosen by them (an index, a truth value) is no number of theirs any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from exla import _compat
from exla.ir.primitives import VIEWS, named
from exla.ir.products import adds_nothing
from exla.ir.program import Program
from exla.ir.scopes import is_alone
from exla.passes.decisions import Sink
from exla.passes.rounding import is_inexact
from exla.passes.steady import NOWHERE, Name, Place, Reach, Steady, Walk, places

CHOOSING = named("eq ne lt le gt ge eq_to lt_to le_to argmin argmax is_finite sort top_k")
"""What chooses by comparing: the integers and truth values that come of it are no numbers of what was compared."""
SMOOTH = VIEWS | named("""
    add sub mul neg add_any abs max min clamp select_n square exp exp2 expm1 tanh logistic sin cos tan erf erfc sinh
    cosh asinh atan real imag conj complex copy stop_gradient broadcast_in_dim iota reshape transpose squeeze
    expand_dims slice dynamic_slice dynamic_update_slice gather scatter pad concatenate stack split rev reduce_max
    reduce_min cummax cummin reduce_window_max reduce_window_min device_put sharding_constraint
    reduce_sum reduce_prod dot_general conv_general_dilated cumsum cumprod cumlogsumexp reduce_window_sum scatter-add
    fft cholesky triangular_solve lu qr eigh svd householder_product tridiagonal_solve
""")
"""What differs by about a last bit where its operands do; of everything else it is not known."""
DIVIDING = named("div integer_pow")
"""What may give quite another number where a divisor that is nearly 0 differs by a last bit."""
SUMMING = named("reduce_sum dot_general")
"""What adds every element to others, unless it adds up one; a running sum, window or scatter may leave some alone."""
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
        if name in SMOOTH or _compat.bodies(eqn):
            return
        if name == "convert_element_type" and is_inexact(eqn.outvars[0]):
            return
        if name in DIVIDING:
            operands = operands[-1:] if eqn.params.get("y", -1) < 0 else ()
        kinds: dict[Name, Place] = {}
        for which, at in places(NOWHERE.union(*operands)):
            self.holds &= kinds.setdefault(which, at) == at

    def equation(self, program: Program, eqn: Any, operands: Sequence[Reach], place: Place) -> list[Reach]:
        if eqn.primitive.name in SUMMING and not adds_nothing(eqn):
            operands = [NOWHERE] * len(operands)
        results = super().equation(program, eqn, operands, place)
        if eqn.primitive.name in CHOOSING:
            return [r if is_inexact(v) else NOWHERE for r, v in zip(results, eqn.outvars, strict=True)]
        return results

    def at(self, eqn: Any, place: Place) -> Place:
        return tuple(n for v in (*eqn.invars, *eqn.outvars) for n in (-1, *v.aval.shape)) if is_alone(eqn) else WHOLE
