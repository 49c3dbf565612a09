"""Sums over an index that a scan makes of what it otherwise leaves alone along it.

The gradient of a recurrent network, or of a stack of layers, goes through the examples of a batch independently of each
other, but for the gradient of its weights, which it adds up over them:

    total = total + x.T @ d      # over the rows of x and d

A part of the batch gives a part of such a sum, and the parts are added, where nothing but linear equations follow on
what is summed. A carry that is only added to, as the one above, starts from zeros on each part. One that goes through
other linear equations on every turn, as the gradient of a state that all examples share, starts on the first part from
what it is given and on every other from zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from exla._compat import Literal
from exla.ir.factors import Adds
from exla.ir.primitives import named
from exla.ir.program import Program, variables

SUMS = named("add add_any sub")
OF_ONE = named("""
    neg reduce_sum cumsum transpose reshape broadcast_in_dim squeeze expand_dims copy convert_element_type slice
    dynamic_slice rev split reduce_window_sum fft real imag
""")
OF_ALL = named("concatenate pad dynamic_update_slice select_n")
PRODUCTS = named("mul div dot_general triangular_solve conv_general_dilated")
"""Linear in some operands, of which the others must be the same for every part: sums in all of them, some in their only
one, some in all that are numbers of one kind, and products in one."""

SAME = None
ZERO = "zero"
PART = "part"
"""What a value is: the same for every part of the index; zero; a part of a sum; or a carry, by its number, to which
parts of sums were added."""

Kind = str | int | None


@dataclass(frozen=True, kw_only=True)
class Accumulated:
    """The results of a scan that are sums over an index, by their positions.

    Attributes:
      totals: carries that are only added to.
      shared: carries that go through other linear equations too.
      rows: what each turn sums.
    """

    totals: frozenset[int]
    shared: frozenset[int]
    rows: frozenset[int]

    @property
    def all(self) -> frozenset[int]:
        return self.totals | self.shared | self.rows


def accumulated(
    body: Program, first: int, carry: int, summing: Mapping[int, Adds], runs_along: Callable[[Any], bool]
) -> Accumulated | None:
    """Find which results of a scan are sums over an index.

    Args:
      body: the scan's body.
      first: position of its first carry among the body's inputs.
      carry: how many there are.
      summing: positions of the equations that sum over the index -> what they add up.
      runs_along: whether the index runs along an axis of a value.

    Returns:
      The sums; None where what is summed is used in another way, so that the index must stay whole.
    """
    sums = _depend(body, first, carry, summing)
    carries = {k for k in sums if k < carry}
    walk = _Kinds(summing=summing, runs_along=runs_along, kinds={body.invars[first + k]: k for k in carries})
    if not all(walk.follow(position, eqn) for position, eqn in enumerate(body.eqns)):
        return None
    ends = {k: walk.kinds.get(body.outvars[k]) for k in sums}
    walk.used.update(kind for k, kind in ends.items() if isinstance(kind, int) and kind != k)
    totals = frozenset(k for k in carries if ends[k] == k and k not in walk.used)
    return Accumulated(totals=totals, shared=frozenset(carries) - totals, rows=frozenset(k for k in sums if k >= carry))


def _depend(body: Program, first: int, carry: int, summing: Mapping[int, Adds]) -> frozenset[int]:
    """Which results depend on a sum, on some turn."""
    found = frozenset[int]()
    while True:
        changed = {body.invars[first + k] for k in found if k < carry}
        for position, eqn in enumerate(body.eqns):
            if position in summing:
                changed.update(eqn.outvars[k] for k in summing[position].results)
            elif not changed.isdisjoint(variables(eqn.invars)):
                changed.update(eqn.outvars)
        more = frozenset(k for k, v in enumerate(body.outvars) if not isinstance(v, Literal) and v in changed)
        if more <= found:
            return found
        found = more | found


@dataclass(kw_only=True)
class _Kinds:
    """What the values of a body are, found equation by equation.

    Attributes:
      summing: positions of the equations that sum over the index -> what they add up.
      runs_along: whether the index runs along an axis of a value.
      kinds: variable -> what it is.
      used: the carries that something else is computed from than the same carry of the next turn.
    """

    summing: Mapping[int, Adds]
    runs_along: Callable[[Any], bool]
    kinds: dict[Any, Kind]
    used: set[int] = field(default_factory=set)

    def follow(self, position: int, eqn: Any) -> bool:
        """Say what an equation computes; False where it is no linear one of parts."""
        operands = [self._of(v) for v in eqn.invars]
        if position in self.summing:
            return self._sums(eqn, operands, self.summing[position])
        if all(kind in (SAME, ZERO) for kind in operands):
            is_zero = eqn.primitive.name == "broadcast_in_dim" and operands[0] == ZERO
            self.kinds.update((v, ZERO if is_zero else SAME) for v in eqn.outvars)
            return True
        if any(self.runs_along(v) for v in variables((*eqn.invars, *eqn.outvars))):
            return False
        kind = self._linear(eqn, operands)
        self.kinds.update((v, kind) for v in eqn.outvars)
        return kind is not SAME

    def _sums(self, eqn: Any, operands: Sequence[Kind], adds: Adds) -> bool:
        """Say what an equation computes that sums over the index: it may start from parts, and from nothing else."""
        self.used.update(kind for kind in operands if isinstance(kind, int))
        self.kinds.update((v, PART if k in adds.results else SAME) for k, v in enumerate(eqn.outvars))
        return all(kind == ZERO or (kind is SAME) != (k in adds.inits) for k, kind in enumerate(operands))

    def _of(self, v: Any) -> Kind:
        if isinstance(v, Literal):
            return ZERO if np.ndim(v.val) == 0 and v.val == 0 else SAME
        return self.kinds.get(v)

    def _linear(self, eqn: Any, operands: Sequence[Kind]) -> Kind:
        """What an equation makes of a part of a sum; `SAME` where it is not linear in it."""
        name = eqn.primitive.name
        carries = [kind for kind in operands if isinstance(kind, int)]
        kind: Kind = PART
        if len(carries) == 1 and _only_adds(eqn, operands):
            kind = carries[0]
        else:
            self.used.update(carries)
        numbers = [k for k, v in enumerate(eqn.invars) if v.aval.dtype == eqn.outvars[0].aval.dtype]
        same = [k for k, of in enumerate(operands) if of is SAME]
        if name in SUMS or name in OF_ALL:
            is_linear = not any(k in numbers for k in same) and (name != "select_n" or 0 in same)
        elif name in OF_ONE:
            is_linear = 0 not in same and not _truncates(eqn)
        else:
            is_linear = name in PRODUCTS and len(same) == 1 and same != [{"div": 0, "triangular_solve": 1}.get(name)]
        return kind if is_linear else SAME


def _only_adds(eqn: Any, operands: Sequence[Kind]) -> bool:
    """Whether the result is the carry among the operands, with something added at most."""
    name, (first, *_) = eqn.primitive.name, eqn.invars
    if name == "convert_element_type":
        return bool(first.aval.dtype == eqn.outvars[0].aval.dtype)
    return name in ("add", "add_any", "copy") or (name == "sub" and isinstance(operands[0], int))


def _truncates(eqn: Any) -> bool:
    """Whether a conversion is from numbers with fractions to such without, or to truth values."""
    before, after = (v.aval.dtype for v in (eqn.invars[0], eqn.outvars[0]))
    if after == np.bool_:
        return True
    return bool(jnp.issubdtype(before, jnp.inexact) and not jnp.issubdtype(after, jnp.inexact))
