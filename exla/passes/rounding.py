"""Which equations have other bits where other things are computed beside them.

XLA and LLVM choose by what they see in one kernel: in which order a sum is added, whether `a * b + c` is rounded once
or twice, whether `a / sqrt(b)` is a division, whether a conversion to fewer bits and back is carried out.
`exla.passes.steady` says where that matters.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from exla._compat import Literal
from exla.ir.primitives import TRANSCENDENTAL, named
from exla.ir.program import Program

SHAPE_DEPENDENT = frozenset(
    {
        *("reduce_sum", "reduce_prod", "dot_general", "conv_general_dilated", "cumsum", "cumprod", "cumlogsumexp"),
        *("reduce_window_sum", "scatter-add", "fft", "scan", "while", "exla_sealed"),
    }
)
"""Primitives whose results may have other bits where they are computed in other pieces."""
MULTIPLYING = named("square integer_pow") | TRANSCENDENTAL
"""Primitives that end with a multiplication, or may: an addition may take it in before it is rounded."""
ADDING = named("add sub add_any") | TRANSCENDENTAL
"""Primitives that may begin with an addition."""
INVERTED = named("exp exp2 pow integer_pow sqrt rsqrt div")
"""Primitives by which XLA does not divide but multiplies, by the inverse."""
JOINED = {
    "mul": named("exp exp2 pow integer_pow sqrt rsqrt abs"),
    "square": named("exp exp2 pow integer_pow sqrt rsqrt abs"),
    "integer_pow": named("exp exp2 pow integer_pow sqrt rsqrt abs"),
    "pow": named("exp exp2 pow integer_pow sqrt rsqrt abs mul square"),
    "log": named("exp exp2 pow integer_pow sqrt rsqrt"),
    "exp": named("log"),
    "sqrt": named("mul square pow integer_pow div"),
    "rsqrt": named("mul square pow integer_pow div"),
}
"""Primitive -> those that XLA makes one step with it of, where all its operands come from them."""
LOOKED_THROUGH = named("""
    neg broadcast_in_dim transpose slice dynamic_slice rev convert_element_type reshape squeeze expand_dims
    optimization_barrier
""")
"""Primitives that leave the numbers of their first operand what they are."""


MOVED = LOOKED_THROUGH - named("slice dynamic_slice convert_element_type")
"""Those that keep all numbers, and each as it is or negative."""
ROUNDED = SHAPE_DEPENDENT | MULTIPLYING | ADDING | named("mul div sqrt rsqrt")
"""Primitives whose results are rounded."""


def is_rounded(program: Program, v: Any) -> bool:
    """Whether a value, or what it is moved from, is a number that was rounded."""
    maker = _maker(program, v)
    return maker is not None and is_inexact(v) and maker.primitive.name in ROUNDED


def depends_on_place(program: Program, eqn: Any) -> bool:
    """Whether the bits of an equation's results depend on what else is computed beside it."""
    name = eqn.primitive.name
    if name in SHAPE_DEPENDENT:
        return True
    if not any(is_inexact(v) for v in eqn.outvars):
        return False
    if any(is_narrow(v) for v in eqn.outvars):
        return name not in LOOKED_THROUGH and any(_maker(program, v) is not None for v in eqn.invars)
    if name == "convert_element_type":
        return _is_rounded_between(program, eqn)
    if name == "div" and _rounds_as_product(program, eqn) or _is_joined(program, eqn):
        return True
    return name in ADDING and any(_is_product(program, v) for v in eqn.invars)


def _is_product(program: Program, v: Any) -> bool:
    """Whether a value is a product that is rounded, so that it may as well not be."""
    eqn = _maker(program, v)
    if eqn is None:
        return False
    name = eqn.primitive.name
    if name == "mul":
        return not any(_is_power_of_two(_constant(program, factor)) for factor in eqn.invars)
    return _rounds_as_product(program, eqn) if name == "div" else name in MULTIPLYING


def _is_joined(program: Program, eqn: Any) -> bool:
    """Whether an equation is the second of two steps that XLA's algebraic simplifier makes one of, or others."""
    name = eqn.primitive.name
    makers = [_maker(program, v) for v in eqn.invars]
    made = ["" if maker is None else maker.primitive.name for maker in makers]
    if name == "div":
        return made[1] in INVERTED or made[0] in ("div", "integer_pow")
    if name in ("mul", "add", "sub"):
        kinds = ("mul",) if name == "mul" else ("add", "sub")
        known = sum(_constant(program, v) is not None for v in eqn.invars)
        known += sum(m.primitive.name in kinds and _has_constant(program, m) for m in makers if m is not None)
        if known > 1 or (name == "sub" and made[0] == "exp" and known):
            return True
    return bool(made) and all(step in JOINED.get(name, ()) for step in made)


def _is_rounded_between(program: Program, widening: Any) -> bool:
    """Whether a conversion ends one to fewer bits and back, which XLA may leave out."""
    narrowing = _maker(program, widening.invars[0], LOOKED_THROUGH - {"convert_element_type"})
    if narrowing is None or narrowing.primitive.name != "convert_element_type":
        return False
    wide, narrow = narrowing.invars[0], narrowing.outvars[0]
    return is_inexact(wide) and is_inexact(narrow) and wide.aval.dtype.itemsize > narrow.aval.dtype.itemsize


def _has_constant(program: Program, eqn: Any) -> bool:
    return any(_constant(program, v) is not None for v in eqn.invars)


def _rounds_as_product(program: Program, division: Any) -> bool:
    """Whether a division is by a constant whose inverse is not exact."""
    divisor = _constant(program, division.invars[1])
    return divisor is not None and not _is_power_of_two(divisor)


def _constant(program: Program, v: Any) -> Any:
    """The one number that a value holds; None where it is no literal."""
    while not isinstance(v, Literal):
        eqn = _maker(program, v, LOOKED_THROUGH - {"broadcast_in_dim"})
        if eqn is None or eqn.primitive.name != "broadcast_in_dim":
            return None
        v = eqn.invars[0]
    return v.val


def _maker(program: Program, v: Any, through: frozenset[str] = LOOKED_THROUGH) -> Any:
    """The equation that computes a value, whatever moves it; None where there is none."""
    position = made_by(program, v, through)
    return None if position is None else program.eqns[position]


def made_by(program: Program, v: Any, through: frozenset[str] = LOOKED_THROUGH) -> int | None:
    """The position of the equation that computes a value, whatever moves it; None where there is none."""
    while not isinstance(v, Literal) and v in program.producers:
        position = program.producers[v]
        if program.eqns[position].primitive.name not in through:
            return position
        v = program.eqns[position].invars[0]
    return None


def moved_of(program: Program, v: Any) -> list[Any]:
    """A value, and what it is as a whole in another place or shape, step by step."""
    found = []
    while not isinstance(v, Literal):
        found.append(v)
        eqn = program.eqns[program.producers[v]] if v in program.producers else None
        if eqn is None or eqn.primitive.name not in MOVED:
            break
        v = eqn.invars[0]
    return found


def _is_power_of_two(number: Any) -> bool:
    if number is None or np.ndim(number) or np.iscomplexobj(number):
        return False
    return abs(math.frexp(float(number))[0]) == 0.5


def is_narrow(v: Any) -> bool:
    """Whether numbers are narrower than what they are computed in: between two operations they may stay unrounded."""
    return is_inexact(v) and bool(jax.dtypes.finfo(v.aval.dtype).bits < 32)


def is_inexact(v: Any) -> bool:
    return bool(jax.dtypes.issubdtype(getattr(v.aval, "dtype", np.int32), np.inexact))


def is_sealed(eqn: Any) -> bool:
    """Whether an equation is computed by itself (`exla.passes.seal`)."""
    return eqn.primitive.name == "exla_sealed"
