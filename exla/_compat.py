"""The only file that touches JAX internals or knows what JAX changes between releases.

Everything else in exla uses JAX's public names. What lives here: binding an equation again under its own
source line and context, finding the user's line of an equation, the names under which calls are inlined, and
making primitives.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import (
    api_util,
    checkify,
    compilation_cache,
    config,
    core,
    linear_util,
    literals,
    pjit,
    source_info_util,
    tree_util,
)
from jax._src.compilation_cache_interface import CacheInterface
from jax._src.interpreters import partial_eval, pxla
from jax._src.lax import lax
from jax._src.lib import _jax, xla_client
from jax._src.random import core as random_core
from jax._src.state.types import AbstractRef
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core as jex_core
from jax.extend.random import threefry2x32_p
from jax.interpreters import ad, batching, mlir

source_info_util.register_exclusion(str(Path(__file__).parent))  # the user's line is never one of exla's

INLINED_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "exla_call": "jaxpr",
    "custom_linear_solve": "jaxprs",
}
"""Primitive name -> the parameter that holds the called jaxpr, for every call that tracing flattens."""

ClosedJaxpr = jex_core.ClosedJaxpr
Jaxpr = jex_core.Jaxpr
JaxprEqn = jex_core.JaxprEqn
Literal = jex_core.Literal
Primitive = jex_core.Primitive
Var = jex_core.Var

JITTED = ("jit", "pjit")
"""Calls that mean nothing but what they call."""


def called_jaxpr(eqn: Any) -> tuple[Any, Sequence[Any], Sequence[int]] | None:
    """Return (jaxpr, its constants, positions of its operands) of a call that can be inlined, else None."""
    key = INLINED_CALLS.get(eqn.primitive.name)
    if key is None or key not in eqn.params:
        return None
    called = eqn.params[key]
    positions: Sequence[int] = range(len(eqn.invars))
    if eqn.primitive.name == "custom_linear_solve":
        # Once nothing is differentiated any more, it is its solver: the constants of that, and the right-hand sides.
        called, lengths = called.solve, eqn.params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        positions = [*range(first, first + lengths.solve), *range(sum(lengths), len(eqn.invars))]
    if isinstance(called, ClosedJaxpr):
        return called.jaxpr, called.consts, positions
    if isinstance(called, Jaxpr) and not called.constvars:
        return called, (), positions
    return None


def opened(eqn: Any) -> Any | None:
    """What a library's own primitive computes, as a closed jaxpr; None of JAX's own, and where that is not known.

    Libraries define primitives for the sake of a rule, of differentiation above all: lineax's `linear_solve` and those
    of equinox. What such a primitive does outside a trace is mostly a function of JAX's, which can be traced.
    """
    primitive, function = eqn.primitive, eqn.primitive.impl
    while (inner := getattr(function, "func", None) or getattr(function, "__wrapped__", None)) is not None:
        function = inner
    if eqn.effects or (getattr(function, "__module__", None) or "jax").partition(".")[0] in ("jax", "exla"):
        return None
    try:
        closed = jax.make_jaxpr(lambda *values: primitive.impl(*values, **eqn.params))(*(v.aval for v in eqn.invars))
    except Exception:  # the library's own, which need not work under a trace
        return None
    results = (closed.jaxpr.outvars, eqn.outvars)
    made, wanted = ([(v.aval.shape, v.aval.dtype) for v in found] for found in results)
    is_other = all(inner.primitive is not primitive for inner in closed.jaxpr.eqns)
    return closed if made == wanted and is_other else None


def computes_again(jaxpr: Any) -> bool:
    """Whether a program computes something again on purpose: the backward pass of what `jax.checkpoint` wraps."""
    for eqn in jaxpr.eqns:
        called = called_jaxpr(eqn)
        if called is not None and (eqn.params.get("differentiated") or computes_again(called[0])):
            return True
    return False


def default_platform() -> str:
    """The name under which programs are lowered for the default device: "cpu", "cuda", "rocm" or "tpu"."""
    device = jax.devices()[0]
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version else "cuda"


def is_plugin_loaded(platform: str) -> bool:
    """Whether JAX has loaded the compiler plugin of a platform."""
    return bool(_jax.pjrt_plugin_loaded(platform))


def version_of(distribution: str) -> str:
    """The version of an installed distribution; "" where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def platform_branch(eqn: Any, platform: str) -> Any | None:
    """The closed jaxpr that a `lax.platform_dependent` runs on a platform; None for every other equation."""
    platforms = eqn.params.get("branches_platforms") if eqn.primitive.name == "cond" else None
    if platforms is None:
        return None
    chosen = [k for k, names in enumerate(platforms) if names is None or platform in names]
    return eqn.params["branches"][chosen[0]] if chosen else None


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The jaxprs among an equation's parameters (bodies of scan, while, cond, …)."""
    found = []
    for value in eqn.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, Jaxpr):
                found.append(item)
    return found


CONTROL_FLOW = {
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
    "exla_unless": ("otherwise",),
    "exla_sealed": ("body",),
    "shard_map": ("jaxpr",),
}
"""Primitive name -> the parameters that hold the jaxprs of its bodies."""


def bodies(eqn: Any) -> list[Any]:
    """The closed jaxprs that a control-flow equation runs, in a fixed order; empty for every other equation."""
    return bodies_of(eqn.primitive.name, eqn.params)


def bodies_of(primitive: str, params: Any) -> list[Any]:
    """`bodies` of an equation of which only the primitive's name and the parameters are at hand."""
    found: list[Any] = []
    if primitive == "shard_map" and (params["check_vma"] or not _has_auto_axes(params["mesh"])):
        return found  # types of values say what they vary over, or how they are shared out, which passes do not know
    for key in CONTROL_FLOW.get(primitive, ()):
        value = params[key]
        found += value if isinstance(value, (tuple, list)) else [value]
    return [close(body) for body in found] if primitive == "shard_map" else found


def with_bodies(eqn: Any, changed: Sequence[Any]) -> dict[str, Any]:
    """The parameters of a control-flow equation that runs other closed jaxprs, given in the order of `bodies`."""
    return {**eqn.params, **body_params(eqn.primitive.name, eqn.params, changed)}


def body_params(primitive: str, params: Any, changed: Sequence[Any]) -> dict[str, Any]:
    """The parameters that hold the bodies of an equation, for other closed jaxprs in the order of `bodies`.

    That of a shard_map holds no constants.
    """
    rest = list(changed)
    found: dict[str, Any] = {}
    for key in CONTROL_FLOW[primitive]:
        count = len(params[key]) if isinstance(params[key], (tuple, list)) else 0
        found[key] = tuple(rest.pop(0) for _ in range(count)) if count else rest.pop(0)
    if primitive == "shard_map":
        found["jaxpr"] = found["jaxpr"].jaxpr
    return found


KNOW_VARYING = frozenset(
    {
        *("all_gather_invariant", "all_gather_reduced", "all_gather_reduced_start", "pcast", "preduced", "shard_map"),
        *("reduced_vary_cast", "reduced_vary_cast_p", "unreduced_pmax", "unreduced_pmin", "unreduced_psum"),
        *("unreduced_psum_start", "unreduced_reduce_scatter", "unreduced_reduce_scatter_start", "vary_unreduced_cast"),
        *("vary_unreduced_cast_p", "psum_invariant_start", "psum_start"),
    }
)
"""Primitives that ask which mesh axes a value varies over, or may."""


def shares(eqn: Any) -> int:
    """Among how many devices an equation shares out what its body computes; 1 where it does not."""
    if eqn.primitive.name != "shard_map":
        return 1
    return math.prod(eqn.params["mesh"].shape[name] for name in eqn.params["newly_manual_axes"])


def devices_of(jaxpr: Any) -> int:
    """How many devices the shard maps of a program say that it runs on; 1 where there are none."""
    found = [1]
    for eqn in jaxpr.eqns:
        found += [eqn.params["mesh"].size] if eqn.primitive.name == "shard_map" else []
        found += map(devices_of, inner_jaxprs(eqn))
    return max(found)


@contextlib.contextmanager
def axes_inside(eqn: Any) -> Iterator[None]:
    """Let collectives in the body of a shard_map be traced by themselves; every other equation changes nothing."""
    if eqn.primitive.name != "shard_map":
        yield
        return
    names = eqn.params["newly_manual_axes"]
    with core.extend_axis_env_nd([(k, size) for k, size in eqn.params["mesh"].shape.items() if k in names]):
        yield


def acts(eqn: Any) -> bool:
    """Whether an equation does something besides computing and exchanging data, inside what it runs too."""
    return any(not isinstance(e, core.NamedAxisEffect) for e in eqn.effects)


def happens_once(eqn: Any) -> bool:
    """Whether devices exchange data for an equation, or it acts: it is not to be computed again."""
    return eqn.primitive.name != "axis_index" and bool(eqn.effects)


def one_for_each_shard(eqn: Any) -> Any:
    """How values are shared out of which every device of a shard_map holds one, along their first axis."""
    return jax.sharding.PartitionSpec(
        tuple(n for n in eqn.params["mesh"].axis_names if n in eqn.params["newly_manual_axes"])
    )


def can_forget_varying(eqn: Any) -> bool:
    """Whether a shard_map can be traced again without types that say what values vary over: nothing else knows it."""
    if eqn.primitive.name != "shard_map" or not _has_auto_axes(eqn.params["mesh"]):
        return False
    jaxprs = [eqn.params["jaxpr"]]
    while jaxprs:
        for inner in jaxprs.pop().eqns:
            if inner.primitive.name in KNOW_VARYING:
                return False
            jaxprs += inner_jaxprs(inner)
    return True


def _has_auto_axes(mesh: Any) -> bool:
    """Whether no axis of a mesh is part of the types of arrays."""
    return all(kind == jax.sharding.AxisType.Auto for kind in mesh.axis_types)


def is_explicit(mesh: Any) -> bool:
    """Whether some axes of a mesh are part of the types of arrays."""
    return jax.sharding.AxisType.Explicit in mesh.axis_types


def is_all_explicit(mesh: Any) -> bool:
    """Whether all axes of a mesh are part of the types of arrays, so that types say where arrays are."""
    return all(kind == jax.sharding.AxisType.Explicit for kind in mesh.axis_types)


def with_auto_axes(mesh: Any) -> Any:
    """The same mesh, those of its axes that are part of types left to the compiler."""
    kinds = jax.sharding.AxisType
    if isinstance(mesh, jax.sharding.Mesh):
        return jax.sharding.Mesh(mesh.devices, mesh.axis_names)
    named = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return mesh.update_axis_types({name: kinds.Auto for name, kind in named if kind == kinds.Explicit})


def over_auto_axes(eqn: Any) -> Any:
    """A shard_map over the same mesh, none of whose axes is part of types; every other equation as it is."""
    if eqn.primitive.name != "shard_map" or not is_explicit(eqn.params["mesh"]):
        return eqn
    return eqn.replace(params={**eqn.params, "mesh": with_auto_axes(eqn.params["mesh"])})


def can_change_axes(eqn: Any) -> bool:
    """Whether a shard_map over axes that are part of types means the same over others: its body has no such types."""
    manual = eqn.params["newly_manual_axes"] == frozenset(eqn.params["mesh"].axis_names)
    return manual or can_forget_varying(over_auto_axes(eqn))


def is_unreduced(sharding: Any) -> bool:
    """Whether a sharding says that values are still to be summed over devices, or were."""
    return bool(sharding is not None and (sharding.spec.unreduced or sharding.spec.reduced))


def explicit_mesh() -> Any:
    """The mesh of `jax.set_mesh` under which the caller runs, where axes of it are part of types; else None."""
    if not is_explicit(jax.sharding.get_abstract_mesh()):
        return None
    return jax.sharding.get_mesh()


@contextlib.contextmanager
def under_mesh(mesh: Any) -> Iterator[None]:
    """Run what follows as under `jax.set_mesh(mesh)`; None = under whatever is set, but for axes that types know."""
    if mesh is not None:
        with jax.set_mesh(mesh):
            yield
    elif explicit_mesh() is not None:
        with jax.set_mesh(None):
            yield
    else:
        yield


def without_mesh(x: Any) -> Any:
    """A value; a literal that was traced under a mesh without it in its type."""
    if not isinstance(x, literals.TypedNdArray) or x.aval.sharding.mesh.empty:
        return x
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return literals.TypedNdArray(x.val, core.ShapedArray(x.shape, x.dtype, weak_type=x.weak_type))


def is_under_no_mesh() -> bool:
    """Whether the caller runs under no mesh at all."""
    return jax.sharding.get_abstract_mesh().empty


def has_meshes(jaxpr: Any) -> bool:
    """Whether the type of an input, a result or a literal of a jaxpr's equations names a mesh."""
    atoms = (v for eqn in jaxpr.eqns for v in (*eqn.invars, *eqn.outvars))
    avals = (v.aval for v in (*jaxpr.constvars, *jaxpr.invars, *atoms))
    return any(not sharding.mesh.empty for a in avals if (sharding := getattr(a, "sharding", None)) is not None)


@contextlib.contextmanager
def _under_no_mesh() -> Iterator[None]:
    """Run what follows under no mesh but that of a shard_map, none of whose axes is part of types.

    An equation that was traced under one can so be evaluated in the shard_map that a pass makes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    is_mapped = jax.sharding.AxisType.Manual in mesh.axis_types
    if mesh.empty or is_mapped and not is_explicit(mesh):
        yield
        return
    with jax.sharding.use_abstract_mesh(with_auto_axes(mesh) if is_mapped else jax.sharding.AbstractMesh((), ())):
        yield


def without_varying(eqn: Any, operands: Sequence[Any]) -> list[Any] | None:
    """Evaluate an equation that says what a value varies over where that is not asked; None for every other one."""
    if eqn.primitive.name == "pvary":
        return list(operands)
    if eqn.primitive.name == "psum_invariant":
        return [jax.lax.psum(x, eqn.params["axes"]) for x in operands]
    return None


def map_over_shards(
    eqn: Any,
    operands: Sequence[Any],
    run: Callable[..., list[Any]],
    in_specs: Sequence[Any] | None = None,
    out_specs: Sequence[Any] | None = None,
    source: Any = None,
) -> list[Any]:
    """Evaluate a shard_map with another function of the shards, without checking what its results vary over.

    Args:
      eqn: the equation.
      operands: what is shared out.
      run: from the shards to those of the results.
      in_specs: how the operands are shared out, where it is not as before.
      out_specs: likewise the results.
      source: replaces its source line, where it is not None.
    """
    with equation_context(eqn, source):
        mapped = jax.shard_map(
            lambda *shards: tuple(run(*shards)),
            mesh=eqn.params["mesh"],
            in_specs=tuple(eqn.params["in_specs"] if in_specs is None else in_specs),
            out_specs=tuple(eqn.params["out_specs"] if out_specs is None else out_specs),
            axis_names=eqn.params["newly_manual_axes"],
            check_vma=False,
        )
        return list(mapped(*operands))


def share_out(
    operands: Sequence[Any],
    run: Callable[..., list[Any]],
    *,
    mesh: Sequence[tuple[str, int]],
    names: Sequence[str],
    taken: Sequence[int | None],
    left: Sequence[int | None],
) -> list[Any]:
    """Evaluate a function on each device's share, in a shard_map over a mesh of whatever devices the program runs on.

    Args:
      operands: what is shared out.
      run: from the shares to those of the results.
      mesh: names and sizes of the mesh's axes.
      names: those along which something is shared out; the others are the compiler's.
      taken: along which axis each operand is shared out; None = every device has it whole.
      left: likewise the results; None = every device has the same.
    """
    kinds = (jax.sharding.AxisType.Auto,) * len(mesh)
    over = jax.sharding.AbstractMesh(tuple(n for _, n in mesh), tuple(name for name, _ in mesh), axis_types=kinds)
    under = jax.sharding.get_abstract_mesh()  # the user's, which knows devices too
    over = under if (under.shape_tuple, under.axis_types) == (over.shape_tuple, kinds) else over

    def spec(axis: int | None) -> Any:
        return jax.sharding.PartitionSpec(*(() if axis is None else (*(None,) * axis, tuple(names))))

    mapped = jax.shard_map(
        lambda *shares: tuple(run(*shares)),
        mesh=over,
        in_specs=tuple(map(spec, taken)),
        out_specs=tuple(map(spec, left)),
        axis_names=frozenset(names),
        check_vma=False,
    )
    return list(mapped(*operands))


def shared_results(eqn: Any) -> dict[tuple[int, int], tuple[tuple[tuple[str, int], ...], tuple[str, ...]]]:
    """(result, axis) of a shard_map that is shared out -> names and sizes of its mesh's axes, and those it is along.

    Empty where the mesh has axes that are part of the types of arrays.
    """
    mesh = eqn.params["mesh"]
    if not _has_auto_axes(mesh):
        return {}
    found = {}
    for k, spec in enumerate(eqn.params["out_specs"]):
        for axis, names in enumerate(spec):
            along = mesh_axes(names)
            if along:
                found[k, axis] = (tuple(mesh.shape.items()), along)
    return found


def without_shardings(eqn: Any) -> dict[str, Any]:
    """Parameters that say how a result lies on a mesh whose axes the compiler shares out, which is nothing, as None."""
    if eqn.primitive.name == "sharding_constraint":
        return {}
    return {
        name: None
        for name in ("sharding", "out_sharding")
        if isinstance(said := eqn.params.get(name), jax.sharding.NamedSharding)
        and _has_auto_axes(said.mesh)
        and not any(said.spec)
    }


def mesh_axes(names: Any) -> tuple[str, ...]:
    """The mesh axes of one entry of a PartitionSpec."""
    return names if isinstance(names, tuple) else (names,) if isinstance(names, str) else ()


def scan_counts(params: Any, operands: int) -> tuple[int, int]:
    """How many of a scan's operands are constants of its body, and how many its carry; the rest are its rows."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].update(range(operands)).unpack()
    return len(list(consts)), len(list(carry))


def scan_options(eqn: Any) -> dict[str, Any]:
    """How a scan runs, as keywords of `jax.lax.scan`."""
    return {name: eqn.params[name] for name in ("length", "reverse", "unroll")}


def rows_of_scan(eqn: Any) -> range:
    """Positions of a scan's operands of which each turn reads a row; of every other equation none."""
    if eqn.primitive.name != "scan":
        return range(0)
    return range(sum(scan_counts(eqn.params, len(eqn.invars))), len(eqn.invars))


def stacked_by_scan(eqn: Any) -> range:
    """Positions of a scan's results of which each turn makes a row; of every other equation none."""
    if eqn.primitive.name != "scan":
        return range(0)
    return range(scan_counts(eqn.params, len(eqn.invars))[1], len(eqn.outvars))


def read_by_turns(eqn: Any) -> range:
    """Positions of a scan's operands of which each turn reads a row; of every other equation none."""
    if eqn.primitive.name != "scan":
        return range(0)
    return range(sum(scan_counts(eqn.params, len(eqn.invars))[:2]), len(eqn.invars))


def rows_of_gather(eqn: Any) -> tuple[int, ...]:
    """The axes of what a gather makes along which it copies whole slices."""
    return tuple(eqn.params["dimension_numbers"].offset_dims)


def constants_of_bodies(eqn: Any) -> range:
    """Positions of a control-flow equation's operands that its bodies only read, the same on every turn."""
    params = eqn.params
    if eqn.primitive.name == "scan":
        return range(scan_counts(params, len(eqn.invars))[0])
    if eqn.primitive.name == "while":
        return range(params["cond_nconsts"] + params["body_nconsts"])
    return range(1, len(eqn.invars)) if eqn.primitive.name == "cond" else range(0)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """How one body of a control-flow equation is handed its inputs, and where its results go.

    Attributes:
      body: the closed jaxpr.
      takes: which operand of the equation each input is, on the first turn.
      becomes: which operand each result stands for on the next turn; None where it is none.
      gives: which result of the equation each result is; None where it only says how to go on.
    """

    body: Any
    takes: Sequence[int]
    becomes: Sequence[int | None]
    gives: Sequence[int | None]


def turns(eqn: Any) -> list[Turn]:
    """The bodies of a control-flow equation with what goes in and comes out; of every other equation, none."""
    params, count, results = eqn.params, len(eqn.invars), range(len(eqn.outvars))
    found = bodies(eqn)
    if eqn.primitive.name == "scan":
        consts, carry = scan_counts(params, count)
        becomes = [consts + k if k < carry else None for k in results]
        return [Turn(body=found[0], takes=range(count), becomes=becomes, gives=results)]
    if eqn.primitive.name == "while":
        first, consts = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        condition = Turn(body=found[0], takes=[*range(first), *range(consts, count)], becomes=[None], gives=[None])
        takes, becomes = range(first, count), [consts + k for k in results]
        return [condition, Turn(body=found[1], takes=takes, becomes=becomes, gives=results)]
    skipped = count - len(found[0].jaxpr.invars) if found else 0  # the index of a `cond`
    nothing = [None] * len(results)
    return [Turn(body=body, takes=range(skipped, count), becomes=nothing, gives=results) for body in found]


def with_constants_as_operands(
    eqn: Any, changed: Sequence[Any], operands: Sequence[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The operands and parameters of a control-flow equation whose bodies are given what arrays they hold.

    Args:
      eqn: the equation.
      changed: its bodies, closed jaxprs, in the order of `bodies`.
      operands: its operands.

    Returns:
      The operands, the arrays among them, and all parameters.
    """
    name, params = eqn.primitive.name, dict(eqn.params)
    held = [list(body.consts) for body in changed]
    if name not in ("scan", "while", "cond") or not any(held):
        return list(operands), with_bodies(eqn, changed)
    every = [c for consts in held for c in consts]
    if name == "cond":
        index, *rest = operands
        jaxprs = []
        for k, body in enumerate(changed):
            before, after = (sum(map(len, some)) for some in (held[:k], held[k + 1 :]))
            others = [Var(core.typeof(c)) for c in every]
            own = [*others[:before], *body.jaxpr.constvars, *others[len(others) - after :]]
            jaxprs.append(constants_as_inputs(body.jaxpr.replace(constvars=own)))
        taken = [index, *every, *rest]
    else:
        jaxprs = [constants_as_inputs(body.jaxpr) for body in changed]
        taken = [*every, *operands]
    if name == "while":
        first = params["cond_nconsts"]
        taken = [*held[0], *operands[:first], *held[1], *operands[first:]]
        params["cond_nconsts"] += len(held[0])
        params["body_nconsts"] += len(held[1])
    elif name == "scan":
        _replace_constants(params, 0, 0, len(every))
    return taken, {**params, **body_params(name, eqn.params, [closed(jaxpr, ()) for jaxpr in jaxprs])}


def _replace_constants(params: dict[str, Any], position: int, gone: int, count: int) -> None:
    """Have a scan's parameters tell of `count` constants from a position on, in place of `gone`."""
    if "num_consts" in params:
        params["num_consts"] += count - gone
    else:
        from jax._src import flattree

        consts, carry, rows = params["ft_in"].unpack()
        params["ft_in"] = flattree.pack((flattree.nones(len(consts) + count - gone), carry, rows))
    if "linear" in params:
        linear = list(params["linear"])
        params["linear"] = (*linear[:position], *(False,) * count, *linear[position + gone :])


def with_constant_replaced(eqn: Any, position: int, count: int, rewrite: Callable[[Any, int], Any]) -> dict[str, Any]:
    """The parameters of a control-flow equation whose operand at `position`, a constant, becomes `count` others.

    Args:
      eqn: the equation.
      position: one of `constants_of_bodies`.
      count: how many operands take its place.
      rewrite: (closed jaxpr of a body, which of its inputs) -> the body with `count` inputs there.
    """
    changed = bodies(eqn)
    params = dict(eqn.params)
    if eqn.primitive.name == "scan":
        changed = [rewrite(changed[0], position)]
        _replace_constants(params, position, 1, count)
    elif eqn.primitive.name == "while":
        first = params["cond_nconsts"]
        which, key = (0, "cond_nconsts") if position < first else (1, "body_nconsts")
        changed[which] = rewrite(changed[which], position - (first if which else 0))
        params[key] += count - 1
    else:
        changed = [rewrite(body, position - 1) for body in changed]
    return {**params, **body_params(eqn.primitive.name, eqn.params, changed)}


def is_library_call(eqn: Any) -> bool:
    """Whether a call comes from a library rather than from a function of the user's.

    JAX traces `jnp.where` and its kin once and reuses the jaxpr, so the lines inside are those of whoever called
    first. The user's own function is recognised by its name among the user's frames of what it contains.
    """
    called = called_jaxpr(eqn)
    name = eqn.params.get("name")
    if called is None or name is None or not called[0].eqns:
        return False
    frames = source_info_util.user_frames(called[0].eqns[0].source_info.traceback)
    return name not in {f.function_name.rpartition(".")[2] for f in frames}


_UNHOISTED = {"_xla_disable_loop_instr_hoisting": "true"}


def equation_context(eqn: Any, source: Any = None) -> contextlib.AbstractContextManager[None]:
    """Run what follows under the equation's own (or another) source line, its name stack and configuration.

    The mesh that it was traced under is forgotten, unless it is in a shard_map (`exla.ir.explicit`).
    """
    return _EquationContext(eqn, eqn.source_info if source is None else source)


class _EquationContext(contextlib.AbstractContextManager):
    """`equation_context`, which is entered for every equation that is traced: a generator would take longer."""

    __slots__ = ("_entered", "_eqn", "_source")

    def __init__(self, eqn: Any, source: Any) -> None:
        self._eqn, self._source = eqn, source
        self._entered: list[Any] = []

    def __enter__(self) -> None:
        source = self._source
        stack = source_info_util.current_name_stack() + source.name_stack
        try:
            self._enter(source_info_util.user_context(source.traceback, name_stack=stack))
            self._enter(self._eqn.ctx.manager)
            if not is_under_no_mesh():
                self._enter(_under_no_mesh())
        except BaseException:  # nothing leaves what was entered by then
            self.__exit__(*sys.exc_info())
            raise

    def _enter(self, manager: Any) -> None:
        manager.__enter__()
        self._entered.append(manager)

    def __exit__(self, *raised: Any) -> None:
        while self._entered:
            self._entered.pop().__exit__(*raised)


def bind(eqn: Any, *operands: Any, source: Any = None, hoists: bool = True, **params: Any) -> list[Any]:
    """Evaluate an equation's primitive on new operands, with some parameters replaced.

    `hoists`: whether XLA may compute before a loop what is the same on all its turns, and keep it throughout
    (`WhileLoopInvariantCodeMotion`).
    """
    merged = eqn.primitive.get_bind_params({**eqn.params, **params})
    with equation_context(eqn, source), contextlib.nullcontext() if hoists else set_xla_metadata(**_UNHOISTED):
        result = eqn.primitive.bind(*operands, **merged)
    return list(result) if eqn.primitive.multiple_results else [result]


def in_scope(eqn: Any, name: str) -> Any:
    """The same equation inside one more named scope."""
    source = eqn.source_info
    return eqn.replace(source_info=source.replace(name_stack=source.name_stack.extend(name)))


def scopes(eqn: Any) -> str:
    """The named scopes that an equation is in, outermost first, as "a/b"; "" for none."""
    return str(eqn.source_info.name_stack)


def source_line(eqn: Any) -> str:
    """The user's line that made an equation: 'file.py:12 (function)', or '' where unknown."""
    frame = source_info_util.user_frame(eqn.source_info.traceback)
    if frame is None:
        return ""
    return f"{frame.file_name}:{frame.start_line} ({frame.function_name})"


def new_primitive(name: str, abstract_eval: Callable[..., Any]) -> Any:
    """Make a primitive with several results from its shape rule."""
    primitive = jex_core.Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(abstract_eval)
    return primitive


def new_effectful_primitive(name: str, abstract_eval: Callable[..., Any]) -> Any:
    """Make a primitive with several results from a rule that gives their types and its effects."""
    primitive = jex_core.Primitive(name)
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(abstract_eval)
    return primitive


def set_rules(
    primitive: Any,
    *,
    evaluate: Callable[..., Any],
    lower: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any],
    batch: Callable[..., Any],
    bind: Callable[..., Sequence[Any]],
) -> None:
    """Say what a primitive does on arrays, in a lowered program and under each transformation.

    Args:
      primitive: a primitive with several results.
      evaluate: operands, parameters -> results.
      lower: parameters -> (name, closed jaxpr) of the function that takes the primitive's place in a lowered program.
      jvp: (primals, tangents, parameters) -> (results, their tangents).
      transpose: (cotangents, *operands, parameters) -> cotangents of the linear operands, None for the others.
      batch: (axis, operands, mapped axes, parameters) -> (results, their mapped axes).
      bind: (a closed jaxpr, operands and other parameters) -> results, for what checkify makes of a call.
    """

    def lowering(context: Any, *operands: Any, **params: Any) -> Any:
        name, closed = lower(**params)
        return mlir.core_call_lowering(context, *operands, name=name, call_jaxpr=closed)

    primitive.def_impl(evaluate)
    mlir.register_lowering(primitive, lowering)
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.fancy_primitive_batchers[primitive] = batch
    checkify.error_checks[primitive] = functools.partial(_checked, bind)


def _checked(bind: Callable[..., Sequence[Any]], *given: Any, jaxpr: Any, **params: Any) -> Any:
    """A call under checkify: that of the program which checks what is asked for, with the error before the results."""
    *context, error, enabled = given[: 2 + (not isinstance(given[0], checkify.Error))]  # from jax 0.12 on, of the codes
    values, tree = jax.tree.flatten(error)
    operands = [*values, *given[len(context) + 2 :]]
    checked, results, _ = checkify.jaxpr_to_checkify_jaxpr(*context, jaxpr, enabled, tree, *map(typeof, operands))
    return jax.tree.unflatten(results, bind(checked, operands=operands, **params))


is_top_level: Callable[[], bool] = core.trace_state_clean
"""Whether no transformation is under way in this thread; asked on every call, so it is JAX's function itself."""


def dispatcher(
    fn: Callable[..., Any], miss: Callable[..., tuple], static_argnums: Iterable[int], static_argnames: Iterable[str]
) -> Any:
    """A callable with the call cache of `jax.jit`, in front of a function of exla's.

    Looking up a signature (shapes, types, placement, static arguments, the trace under way, every configuration that
    tracing depends on) and starting what is entered for it happens in jaxlib, as for `jax.jit`.

    Args:
      fn: what runs under `jax.disable_jit()`; no two dispatchers may share it.
      miss: called where nothing is entered. It runs the call and returns (results, what to enter or None, False).
      static_argnums: positions of static arguments, none of them negative.
      static_argnames: their names.
    """
    dispatch = _jax.pjit(
        getattr(fn, "__name__", "function"),
        fn,
        miss,
        sorted(static_argnums),
        sorted(static_argnames),
        pxla.JitGlobalCppCacheKeys(),
        tree_util.dispatch_registry,
        pxla.cc_shard_arg,
    )
    dispatch._fun = _NotRunAgain(getattr(fn, "__name__", "function"))
    return dispatch


class _NotRunAgain:
    """What JAX is told that a dispatcher runs: where debug_nans finds NaN in its results, JAX names this and raises.

    A function it would run again operation by operation, under no limit.
    """

    _apply_primitive = True

    def __init__(self, name: str) -> None:
        self.__qualname__ = _named(name)


def _named(name: str) -> str:
    return f"the results of exla.jit({name}); under jax.disable_jit() the error names the operation"


@contextlib.contextmanager
def checked_results(name: str) -> Iterator[None]:
    """Raise the FloatingPointError of `jax.jit` where debug_nans or debug_infs finds something in what is run.

    Compiled functions raise one that only JAX's own functions catch.
    """
    try:
        yield
    except api_util.InternalFloatingPointError as error:
        raise FloatingPointError(f"invalid value ({error.ty}) encountered in {_named(name)}") from None


def forget_calls(dispatch: Any) -> None:
    """Empty a dispatcher's cache."""
    dispatch._clear_cache()


def call_and_enter(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """Call a `jax.jit` function; returns what a `miss` does."""
    return jitted._cache_miss(*args, **kwargs)


def flat_call(compiled: Any) -> Callable[..., tuple] | None:
    """A compiled function of flat arrays that returns what a `miss` does; None where a call cannot be entered."""
    call = compiled._executable.create_cpp_call(compiled._params)
    return None if call is None else call._cache_miss


class _Executables(CacheInterface):
    """JAX's persistent compilation cache, for this thread in a dictionary; for the others it stays what it was."""

    _path = Path()

    def __init__(self, entries: dict[str, bytes], others: Any) -> None:
        self.entries = entries
        self.used: set[str] = set()
        self._others = others
        self._thread = threading.get_ident()

    def get(self, key: str) -> bytes | None:
        if threading.get_ident() != self._thread:
            return None if self._others is None else self._others.get(key)
        found = self.entries.get(key)
        if found is not None:
            self.used.add(key)
        return found

    def put(self, key: str, value: bytes) -> None:
        if threading.get_ident() == self._thread:
            self.entries[key] = value
            self.used.discard(key)
        elif self._others is not None:
            self._others.put(key, value)


_EXECUTABLES = threading.RLock()


@contextlib.contextmanager
def executables(entries: dict[str, bytes]) -> Iterator[set[str]]:
    """Have what this thread compiles come from, and go to, a dictionary by JAX's key of a persistent cache.

    What was lowered and compiled before is so again: JAX remembers it beside that cache. An entry that cannot
    be read is compiled, and JAX warns.

    Args:
      entries: JAX's key -> an entry of its cache.

    Yields:
      The keys of those entries that were used.
    """
    with _EXECUTABLES:
        before = compilation_cache._cache, compilation_cache._cache_initialized
        mine = _Executables(entries, before[0])
        pjit._pjit_lower.cache_clear()
        pxla._cached_compilation.cache_clear()
        compilation_cache._cache, compilation_cache._cache_initialized = mine, True
        try:
            with (
                config.enable_compilation_cache(True),
                config.persistent_cache_min_compile_time_secs(0),
                config.persistent_cache_min_entry_size_bytes(-1),
            ):
                yield mine.used
        finally:
            compilation_cache._cache, compilation_cache._cache_initialized = before


def entry(data: Any, consts: Sequence[Any], results: Sequence[Any], out_tree: Any) -> Any:
    """What to enter for a call of a user's function that runs a compiled function of flat arrays.

    Args:
      data: what `flat_call` would enter for (*consts, *arguments); may be None.
      consts: arrays that the user does not pass.
      results: the flat results of one call.
      out_tree: the tree of the user's results.
    """
    if data is None or any(is_extended(c.dtype) for c in consts):
        return None
    _, tree = pxla.reflatten_outputs_for_dispatch(out_tree, results)
    return data._replace(out_pytree_def=tree, const_args=[*data.const_args, *consts])


def trace_context() -> Any:
    """Every part of JAX's configuration that tracing depends on, hashable."""
    return config.trace_context()


def trace_flat(fn: Callable[..., Any], avals: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """The jaxpr of a function of flat arguments that returns a sequence, and the values of its constvars.

    What `jax.make_jaxpr` does, without what it does for signatures, caches and trees: passes trace thousands of bodies.
    """
    debug = api_util.debug_info("exla", fn, (), {})
    plain = [
        core.ShapedArray(
            a.shape,
            a.dtype,
            weak_type=getattr(a, "weak_type", False),
            memory_space=getattr(a, "memory_space", jax.memory.Space.Device),
        )
        for a in avals
    ]
    jaxpr, _, consts, *_ = partial_eval.trace_to_jaxpr_dynamic(linear_util.wrap_init(fn, debug_info=debug), plain)
    return _without_calls(jaxpr), consts


def _without_calls(jaxpr: Any) -> Any:
    """A jaxpr with the equations of what it calls instead, such as those of `jnp.where`, at the lines of the calls."""
    if not any(eqn.primitive.name in JITTED for eqn in jaxpr.eqns):
        return jaxpr
    known: dict[Any, Any] = {}

    def atom(v: Any) -> Any:
        return v if isinstance(v, Literal) else known.get(v, v)

    def flat(eqns: Sequence[Any], call: Any = None) -> Iterator[Any]:
        for eqn in eqns:
            invars = [atom(v) for v in eqn.invars]
            called = called_jaxpr(eqn) if eqn.primitive.name in JITTED else None
            if called is not None and not called[1]:
                inner = called[0]
                known.update(zip(inner.invars, invars, strict=True))
                yield from flat(inner.eqns, call or eqn)
                known.update(zip(eqn.outvars, map(atom, inner.outvars), strict=True))
                continue
            outvars = list(eqn.outvars)
            if call is not None:
                outvars = [v if is_drop(v) else Var(v.aval) for v in outvars]
                known.update(zip(eqn.outvars, outvars, strict=True))
            where = {} if call is None else {"source_info": call.source_info, "ctx": call.ctx}
            yield eqn.replace(invars=invars, outvars=outvars, **where)

    eqns = list(flat(jaxpr.eqns))
    return with_equations(jaxpr, invars=jaxpr.invars, eqns=eqns, outvars=[atom(v) for v in jaxpr.outvars])


def as_function(closed: Any) -> Callable[..., list[Any]]:
    """A closed jaxpr as a function of its inputs."""
    return jex_core.jaxpr_as_fun(closed)


def close(jaxpr: Any) -> Any:
    """A jaxpr without constants as a closed one."""
    return ClosedJaxpr(jaxpr, ())


def closed(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """A jaxpr that was traced and the values of its constvars as a closed one, for the body of an equation."""
    return ClosedJaxpr(jaxpr.replace(debug_info=_nameless(jaxpr, len(jaxpr.invars))), tuple(consts))


def _nameless(jaxpr: Any, inputs: int) -> Any:
    """The debugging information of a jaxpr of so many inputs, with names for none of them."""
    return jaxpr.debug_info._replace(arg_names=("",) * inputs, result_paths=("",) * len(jaxpr.outvars))


def to_host(x: Any) -> Any:
    """A value moved to the host's memory."""
    return jax.device_put(x, jax.memory.Space.Host)


def to_device(x: Any) -> Any:
    """A value moved to the device's memory."""
    return jax.device_put(x, jax.memory.Space.Device)


def is_on_host(aval: Any) -> bool:
    """Whether values of a type are in the host's memory and not in the device's."""
    return getattr(aval, "memory_space", None) == jax.memory.Space.Host


def copy_of(closed: Any) -> Any:
    """An equal closed jaxpr that does not keep the given one alive."""
    return jex_core.ClosedJaxpr(closed.jaxpr.replace(), closed.consts)


def as_weak_as(x: Any, aval: Any) -> Any:
    """The same array, as weakly typed as an abstract value; loops lose that of what they put together."""
    weak = getattr(aval, "weak_type", False)
    if weak == getattr(jax.typeof(x), "weak_type", False):
        return x
    return lax._convert_element_type(x, aval.dtype, weak_type=weak)


def typeof(x: Any) -> Any:
    """The abstract value of an array, tracer or Python scalar."""
    return jax.typeof(x)


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is known to be zero without being computed."""
    return isinstance(tangent, ad.Zero)


def is_nonzero_tangent(tangent: Any) -> bool:
    """Whether a tangent is a value that moves; integers have none."""
    return not is_zero(tangent) and getattr(tangent, "dtype", None) != jax.dtypes.float0


def is_linear_operand(operand: Any) -> bool:
    """Whether an operand of a transposition is one whose cotangent is wanted."""
    return bool(ad.is_undefined_primal(operand))


def is_differentiable(dtype: Any) -> bool:
    """Whether values of this type have tangents of the same type."""
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def varying_like(results: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Types of results that vary over every mesh axis over which an operand does, as inside a shard_map."""
    varying: frozenset[Any] = frozenset()
    for aval in operands:
        varying |= getattr(getattr(aval, "manual_axis_type", None), "varying", frozenset())
    if not varying:
        return list(results)
    return [a.update(manual_axis_type=core.ManualAxisType(varying=varying)) for a in results]


def is_reference(x: Any) -> bool:
    """Whether an argument is a `jax.Ref`, or a tracer of one."""
    return isinstance(typeof(x), AbstractRef)


def takes_references(closed: Any) -> bool:
    """Whether a program reads or writes a `jax.Ref` of its caller's: one that it is given, or one that it captures."""
    return any(isinstance(v.aval, AbstractRef) for v in (*closed.jaxpr.constvars, *closed.jaxpr.invars))


def names_axes(closed: Any) -> bool:
    """Whether a program uses mapped axes by name (collectives), so that it cannot stand alone."""
    return any(isinstance(e, core.NamedAxisEffect) for e in closed.effects)


def zero_tangent(aval: Any) -> Any:
    """The tangent of a result that does not move."""
    return ad.Zero(aval.to_tangent_aval())


def is_unnamed(axis_name: Any) -> bool:
    """Whether a mapped axis has no name that a collective could use."""
    return axis_name is None or axis_name is getattr(core, "no_axis_name", None)


def shaped_array(shape: Sequence[int], dtype: Any) -> Any:
    """An abstract value."""
    return jax.core.ShapedArray(tuple(shape), dtype)


def item_bytes(dtype: Any) -> int:
    """Bytes of one element, of PRNG keys too."""
    try:
        return int(np.dtype(dtype).itemsize)
    except TypeError:
        return int(getattr(dtype, "itemsize", 8))


def is_drop(var: Any) -> bool:
    """Whether a result is thrown away."""
    return type(var).__name__ == "DropVar"


def constants_as_inputs(jaxpr: Any) -> Any:
    """The same jaxpr with its constvars as leading inputs."""
    invars = [*jaxpr.constvars, *jaxpr.invars]
    return jaxpr.replace(constvars=[], invars=invars, debug_info=_nameless(jaxpr, len(invars)))


def without_dead_results(jaxpr: Any) -> Any:
    """The same jaxpr without what its control flow computes and nothing reads; its inputs stay."""
    if not any(map(bodies, jaxpr.eqns)):
        return jaxpr
    nameless = jaxpr.replace(debug_info=_nameless(jaxpr, len(jaxpr.invars)))
    made, _ = partial_eval.dce_jaxpr(nameless, [True] * len(jaxpr.outvars), instantiate=True)
    return made.replace(debug_info=jaxpr.debug_info)


def for_results(jaxpr: Any, eqn: Any, wanted: Sequence[bool]) -> Any:
    """Control flow of a jaxpr that computes some of its results alone, of what they need; else the same equation."""
    if all(wanted) or not any(wanted) or not bodies(eqn):
        return eqn
    invars = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
    outvars = [v for v, is_wanted in zip(eqn.outvars, wanted, strict=True) if is_wanted]
    alone = jaxpr.replace(invars=invars, constvars=[], outvars=outvars, eqns=[eqn], effects=set(eqn.effects))
    made = without_dead_results(alone.replace(debug_info=_nameless(alone, len(invars))))
    return made.eqns[-1] if len(made.eqns) == 1 else eqn


def with_equations(jaxpr: Any, *, invars: Sequence[Any], eqns: Sequence[Any], outvars: Sequence[Any]) -> Any:
    """A jaxpr with other equations, inputs and outputs; its effects stay."""
    same = len(invars) == len(jaxpr.invars)
    debug = jaxpr.debug_info if same else _nameless(jaxpr, len(invars))
    return jaxpr.replace(invars=list(invars), eqns=list(eqns), outvars=list(outvars), debug_info=debug)


def is_extended(dtype: Any) -> bool:
    """Whether a dtype is one of JAX's own (PRNG keys), which NumPy does not know."""
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.extended))


def key_like(aval: Any) -> Any:
    """Random keys of a type, all the same."""
    return jax.numpy.broadcast_to(jax.random.key(0, impl=aval.dtype._impl.name), aval.shape)


def zeros(aval: Any) -> Any:
    """An array of zeros, or of random keys that are all the same."""
    return key_like(aval) if is_extended(aval.dtype) else jax.numpy.zeros(aval.shape, aval.dtype)


def is_threefry(key_dtype: Any) -> bool:
    """Whether many keys of this type are drawn of one by one; of others, all are drawn of the first."""
    return str(key_dtype) == "key<fry>"


def is_partitionable(key_dtype: Any) -> bool:
    """Whether keys of this type draw each element from its position alone."""
    return is_threefry(key_dtype) and bool(jax.config.jax_threefry_partitionable)


def threefry(key_data: Any, high: Any, low: Any) -> tuple[Any, Any]:
    """The threefry-2x32 hash of counts, given as two arrays of 32-bit halves, under a key of two words."""
    first, second = threefry2x32_p.bind(key_data[0], key_data[1], high, low)
    return first, second


gamma_of: Callable[..., Any] | None = getattr(random_core, "_gamma_one", None)
"""One number of a gamma distribution: (key, shape of the distribution, log_space=) -> number; None if it has moved."""


def hlo_text_to_proto(text: str) -> bytes:
    """A serialised HloModuleProto of HLO text.

    Raises:
      RuntimeError: if XLA cannot parse it.
    """
    return xla_client.hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
