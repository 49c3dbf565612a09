"""Factors: the index variables of the loop nest that a program is.

A **factor rule** says how one primitive relates the axes of its operands to those of its results, in an
einsum-like string. The rule of a matrix product is

    "i k, k j -> i j"      with reduced={"k": "sum"}

read: factor `i` runs along axis 0 of the first operand and axis 0 of the result, and `k` is summed over.
One token per axis, separated by spaces; `_` is an axis that must stay *whole*; `(a b)` is an axis composed of
two factors, `a` outermost, as reshape makes them. Only the outermost factor of a composed axis can be chunked
(a chunk of it is one contiguous range); factors of size 1 are looked through.

`parse` turns string and shapes into `Factors`, which answers the one question that splitting asks: *if this
axis is cut into chunks, which axes are cut with it, and is anything reduced?* What has no rule ties nothing:
all its axes are whole, and it is a barrier.

A factor may reach into an operand with a *halo*, as the rows of a convolution do: a chunk of it needs a few rows more.

A factor may also be *carried*: run through in order, with a state handed on from chunk to chunk, as the running total
of a cumulative sum, the carry of a scan, or the array that a scatter writes into (`Carried`).

Factors are joined per split region, not once per program: `x @ x.T` uses `x` along its rows in two different
ways, and one program-wide union of axes would make them one factor that nothing can cut.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from exla.errors import RuleError
from exla.registry import Registry

WHOLE = "_"


@dataclass(frozen=True, kw_only=True)
class EquationContext:
    """What a factor rule sees of one equation.

    Attributes:
      primitive: name of the primitive.
      params: its parameters.
      operands: abstract values of the operands (with `.shape` and `.dtype`).
      results: abstract values of the results.
      bind: evaluates the primitive on new operands, with some parameters replaced; returns a list.
    """

    primitive: str
    params: Mapping[str, Any]
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    bind: Callable[..., list[Any]]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a factor runs: `axis` of a value, one index of the factor covering `block` indices of the axis.

    With a `halo` (before, extra), a chunk of `size` indices from `offset` covers `size * block + extra` indices of the
    axis from `offset * block - before`; what of that lies outside the axis holds any numbers at all.
    """

    axis: int
    block: int = 1
    halo: tuple[int, int] | None = None

    def length(self, size: int) -> int:
        """How many indices of the axis a chunk of the factor covers."""
        return size * self.block + (0 if self.halo is None else self.halo[1])


class Passed(enum.Enum):
    """How an operand reaches the chunks that is neither whole nor sliced along the factor."""

    TRIP = "one index of its first axis per trip"
    START = "only to make the first state of what is carried"


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One range of one factor of one equation, while the equation is replayed on slices.

    Attributes:
      context: the *unsliced* equation.
      factors: its parsed rule.
      factor: name of the factor that is cut.
      size: how many indices of it this chunk has (static).
      offset: first index of the chunk, a traced int32 scalar, in indices of the factor.
    """

    context: EquationContext
    factors: Factors
    factor: str
    size: int
    offset: Any

    def operand_shape(self, k: int) -> tuple[int, ...]:
        """Shape of operand `k` cut to this chunk."""
        return self._cut(self.context.operands[k].shape, self.factors.operands[self.factor][k])

    def result_shape(self, k: int = 0) -> tuple[int, ...]:
        """Shape of result `k` cut to this chunk (its whole shape where the factor does not reach it)."""
        return self._cut(self.context.results[k].shape, self.factors.results[self.factor][k])

    def mask_outside(self, k: int, slab: Any, fill: Any) -> Any:
        """Operand `k` cut to this chunk with its halo, `fill` in place of what lies outside the operand."""
        place = self.factors.operands[self.factor][k]
        if place is None or place.halo is None:
            return slab
        shape = [slab.shape[place.axis] if axis == place.axis else 1 for axis in range(slab.ndim)]
        first = lax.sub(lax.mul(self.offset, np.int32(place.block)), np.int32(place.halo[0]))
        index = lax.add(lax.broadcasted_iota(np.int32, shape, place.axis), first)  # jnp's would take ten times as long
        extent = np.int32(self.context.operands[k].shape[place.axis])
        inside = lax.bitwise_and(lax.ge(index, np.int32(0)), lax.lt(index, extent))
        inside = lax.broadcast_in_dim(inside, slab.shape, range(slab.ndim))
        return lax.select(inside, slab, lax.full(slab.shape, lax.convert_element_type(fill, slab.dtype)))

    def bind(self, *operands: Any, **params: Any) -> list[Any]:
        """Evaluate the primitive on the slices, with some parameters replaced."""
        return self.context.bind(*operands, **params)

    def _cut(self, shape: tuple[int, ...], placement: Placement | None) -> tuple[int, ...]:
        if placement is None:
            return tuple(shape)
        cut = list(shape)
        cut[placement.axis] = placement.length(self.size)
        return tuple(cut)


Replay = Callable[..., Sequence[Any]]


def replay_unchanged(chunk: Chunk, *operands: Any) -> Sequence[Any]:
    """Bind the same primitive with the same parameters: right for every primitive without shape parameters."""
    return chunk.bind(*operands)


@dataclass(frozen=True, kw_only=True)
class Adds:
    """What an equation adds up over a factor, where parts of the factor give parts of the sums.

    Attributes:
      results: positions of the results that are sums.
      inits: positions of the operands that are added to them, so that only one of the parts may have more than zeros.
    """

    results: frozenset[int]
    inits: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Carried:
    """How a factor is run through in order, a state handed on from chunk to chunk.

    Attributes:
      start: (context, *operands named by `into`) -> the first state, a list of arrays.
      step: (chunk, state, *operands) -> (results that the factor reaches, next state); None in place of each operand
        named by `into`.
      finish: (context, last state) -> the results that the factor does not reach.
      into: positions of the operands that make the first state and are not read after that.
      reverse: whether it runs from the last index to the first; None where it may run either way.
      exact: whether the values are bit for bit those of the equation that is not cut.
      adds: what it adds up, where the rule's `replay` gives the parts.
      many: how it is run through in many chunks, from the same operands, where that is another way.
    """

    start: Callable[..., list[Any]]
    step: Callable[..., tuple[list[Any], list[Any]]]
    finish: Callable[[EquationContext, list[Any]], list[Any]] = lambda context, state: []
    into: tuple[int, ...] = ()
    reverse: bool | None = False
    exact: bool = True
    adds: Adds | None = None
    many: Carried | None = None

    def runs(self, reverse: bool) -> bool:
        """Whether it goes on from chunk to chunk in a loop that runs in a direction."""
        return self.reverse in (None, reverse)


@dataclass(frozen=True, kw_only=True)
class FactorRule:
    """What a rule returns for one equation.

    Attributes:
      equation: the einsum-like string.
      reduced: factor name -> combiner name, for the factors that the equation reduces over.
      carried: factor name -> how it is run through in order, for the factors that a state is handed along.
      replay: `replay(chunk, *slices)` evaluates the equation on one chunk and returns its results, or, for a
        reduced factor, the partial state that the combiner merges.
      whole: axis-independent reason why axes are whole, for `explain`.
      sizes: sizes of the factors that no axis holds alone.
      apart: factor name -> the results that the factor does not reach and that are the same for every chunk of it.
      windows: factor name -> operand -> its placement with a halo, for the factors of which a chunk reaches beyond the
        same chunk of an operand; the equation has `_` for that axis of the operand.
      counted: the factors of which the values of a chunk depend on where it begins.
    """

    equation: str
    reduced: Mapping[str, str] = field(default_factory=dict)
    carried: Mapping[str, Carried] = field(default_factory=dict)
    replay: Replay = replay_unchanged
    whole: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    apart: Mapping[str, frozenset[int]] = field(default_factory=dict)
    windows: Mapping[str, Mapping[int, Placement]] = field(default_factory=dict)
    counted: frozenset[str] = frozenset()


FACTOR_RULES: Registry[Callable[[EquationContext], FactorRule]] = Registry("factor rule", package="exla.rules.factor")


BARRIERS: Registry[str] = Registry("barrier", package="exla.rules.factor")
"""Primitive -> why it is never cut, for those without a factor rule."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """A parsed factor rule.

    Attributes:
      rule: what it was parsed from.
      sizes: factor name -> how many indices it has.
      operands: factor name -> for each operand, where the factor runs, or None.
      results: the same for each result.
      hidden: names of factors that are never outermost somewhere that they occur, so they cannot be cut.
    """

    rule: FactorRule
    sizes: Mapping[str, int]
    operands: Mapping[str, tuple[Placement | None, ...]]
    results: Mapping[str, tuple[Placement | None, ...]]
    hidden: frozenset[str]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The factors that can be cut, in order of appearance."""
        return tuple(n for n in self.sizes if self.why_whole(n) is None)

    def why_whole(self, name: str) -> str | None:
        """Say why factor `name` cannot be cut here, or None if it can."""
        if name in self.hidden:
            return "it is an inner part of a composed axis"
        if name in self.rule.carried:
            return None
        apart = self.rule.apart.get(name, frozenset())
        placed = [p is not None for k, p in enumerate(self.results[name]) if k not in apart]
        if not placed or not all(placed) and not (name in self.rule.reduced and not any(placed)):
            return self.rule.whole or "the equation mixes its indices"
        return None

    def at_operand(self, k: int, axis: int) -> str | None:
        """Name of the factor that runs outermost along `axis` of operand `k`."""
        return self._at(self.operands, k, axis)

    def at_result(self, k: int, axis: int) -> str | None:
        """Name of the factor that runs outermost along `axis` of result `k`."""
        return self._at(self.results, k, axis)

    def _at(self, places: Mapping[str, tuple[Placement | None, ...]], k: int, axis: int) -> str | None:
        for name, at in places.items():
            place = at[k]
            if place is not None and place.axis == axis and place.halo is None and name not in self.hidden:
                return name
        return None


_TOKEN = re.compile(r"\(([^()]*)\)|(\S+)")


def parse(rule: FactorRule, context: EquationContext) -> Factors:
    """Parse a rule's string against the shapes of its equation.

    Args:
      rule: the rule.
      context: the equation; its shapes fix the factors' sizes.

    Returns:
      The factors and where they run.

    Raises:
      RuleError: if the string does not fit the shapes, or one factor would have two sizes.
    """
    sizes, operands, results, hidden = _placed(
        context.primitive,
        rule.equation,
        tuple(rule.sizes.items()),
        tuple((name, tuple(windows.items())) for name, windows in rule.windows.items()),
        tuple(v.shape for v in context.operands),
        tuple(v.shape for v in context.results),
    )
    return Factors(rule=rule, sizes=sizes, operands=operands, results=results, hidden=hidden)


Places = Mapping[str, tuple[Placement | None, ...]]
"""Factor name -> where it runs in each value of one side."""


@lru_cache(maxsize=4096)
def _placed(
    primitive: str,
    equation: str,
    own_sizes: tuple[tuple[str, int], ...],
    windows: tuple[tuple[str, tuple[tuple[int, Placement], ...]], ...],
    *shapes: tuple[tuple[int, ...], ...],
) -> tuple[Mapping[str, int], Places, Places, frozenset[str]]:
    """The sizes of a rule's factors, where they run in operands and in results, and which cannot be cut.

    Most equations of a program are spelled as some other one is, at the same shapes.
    """
    left, arrow, right = equation.partition("->")
    if not arrow:
        raise RuleError(f"rule of {primitive!r}: {equation!r} has no '->'")
    sides = (_tokens(left, len(shapes[0])), _tokens(right, len(shapes[1])))
    sizes = _sizes(primitive, equation, own_sizes, sides, shapes)
    hidden: set[str] = set()
    places: tuple[dict, dict] = ({n: [] for n in sizes}, {n: [] for n in sizes})
    for side in (0, 1):
        for tokens in sides[side]:
            found: dict[str, Placement] = {}
            for axis, names in enumerate(tokens):
                inner = math.prod(sizes[n] for n in names)
                outermost = True
                for name in names:
                    inner //= max(sizes[name], 1)
                    if name in found:
                        raise RuleError(f"rule of {primitive!r}: factor {name!r} twice in one value")
                    found[name] = Placement(axis=axis, block=inner)
                    if not outermost:
                        hidden.add(name)
                    outermost = outermost and sizes[name] == 1
            for name in sizes:
                places[side][name].append(found.get(name))
    for name, reaching in windows:
        for k, placement in reaching:
            before, extra = placement.halo or (0, 0)
            places[0][name][k] = Placement(
                axis=placement.axis, block=int(placement.block), halo=(int(before), int(extra))
            )
    operands, results = ({n: tuple(p) for n, p in side.items()} for side in places)
    return sizes, operands, results, frozenset(hidden)


@lru_cache(maxsize=4096)
def _tokens(side: str, count: int) -> list[list[list[str]]]:
    """Split one side into values, axes and factor names; `_` becomes an axis without names."""
    values = side.split(",") if count else []
    if count and len(values) != count:
        raise RuleError(f"{side!r} names {len(values)} values, the equation has {count}")
    return [
        [(m[1].split() if m[1] is not None else [] if m[2] == WHOLE else [m[2]]) for m in _TOKEN.finditer(v)]
        for v in values
    ]


def _sizes(
    primitive: str, equation: str, own: tuple[tuple[str, int], ...], sides: tuple, shapes: tuple
) -> dict[str, int]:
    """Sizes of all factors, from the axes that hold one factor; then check the composed axes."""
    sizes = dict(own)
    composed = []
    for tokens_of, shapes_of in zip(sides, shapes, strict=True):
        for tokens, shape in zip(tokens_of, shapes_of, strict=True):
            if len(tokens) != len(shape):
                raise RuleError(f"rule of {primitive!r}: {equation!r} does not fit shape {tuple(shape)}")
            for names, extent in zip(tokens, shape, strict=True):
                if len(names) == 1:
                    if sizes.setdefault(names[0], extent) != extent:
                        raise RuleError(
                            f"rule of {primitive!r}: factor {names[0]!r} has sizes {sizes[names[0]]} and {extent} "
                            f"in {equation!r}"
                        )
                elif names:
                    composed.append((names, extent))
    for names, extent in composed:
        unknown = [n for n in names if n not in sizes]
        if unknown or math.prod(sizes[n] for n in names) != extent:
            raise RuleError(f"rule of {primitive!r}: axis ({' '.join(names)}) does not have size {extent}")
    return sizes


def tokens(names: Sequence[str | None]) -> str:
    """One value's part of a rule: its axes' names, None for an axis that stays whole."""
    return " ".join(WHOLE if n is None else n for n in names)


def axis_names(rank: int, prefix: str = "a") -> list[str]:
    """Names for the axes of a value of this rank: a0, a1, …"""
    return [f"{prefix}{k}" for k in range(rank)]


def inside(start: Any, most: int) -> Any:
    """Where a dynamic slice or update begins, moved inside as XLA does it, whatever integers it is counted in.

    Args:
      start: a scalar.
      most: the largest start that leaves it inside.

    Returns:
      An int32 scalar.
    """
    start = jnp.asarray(start)
    least = start.dtype.type(0)
    return lax.clamp(least, start, start.dtype.type(min(most, jnp.iinfo(start.dtype).max))).astype(np.int32)
