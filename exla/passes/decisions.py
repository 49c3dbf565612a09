"""Decisions: what a candidate is made of, as data that can be stored and replayed.

A candidate is a tuple of decisions. `Split` names its seed by site, not by object, so that it can be replayed
on a freshly traced program, in another process too. A replay that does not apply raises `ReplayMiss` with the
reason.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Any

from exla.ir.program import Site

KEPT = ("", "earlier loops", "the loops before the last")
"""What is not computed again, by `Growth.kept`."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How a region is grown from the axis that is cut.

    Attributes:
      small_bytes: values up to this size may stay whole.
      again: whether bigger values that equations outside want whole are computed there again, not stacked by the loop.
      exact: whether everything stays whole whose bits depend on where the chunks begin.
      online: whether sums go on with what their loop has so far of a maximum or mean, instead of waiting for the next.
      kept: 0, or how many loops ago something was computed that is not computed again: the loops stack the little that
        lets later ones do without.
    """

    small_bytes: int
    again: bool = False
    exact: bool = False
    online: bool = False
    kept: int = 0


@dataclass(frozen=True, kw_only=True)
class Split:
    """Cut one axis of one value into chunks, and everything that is cut with it.

    Attributes:
      path: (position, which body) of each loop or control-flow equation around the program that holds the value; () =
        the outermost program.
      site: the equation that makes the seed value; position -1 = it is an input.
      result: which result of the equation, or which input of the program.
      axis: the axis that is cut.
      small_bytes: values up to this size were allowed to stay whole when the region was grown.
      chunk: indices of the factor per trip.
      again: whether big values that equations outside want whole are computed there again.
    """

    path: tuple[tuple[int, int], ...]
    site: Site
    result: int
    axis: int
    growth: Growth
    chunk: int

    def __str__(self) -> str:
        where = _inside(self.path)
        again = ", online" if self.growth.online else ""
        again += ", computed again for what wants it whole" if self.growth.again else ""
        again += f", nothing of {KEPT[self.growth.kept]} computed again" if self.growth.kept else ""
        return f"split axis {self.axis} of {_value(self)}{where}, chunks of {self.chunk}{again}"


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Compute a big value inside the control flow that reads it, on every turn, or again in the `shard_map` that does.

    Attributes:
      path: as of a split.
      site: the control-flow equation.
      operand: which of its operands is computed inside.
      small_bytes: values up to this size were allowed to be computed before.
    """

    path: tuple[tuple[int, int], ...]
    site: Site
    operand: int
    small_bytes: int

    def __str__(self) -> str:
        return f"compute operand {self.operand} of equation {self.site.position}{_inside(self.path)} inside it"


@dataclass(frozen=True, kw_only=True)
class Share:
    """Compute what is cut along an axis that devices share out on each device's share, in a `shard_map`.

    Attributes:
      path: (): only what is in no loop is computed so.
      site: as of a split, with `result`, `axis` and `growth`.
      mesh: names and sizes of the axes of the devices' mesh.
      names: those along which the axis is shared out, the outermost first.
    """

    path: tuple[tuple[int, int], ...]
    site: Site
    result: int
    axis: int
    growth: Growth
    mesh: tuple[tuple[str, int], ...]
    names: tuple[str, ...]

    @property
    def other_axes(self) -> tuple[str, ...]:
        """The axes of the mesh along which the compiler may share out something inside."""
        return tuple(name for name, size in self.mesh if size > 1 and name not in self.names)

    def __str__(self) -> str:
        along = " and ".join(self.names)
        return f"compute axis {self.axis} of {_value(self)} on each device's share along {along}"


@dataclass(frozen=True, kw_only=True)
class Replace:
    """Compute what a rule's pattern matches by the rule's replacement.

    Attributes:
      path: as of a split.
      site: the equation that makes the pattern's results.
      rule: the rule's name.
    """

    path: tuple[tuple[int, int], ...]
    site: Site
    rule: str

    def __str__(self) -> str:
        return f"replace by rule {self.rule} at equation {self.site.position}{_inside(self.path)}"


@dataclass(frozen=True, kw_only=True)
class Arrange:
    """Transpose what a chunk loop multiplies whole once, before the loop, into the order in which it is multiplied.

    Attributes:
      path: as of a split.
      site: the loop's equation, after the splits.
      operand: which of its operands.
    """

    path: tuple[tuple[int, int], ...]
    site: Site
    operand: int

    def __str__(self) -> str:
        where = f"{self.site.position}{_inside(self.path)}"
        return f"transpose operand {self.operand} of the loop at equation {where} before it"


@dataclass(frozen=True, kw_only=True)
class Swap:
    """Multiply the operands of a matrix product in the other order, and transpose the result.

    Attributes:
      path: as of a split.
      site: the product.
    """

    path: tuple[tuple[int, int], ...]
    site: Site

    def __str__(self) -> str:
        return f"swap the operands of the product at equation {self.site.position}{_inside(self.path)}"


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Multiply what an operand of a matrix product is a transposed copy of.

    Attributes:
      path: as of a split.
      site: the product.
      operand: which of its operands.
    """

    path: tuple[tuple[int, int], ...]
    site: Site
    operand: int

    def __str__(self) -> str:
        which = f"operand {self.operand} of the product at equation {self.site.position}"
        return f"multiply {which}{_inside(self.path)} as it was before it was transposed"


@dataclass(frozen=True, kw_only=True)
class Store:
    """Keep a value that waits for a later reader in the host's memory, or in a narrower type.

    Attributes:
      path: as of a split.
      site: the equation that makes it.
      result: which of its results.
      how: "host" or "bfloat16".
      early: how many of the equations that read it, the first ones, read it as it was computed.
    """

    path: tuple[tuple[int, int], ...]
    site: Site
    result: int
    how: str
    early: int = 0

    def __str__(self) -> str:
        where = "in the host's memory" if self.how == "host" else f"as {self.how}, off by at most 0.4 %"
        return f"keep result {self.result} of equation {self.site.position}{_inside(self.path)} {where}"


@dataclass(frozen=True, kw_only=True)
class Seal:
    """Compute a value that is compared for equality by itself, so that chunks of it have the same bits in every loop.

    Attributes:
      path: as of a split; before any split, so that all on the way is the user's.
      site: the equation that makes it.
    """

    path: tuple[tuple[int, int], ...]
    site: Site

    def __str__(self) -> str:
        return f"compute equation {self.site.position}{_inside(self.path)} by itself, with the same bits in every loop"


@dataclass(frozen=True, kw_only=True)
class Distribute:
    """Make what follows from different comparisons for equality of values of its own.

    Attributes:
      path: as of a split; before any split, so that all on the way is the user's.
      site: the first of the comparisons.
    """

    path: tuple[tuple[int, int], ...]
    site: Site

    def __str__(self) -> str:
        where = f"{self.site.position}{_inside(self.path)}"
        return f"compute what equation {where} compares, and what later ones do, each by itself"


@dataclass(frozen=True, kw_only=True)
class Collect:
    """Make a big sum that a scan carries after it, of small rows that its turns compute.

    Attributes:
      path: as of a split.
      site: the scan.
      result: which of its results the sum is.
    """

    path: tuple[tuple[int, int], ...]
    site: Site
    result: int

    def __str__(self) -> str:
        return f"sum result {self.result} of equation {self.site.position}{_inside(self.path)} after it"


@dataclass(frozen=True, kw_only=True)
class Rematerialize:
    """Keep the least of a scan's turns of which the rest that it stacks can be computed again where it is read.

    Attributes:
      path: as of a split.
      site: the scan.
    """

    path: tuple[tuple[int, int], ...]
    site: Site

    def __str__(self) -> str:
        return f"compute again what equation {self.site.position}{_inside(self.path)} stacks where it is read"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Keep what the segments of a program begin with, and compute again, late, what is read late of what they compute.

    Attributes:
      path: as of a split.
      site: the last equation that is early; what comes after it is late.
      ends: the positions before which the segments end, at least one; the first begins with the program.
      small_bytes: values up to this size are kept.
    """

    path: tuple[tuple[int, int], ...]
    site: Site
    ends: tuple[int, ...]
    small_bytes: int

    def __str__(self) -> str:
        segments = f"{len(self.ends)} segment{'s' if len(self.ends) > 1 else ''}"
        where = f"equations 0 to {max((0, *self.ends)) - 1}{_inside(self.path)}"
        return f"checkpoint {where} in {segments}, computed again for what is after equation {self.site.position}"


Order = tuple[tuple[int, ...], ...]
"""Which factors are multiplied at each step, by position among those left; the product is put last (opt_einsum's)."""


@dataclass(frozen=True, kw_only=True)
class Reorder:
    """Evaluate a tree of products and sums in another order.

    Attributes:
      path: as of a split.
      site: the equation that makes the tree's result.
      order: the steps.
    """

    path: tuple[tuple[int, int], ...]
    site: Site
    order: Order

    def __str__(self) -> str:
        steps = " ".join("".join(("(", ",".join(map(str, step)), ")")) for step in self.order)
        return f"reorder the products of equation {self.site.position}{_inside(self.path)} as {steps}"


@dataclass(frozen=True, kw_only=True)
class CompileOption:
    """Compile with an XLA option set."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"compile option {self.name}={self.value!r}"


Rewrite = Replace | Reorder | Swap | Fold | Collect | Distribute | Seal
"""A decision that computes the same in another way, before anything is split."""
Change = Split | Share | Sink | Rematerialize | Checkpoint | Arrange | Store | Rewrite
"""A decision that changes the program."""
Decision = Change | CompileOption


def _value(decision: Split | Share) -> str:
    """What is cut, in words: what an equation computes, or one of the program's inputs."""
    position = decision.site.position
    return f"equation {position}" if position >= 0 else f"input {decision.result}"


def _inside(path: tuple[tuple[int, int], ...]) -> str:
    return "".join(f" in body {which} of equation {position}" for position, which in reversed(path))


def to_json(decision: Decision) -> dict[str, Any]:
    """A decision as plain data."""
    return {"kind": type(decision).__name__, **asdict(decision)}


def from_json(data: Any) -> Decision:
    """A decision from plain data.

    Raises:
      ValueError: if it is not one: of no known kind, or with fields that are missing, unknown or of another type.
    """
    kinds = {kind.__name__: kind for kind in typing.get_args(Decision)}
    named = data.get("kind") if isinstance(data, Mapping) else None
    kind = kinds.get(named) if isinstance(named, str) else None
    if kind is None:
        raise ValueError(f"not a decision: {data!r}; kinds are {', '.join(sorted(kinds))}")
    try:
        made: Decision = _read(kind, {k: v for k, v in data.items() if k != "kind"}, "")
    except ValueError as error:
        raise ValueError(f"not a decision: {error} in {data!r}") from error
    return made


def _read(kind: Any, data: Any, name: str) -> Any:
    """What a field of some type holds, from plain data: a number, a string, a tuple, or a class with such fields."""
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(data, Mapping):
            raise ValueError(f"{name}={data!r} is no {kind.__name__}")
        types, needed = typing.get_type_hints(kind), {f.name for f in fields(kind) if f.default is MISSING}
        if data.keys() - types.keys() or needed - data.keys():
            raise ValueError(f"the fields of {kind.__name__} are {', '.join(types)}")
        return kind(**{field: _read(types[field], value, field) for field, value in data.items()})
    if typing.get_origin(kind) is not tuple:
        if type(data) is not kind:
            raise ValueError(f"{name}={data!r} is no {kind.__name__}")
        return data
    parts = typing.get_args(kind)
    count = len(data) if isinstance(data, list | tuple) else -1
    if count < 0 or parts[-1] is not Ellipsis and count != len(parts):
        raise ValueError(f"{name}={data!r} is no list of {len(parts)}" if count >= 0 else f"{name}={data!r} is no list")
    of = parts[:1] * count if parts[-1] is Ellipsis else parts
    return tuple(_read(part, value, name) for part, value in zip(of, data, strict=True))
