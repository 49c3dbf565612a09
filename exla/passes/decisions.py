"""Decisions: what a candidate is made of, as data that can be stored and replayed.

A candidate is a tuple of decisions. `Split` names its seed by site, not by object, so that it can be replayed
on a freshly traced program, in another process too. A replay that does not apply raises `ReplayMiss` with the
reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from exla.ir.program import Site


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How a region is grown from the axis that is cut.

    Attributes:
      small_bytes: values up to this size may stay whole.
      again: whether bigger values that equations outside want whole are computed there again, not stacked by the loop.
      exact: whether everything stays whole whose bits depend on where the chunks begin.
      online: whether sums go on with what their loop has so far of a maximum or mean, instead of waiting for the next.
    """

    small_bytes: int
    again: bool = False
    exact: bool = False
    online: bool = False


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
        return f"split axis {self.axis} of equation {self.site.position}{where}, chunks of {self.chunk}{again}"


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
        return f"compute axis {self.axis} of equation {self.site.position} on each device's share along {along}"


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


Rewrite = Replace | Reorder | Swap | Seal
"""A decision that computes the same in another way, before anything is split."""
Change = Split | Share | Sink | Arrange | Store | Rewrite
"""A decision that changes the program."""
Decision = Change | CompileOption


_SITED: dict[str, Any] = {kind.__name__: kind for kind in (Sink, Arrange, Store, Replace, Swap, Seal)}
"""The kinds that are nothing but a site and plain fields."""


def _inside(path: tuple[tuple[int, int], ...]) -> str:
    return "".join(f" in body {which} of equation {position}" for position, which in reversed(path))


def to_json(decision: Decision) -> dict[str, Any]:
    """A decision as plain data."""
    return {"kind": type(decision).__name__, **asdict(decision)}


def from_json(data: Mapping[str, Any]) -> Decision:
    """A decision from plain data.

    Raises:
      ValueError: if it is not one.
    """
    fields = {k: v for k, v in data.items() if k != "kind"}
    for name in ("result", "axis", "chunk", "operand", "early"):
        if name in fields and (not isinstance(fields[name], int) or isinstance(fields[name], bool)):
            raise ValueError(f"not a decision: {name}={fields[name]!r} is no number of something in {data!r}")
    if not isinstance(fields.get("how", ""), str):
        raise ValueError(f"not a decision: how={fields['how']!r} is no way to keep a value in {data!r}")
    try:
        if data.get("kind") == "CompileOption":
            if not all(isinstance(text, str) for text in fields.values()):
                raise ValueError(f"not a decision: {data!r}; name and value are strings")
            return CompileOption(**fields)
        if data.get("kind") in ("Split", "Share", "Sink", "Arrange", "Store", "Replace", "Reorder", "Swap", "Seal"):
            site = Site(**fields.pop("site"))
            path = tuple((int(i), int(k)) for i, k in fields.pop("path"))
            if data["kind"] in _SITED:
                return _SITED[data["kind"]](site=site, path=path, **fields)
            if data["kind"] == "Reorder":
                order = tuple(tuple(int(k) for k in step) for step in fields.pop("order"))
                return Reorder(site=site, path=path, order=order, **fields)
            growth = Growth(**fields.pop("growth"))
            if data["kind"] == "Share":
                mesh = tuple((str(name), int(size)) for name, size in fields.pop("mesh"))
                names = tuple(str(name) for name in fields.pop("names"))
                return Share(site=site, path=path, growth=growth, mesh=mesh, names=names, **fields)
            return Split(site=site, path=path, growth=growth, **fields)
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a decision: {data!r} ({error})") from error
    kinds = "Arrange, CompileOption, Reorder, Replace, Seal, Share, Sink, Split, Store, Swap"
    raise ValueError(f"not a decision: {data!r}; kinds are {kinds}")
