"""Spreads: which axes of which values several devices share out among themselves.

A sharding says it of an argument, and of a value that is constrained to one. What is computed from that is shared out
alike, as far as the factor rules lead: rows of `x @ y` lie where those of `x` do. Compilers mostly decide so too, and
where one does not, what was built on it exchanges more than the plain program and is dropped.

    spreads = spread_axes(program, {(0, 0): Spread(mesh=(("i", 8),), names=("i",))})
    spreads[program.outvars[0], 0]      # the same, where the first axis of the result is that of the first argument
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding

from exla import _compat
from exla._compat import Literal
from exla.ir.program import Program


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How an axis is shared out.

    Attributes:
      mesh: names and sizes of all axes of the devices' mesh, in order.
      names: those of them that the axis is shared out along, the outermost first.
    """

    mesh: tuple[tuple[str, int], ...]
    names: tuple[str, ...]

    @property
    def shares(self) -> int:
        """How many shares there are of it."""
        sizes = dict(self.mesh)
        return math.prod(sizes[name] for name in self.names)


def spreads_of(sharding: NamedSharding) -> dict[int, Spread]:
    """Axis -> how several devices share it out by a sharding."""
    mesh, found = tuple(sharding.mesh.shape.items()), dict[int, Spread]()
    for axis, entry in enumerate(sharding.spec):
        names = _compat.mesh_axes(entry)
        if math.prod(sharding.mesh.shape[name] for name in names) > 1:
            found[axis] = Spread(mesh=mesh, names=names)
    return found


def spread_axes(program: Program, arguments: Mapping[tuple[int, int], Spread]) -> dict[tuple[Any, int], Spread]:
    """(variable, axis) of what is shared out, as far as it follows from the arguments.

    Args:
      program: the program.
      arguments: (argument, axis) -> how it is shared out.
    """
    first = len(program.consts)
    found = {(program.invars[first + k], axis): s for (k, axis), s in arguments.items()}
    for position, eqn in enumerate(program.eqns):
        if eqn.primitive.name == "shard_map":
            made = _compat.shared_results(eqn)
            found.update(((eqn.outvars[k], axis), Spread(mesh=m, names=n)) for (k, axis), (m, n) in made.items())
            continue
        if eqn.primitive.name == "sharding_constraint" and isinstance(said := eqn.params["sharding"], NamedSharding):
            found.update(((eqn.outvars[0], axis), s) for axis, s in spreads_of(said).items())
            continue
        factors = program.factors(position)
        for name in () if factors is None else factors.names:
            assert factors is not None
            given = zip(eqn.invars, factors.operands[name], strict=True)
            here = (found.get((v, p.axis)) for v, p in given if p is not None and not isinstance(v, Literal))
            spread = next((s for s in here if s is not None), None)
            if spread is None or factors.sizes[name] % spread.shares:
                continue
            for var, place in zip(eqn.outvars, factors.results[name], strict=True):
                if place is not None:
                    found.setdefault((var, place.axis), spread)
    return found
