"""The fold pass: a product reads what its operand is a transposed copy of.

    rewrite: dot_general(a, transpose(b)) -> dot_general(a, b), with other axes contracted

XLA multiplies what is transposed as it lies, where it sees the transpose and multiplies matrices: nothing is copied.
Once the product is cut into chunks by a loop, an operand that is needed whole is made before the loop, and the copy
lies beside what it is a copy of: of the Gram matrix `x @ x.T` of wide rows that is as much again. Of a matrix times a
vector, as in a linear model's gradient `x.T @ r`, XLA:CPU stores the copy in any case. What would be copied to be
multiplied, since its batches do not lead or its sums do not lie side by side, stays. The sums are the same sums; under
numerics="exact" nothing is folded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exla import _compat
from exla._compat import Literal
from exla.errors import ReplayMiss
from exla.ir.memory import Path
from exla.ir.products import axes_of, is_ordered
from exla.ir.program import Program, value_bytes
from exla.passes.decisions import Fold
from exla.passes.paths import at_site, bodies_to_rewrite
from exla.passes.rewritten import rewritten


def enumerate_folds(program: Program, least_bytes: int, path: Path = ()) -> Iterator[Fold]:
    """Offer to multiply what each big transposed operand of a product is a copy of, where that is there beside it.

    What nothing but the `transpose` reads is written in its order, and is no second value.

    Args:
      program: the program.
      least_bytes: smaller copies may stay.
      path: where it is.
    """
    for position, eqn in enumerate(program.eqns):
        for operand in (1, 0):
            folded = _folded(program, eqn, operand)
            if folded is not None and _stays(program, folded.invars[operand], least_bytes):
                yield Fold(path=path, site=program.site(position), operand=operand)
    for body, inner in bodies_to_rewrite(program, path):
        yield from enumerate_folds(body, least_bytes, inner)


def _stays(program: Program, var: Any, least_bytes: int) -> bool:
    """Whether a value that is transposed is large, and there for more than that."""
    is_read_twice = len(program.consumers[var]) > 1 or var in program.outvars
    return value_bytes(var) >= least_bytes and (is_read_twice or var not in program.producers)


def apply_fold(program: Program, decision: Fold) -> Program:
    """Replay a fold.

    Raises:
      ReplayMiss: if there is no such operand.
    """

    def change(inner: Program, position: int) -> Program:
        folded = _folded(inner, inner.eqns[position], decision.operand)
        if folded is None:
            raise ReplayMiss(f"{decision}: it is no product of a transposed copy")
        return rewritten(inner, position, folded.invars, lambda get: _compat.bind(folded, *map(get, folded.invars)))

    return at_site(program, decision, change)


def _folded(program: Program, eqn: Any, operand: int) -> Any:
    """The equation on what an operand is a transposed copy of, if it is multiplied as it lies and the result stays."""
    if eqn.primitive.name != "dot_general" or eqn.params.get("out_sharding") is not None or operand not in (0, 1):
        return None
    var = eqn.invars[operand]
    made_at = None if isinstance(var, Literal) else program.producers.get(var)
    if made_at is None or program.eqns[made_at].primitive.name != "transpose":
        return None
    transpose = program.eqns[made_at]
    order = transpose.params["permutation"]
    batched, contracted, free = ([order[axis] for axis in axes] for axes in axes_of(eqn, operand))
    if free != sorted(free):
        return None
    numbers = [list(pair) for pair in eqn.params["dimension_numbers"]]
    numbers[0][operand], numbers[1][operand] = tuple(contracted), tuple(batched)
    invars = [transpose.invars[0] if k == operand else v for k, v in enumerate(eqn.invars)]
    params = {**eqn.params, "dimension_numbers": tuple(map(tuple, numbers))}
    changed = eqn.replace(invars=invars, params=params)
    return changed if is_ordered(changed, operand) else None
