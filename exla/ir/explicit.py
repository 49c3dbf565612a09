"""Axes of a mesh that are part of the types of arrays (`Explicit`), forgotten while a program is planned.

Under such a mesh every value's type says how it is shared out: `f32[1600@i,3]`. Passes make other values, of which they
would have to say it too. So a program is planned over the same mesh with `Auto` axes, and only its results are told the
shardings that their types had:

    [reshard b]  ->  [sharding_constraint b]        # one that replicates or moves a value is still wanted
    [dot_general[out_sharding=P("i", None)] a b]  ->  [dot_general a b]     # shared out as `a` is anyway

What is whole on every device, and is to be shared out, is left to the compiler: it looks at what reads it. JAX says so
of every constant that meets a value with a mesh in its type, however big, and a constraint cannot be split across.

A function whose meaning is in the types stays whole, with a reason: values that are said to be unreduced, a `shard_map`
along some Explicit axes only that asks what values vary over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, Sharding

from exla import _compat

SAID_BY = ("sharding", "out_sharding")
"""Parameters that say how the result of an equation is shared out."""


def is_explicit(sharding: Any) -> bool:
    """Whether a sharding is over a mesh some axes of which are part of types."""
    return isinstance(sharding, NamedSharding) and _compat.is_explicit(sharding.mesh)


def is_all_explicit(mesh: Any) -> bool:
    """Whether types say of every axis of a mesh what is shared out along it."""
    return _compat.is_all_explicit(mesh)


def explicit_mesh(shardings: Iterable[Any]) -> Any:
    """The mesh with Explicit axes that some shardings are over, else that of `jax.set_mesh`; None without one."""
    said = next((s.mesh for s in shardings if is_explicit(s)), None)
    return _compat.explicit_mesh() if said is None else said


def over_auto(sharding: Sharding | None) -> Sharding | None:
    """The same sharding over the same mesh, none of whose axes is part of types."""
    if not isinstance(sharding, NamedSharding) or not is_explicit(sharding):
        return sharding
    return NamedSharding(_compat.with_auto_axes(sharding.mesh), sharding.spec, memory_kind=sharding.memory_kind)


def forget(eqn: Any, operands: Sequence[Any], source: Any = None) -> list[Any] | None:
    """Evaluate an equation that says how values are shared out along Explicit axes, on operands without such types.

    Args:
      eqn: the equation, as it was traced with the types.
      operands: its operands without them.
      source: replaces its source line, where it is not None.

    Returns:
      Its results; None for an equation that says nothing.
    """
    name = eqn.primitive.name
    if name == "mesh_cast":
        return list(operands)
    given = {n for v in eqn.invars for n in _axes(_typed(v))}
    if name == "reshard":
        return _constrained(eqn, operands, eqn.params["dst_sharding"], source) if given else list(operands)
    if name == "sharding_constraint":
        wanted = eqn.params["sharding"]
        return _constrained(eqn, operands, wanted, source) if is_explicit(wanted) else None
    said = {k: s for k in SAID_BY if is_explicit(s := eqn.params.get(k))}
    if not said:
        return None
    unsaid: dict[str, Any] = dict.fromkeys(said)
    results = _compat.bind(eqn, *operands, source=source, **unsaid)
    typed = _typed(eqn.outvars[0])
    moves = typed is not None and given and given != _axes(typed)
    return _constrained(eqn, results, typed, source) if moves else results


def why_typed(jaxpr: Any) -> str | None:
    """Why a program cannot do without the types; None where it can."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map" and _compat.is_explicit(eqn.params["mesh"]):
            if not _compat.can_change_axes(eqn):
                return (
                    f"the shard_map at {_compat.source_line(eqn)} asks how values lie along Explicit axes of its mesh"
                )
        elif any(_compat.is_unreduced(_typed(v)) for v in (*eqn.invars, *eqn.outvars)):
            return f"types say that values at {_compat.source_line(eqn)} are unreduced"
        found = next(filter(None, map(why_typed, _compat.inner_jaxprs(eqn))), None)
        if found is not None:
            return found
    return None


def _constrained(eqn: Any, operands: Sequence[Any], sharding: Any, source: Any) -> list[Any]:
    """The first operand, shared out as a sharding says where that is another way than its type had."""
    is_said = isinstance(sharding, NamedSharding) and _compat.is_all_explicit(sharding.mesh)
    if not is_said or eqn.primitive.name == "reshard" and _lies(_typed(eqn.invars[0])) == _lies(sharding):
        return list(operands)
    with _compat.equation_context(eqn, source):
        return [jax.lax.with_sharding_constraint(operands[0], over_auto(sharding))]


def _typed(var: Any) -> NamedSharding | None:
    """The sharding in the type of a variable or literal, over Explicit axes."""
    sharding = getattr(var.aval, "sharding", None)
    return sharding if is_explicit(sharding) else None


def _axes(sharding: NamedSharding | None) -> set[str]:
    """The mesh axes that something is shared out along."""
    return set() if sharding is None else {n for entry in sharding.spec for n in _compat.mesh_axes(entry)}


def _lies(sharding: NamedSharding | None) -> list[tuple[str, ...]]:
    """For each axis the mesh axes that it is shared out along, but for whole ones at the end."""
    found = [] if sharding is None else [_compat.mesh_axes(entry) for entry in sharding.spec]
    while found and not found[-1]:
        found.pop()
    return found
