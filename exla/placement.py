"""Where the arguments and results of a call live.

`jax.jit` learns it from four places: `in_shardings`, `out_shardings`, `device`, and arguments that are committed to a
device. A program that is split is another function of flat arrays, so it has to be told again:

    place = placement({"out_shardings": on_3}, leaves, (args, kwargs), out_tree)
    place.arguments, place.results, place.devices      # (None, None), (on_3,), {device 3}

On several devices a program is planned as one, each device holding its share. What they share out already (`spread`) is
cut inside the shares only; what is chosen makes them exchange data no more often than the plain program does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding

from exla.errors import ExlaError, Holder, MemoryLimitError
from exla.ir.explicit import explicit_mesh, is_all_explicit, is_explicit, over_auto, why_typed
from exla.ir.spread import Spread, spreads_of
from exla.options import Options
from exla.search.choice import PLAIN, Call, Choice, Tried
from exla.search.cost import projected
from exla.search.driver import limit_of
from exla.targets.base import TARGETS, Target, find_target


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What is said about where a call runs.

    Attributes:
      arguments: for each flat argument its sharding, or None where nothing is said.
      results: likewise.
      devices: every device that is named.
      unknown: a sharding that is no `Sharding`, such as a layout; None where there is none.
      typed: why types that say how values are shared out cannot be forgotten; None where they can.
      has_references: whether the call reads or writes a `jax.Ref` of its caller's, which no chunk loop may write.
    """

    arguments: tuple[Sharding | None, ...]
    results: tuple[Sharding | None, ...]
    devices: frozenset[Any] = frozenset()
    unknown: Any = None
    typed: str | None = None
    has_references: bool = False

    @property
    def whole_because(self) -> str | None:
        """Why a program that is placed so cannot be split; None where it can."""
        if self.has_references:
            only = "programs that read or write a jax.Ref of their caller's are not split"
            return f"{only}. Raise memory_limit, or take and return arrays"
        if self.typed is not None:
            return f"{self.typed}. Raise memory_limit, or make the mesh with Auto axes"
        if self.unknown is not None:
            only = f"split programs take shardings only, not {self.unknown!r}"
            return f"{only}. Raise memory_limit, or say it with shardings"
        return None

    @property
    def planned(self) -> tuple[Sharding | None, ...]:
        """For each flat argument its sharding over a mesh with Auto axes: split programs have no types that say it."""
        return tuple(map(over_auto, self.arguments))

    @property
    def has_types(self) -> bool:
        """Whether types say where some arguments or results are."""
        return any(map(is_explicit, (*self.arguments, *self.results)))

    @property
    def spread(self) -> dict[tuple[int, int], Spread]:
        """(argument, axis) -> how several devices share it out."""
        return {
            (k, axis): spread
            for k, s in enumerate(self.planned)
            if isinstance(s, NamedSharding)
            for axis, spread in spreads_of(s).items()
        }

    def brought(self, leaves: Sequence[Any]) -> list[Any]:
        """The flat arguments, those that are committed elsewhere brought to where they are wanted, as by jax.jit."""
        return [
            x if s is None or committed(x) in (None, s) else jax.device_put(x, s)
            for x, s in zip(leaves, self.arguments, strict=True)
        ]


def placement(
    jit_arguments: Mapping[str, Any], leaves: Sequence[Any], arguments: tuple[tuple, dict[str, Any]], out_tree: Any
) -> Placement:
    """Read the placement of one signature.

    Args:
      jit_arguments: what `jax.jit` was given.
      leaves: flat arguments: arrays or ShapeDtypeStructs.
      arguments: the same as they are passed, without static ones: positional and keyword arguments.
      out_tree: the tree of the results.
    """
    device = _named_device(jit_arguments)
    if device is not None:
        here = SingleDeviceSharding(device)
        return Placement(
            arguments=(here,) * len(leaves),
            results=(here,) * out_tree.num_leaves,
            devices=frozenset({device}),
        )
    inputs = _spread(jit_arguments.get("in_shardings"), arguments[0])
    inputs += [None] * (len(leaves) - len(inputs))  # keyword arguments have no in_shardings
    given = tuple(s if s is not None else committed(x) for s, x in zip(inputs, leaves, strict=True))
    results = tuple(
        _spread(jit_arguments.get("out_shardings"), jax.tree.unflatten(out_tree, [0] * out_tree.num_leaves))
    )
    said = [s for s in (*given, *results) if s is not None]
    return Placement(
        arguments=given,
        results=results,
        devices=frozenset(d for s in said if isinstance(s, Sharding) for d in s.device_set),
        unknown=next((s for s in said if not isinstance(s, Sharding)), None),
    )


def target_of(name: str | None, jit_arguments: Mapping[str, Any], leaves: Sequence[Any]) -> Target:
    """What a call is compiled for: the target of a name, else that of the devices that its placement names.

    Args:
      name: of the target; None where the user says nothing.
      jit_arguments: what `jax.jit` was given.
      leaves: flat arguments: arrays or ShapeDtypeStructs.

    Raises:
      ExlaError: if the call is placed on devices of another kind. Single arguments that lie elsewhere are no reason
        where the target is not attached: what is compiled then does not run on them.
    """
    said = _named_devices(jit_arguments)
    placed = [s.device_set for x in leaves if isinstance(s := committed(x), Sharding)]
    devices = said.union(*placed)
    found = find_target(name)
    if all(map(found.has, devices)):
        return found
    if name is None:
        for other in map(TARGETS.get, TARGETS):
            if all(map(other.has, devices)) and (":" in other.name or other.attached()):
                return other
    single = all(len(one) == 1 for one in placed if not all(map(found.has, one)))
    if not found.attached() and all(map(found.has, said)) and single:
        return found
    kinds = ", ".join(sorted({f"{d.platform} ({d.device_kind})" for d in devices if not found.has(d)}))
    raise ExlaError(
        f"this call is placed on {kinds}, and is to be compiled for {found.name}: give arguments, shardings and "
        "devices of that target, or ShapeDtypeStructs without a sharding, or leave target out"
    )


def _named_devices(jit_arguments: Mapping[str, Any]) -> frozenset[Any]:
    """The devices that arguments of `jax.jit` name."""
    device = _named_device(jit_arguments)
    shardings = jax.tree.leaves([jit_arguments.get(name) for name in ("in_shardings", "out_shardings")])
    found = frozenset(d for s in shardings if isinstance(s, Sharding) for d in s.device_set)
    return found if device is None else found | {device}


def _named_device(jit_arguments: Mapping[str, Any]) -> Any:
    """The one device that `device` or `backend` names; None where neither does."""
    device, backend = jit_arguments.get("device"), jit_arguments.get("backend")
    return jax.devices(backend)[0] if device is None and backend is not None else device


def with_results_typed(place: Placement, closed: Any, compile_plain: Callable[[], Any]) -> Placement:
    """The placement of a program over a mesh with Explicit axes, its results told where their types say they are.

    Args:
      place: what is said about it.
      closed: the program as it was traced, a ClosedJaxpr.
      compile_plain: compiles it as `jax.jit` does, which decides where results are of which no type says it.

    Returns:
      The same placement where no axes are Explicit.
    """
    mesh = explicit_mesh((*place.arguments, *place.results))
    if mesh is None:
        return place
    types: list[Any] = [getattr(aval, "sharding", None) for aval in closed.out_avals]
    why = why_typed(closed.jaxpr)
    if why is not None:
        return replace(place, typed=why)
    results: list[Any] = [
        NamedSharding(mesh, t.spec) if s is None and is_explicit(t) and t.mesh == mesh.abstract_mesh else s
        for s, t in zip(place.results, types, strict=True)
    ]
    if None in results or not is_all_explicit(mesh):
        decided = jax.tree.leaves(compile_plain().output_shardings)
        results = [d if s is None or is_explicit(s) else s for s, d in zip(results, decided, strict=True)]
    return replace(place, results=tuple(results), devices=place.devices | set(mesh.devices.flat))


def committed(x: Any) -> Sharding | None:
    """The sharding of an argument that is committed to it, as arrays after `device_put` are."""
    if isinstance(x, jax.core.Tracer):
        return None
    if isinstance(x, jax.Array):
        return x.sharding if x.committed else None
    return getattr(x, "sharding", None) if isinstance(x, jax.ShapeDtypeStruct) else None


def _spread(prefix: Any, tree: Any) -> list[Any]:
    """A prefix of a tree, spread over its leaves; None where nothing is said."""
    if isinstance(prefix, list) and isinstance(tree, tuple):
        prefix = tuple(prefix)
    filled = jax.tree.broadcast(prefix, tree, is_leaf=lambda x: x is None)
    return list(jax.tree.structure(tree).flatten_up_to(filled))


def whole(call: Call, target: Target, options: Options, place: Placement) -> Choice:
    """Use a program that cannot be split as `jax.jit` compiles it.

    Args:
      call: the traced call.
      target: what compiles it.
      options: the user's options; the limit is that of each device.
      place: the placement that forbids splitting.

    Raises:
      MemoryLimitError: if the program does not obey the limit so.
      ExlaError: if values above a size are to be split.
    """
    start = time.perf_counter()
    machine = target.machine()
    limit = limit_of(options, target)
    compiled = call.compile_plain()
    counted = target.compiled_bytes(compiled)
    because = str(place.whole_because)
    if counted.total > limit:
        all_of_it = Holder(bytes=counted.total, name="the program, as jax.jit compiles it", source="", blocked=because)
        raise MemoryLimitError(limit_bytes=limit, smallest_peak_bytes=counted.total, holders=(all_of_it,))
    if options.tensor_size_threshold is not None or options.tensor_split_size is not None:
        raise ExlaError(f"this program needs splitting, for it is to be split above a size. But {because}")
    return Choice(
        compiled=compiled,
        untouched=True,
        decisions=(),
        program=call.program,
        project=cache(partial(projected, call.program, machine)),
        compiled_bytes=counted,
        limit_bytes=limit,
        machine=machine,
        tried=(Tried(what=PLAIN, untouched=True, compiled_bytes=counted),),
        search_s=time.perf_counter() - start,
    )
