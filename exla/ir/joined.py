"""Products that TPUs' compiler computes inside the fusion that reads them, and never stores.

    jnp.maximum(a @ b, 0) @ c       one fusion
    jnp.sum(jnp.exp(a @ b), axis=1) one fusion

What is several products of real numbers is stored: one of complex matrices; and so is one in more than the default
precision where another product of matrices reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from exla.ir.primitives import VIEWS
from exla.ir.products import is_exact, is_vectors
from exla.ir.program import Program, is_complex


def is_joined(program: Program, eqn: Any, home: int, readers: Iterable[int]) -> bool:
    """Whether a product is computed by what reads it; as it lies, where that is another product.

    Args:
      program: the program.
      eqn: the product.
      home: the equation whose fusion reads it.
      readers: the equations of that fusion which read it elsewhere than they are computed themselves.
    """
    users = (program.eqns[i].primitive.name for i, _ in program.consumers.get(eqn.outvars[0], ()))
    is_moved = any(name in VIEWS or name == "transpose" for name in users)
    if _is_of_complex_matrices(eqn):
        return False
    if is_exact(eqn) and any(_is_of_matrices(program.eqns[reader]) for reader in readers):
        return False
    return not (is_moved and program.eqns[home].primitive.name == "dot_general")


def _is_of_matrices(eqn: Any) -> bool:
    return eqn.primitive.name == "dot_general" and not is_vectors(eqn)


def _is_of_complex_matrices(eqn: Any) -> bool:
    return is_complex(eqn.outvars[0]) and not is_vectors(eqn)
