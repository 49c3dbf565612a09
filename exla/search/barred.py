"""Why a candidate that was compiled must not be used, though it may obey the limit.

    exchanges_more(found, plain, program)   # its devices exchange more than those of the plain program
    computed_otherwise(compiled, decisions) # what is compared for equality was made by different code

    Wrong.of(records).has(decisions)        # its values are not the plain program's

The first two read the compiled program. What is exchanged is counted by how often it happens, not by its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exla import _compat
from exla.ir.primitives import EXCHANGING
from exla.ir.program import Program
from exla.passes.decisions import CompileOption, Decision, Seal, to_json
from exla.search.record import Record
from exla.targets.hlo_text import Collectives, sealed_alike


def exchanges_more(found: Collectives, plain: Collectives | None, program: Program) -> str:
    """Why the devices of a candidate exchange more than those of the plain program; "" where they do not.

    Args:
      found: what those of the candidate exchange.
      plain: what those of the plain program do; None where that does not compile. Then loops alone are judged: they may
        exchange what the user's own loops are written to exchange, and what is outside of loops is not known.
      program: the traced program.
    """
    if plain is not None:
        return f"its devices exchange data {found}; as jax.jit compiles it, {plain}" if found.exceed(plain) else ""
    written = _written(program.jaxpr)
    inside = Collectives(total=found.in_loops, in_loops=found.in_loops, untold=found.untold)
    if not inside.exceed(written):
        return ""
    return (
        f"its devices exchange data {found}; jax.jit cannot compile the program, whose loops are written to exchange "
        f"{written}"
    )


def _written(jaxpr: Any) -> Collectives:
    """What devices are told to exchange on the trips of a program's own loops, inside a `shard_map`."""
    depths: dict[int, int] = {}
    todo = [(jaxpr, 1, 0, False)]
    while todo:
        inner, times, untold, is_inside = todo.pop()
        for eqn in inner.eqns:
            bodies = list(_compat.inner_jaxprs(eqn))
            if is_inside and eqn.primitive.name in EXCHANGING:
                depths[untold] = depths.get(untold, 0) + times * len(eqn.invars)
            name, trips = eqn.primitive.name, eqn.params.get("length", 1)
            is_loop = name in ("scan", "while")
            turns = times * (trips if name == "scan" else 1)
            todo += [(body, turns, untold + (name == "while"), is_inside or is_loop) for body in bodies]
    total = sum(depths.values())
    counts = (sum(n for k, n in depths.items() if k >= least) for least in range(1, max(depths, default=0) + 1))
    return Collectives(total=total, in_loops=total, untold=tuple(counts))


def computed_otherwise(compiled: Any, decisions: Sequence[Decision]) -> str:
    """Why a program that seals something must not be used; "" where nothing is against it."""
    if not any(isinstance(d, Seal) for d in decisions) or sealed_alike(compiled.as_text()):
        return ""
    return "the compiler made different code of one sum in different loops, and it is compared for equality"


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """Candidates that were found to have wrong values, whatever the compile options were.

    Attributes:
      changes: the decisions of each but for compile options, as records hold them.
    """

    changes: list[Any]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Wrong:
        return cls(changes=[_changes(r.decisions) for r in records if r.status == "wrong_result"])

    def add(self, decisions: Sequence[Decision]) -> None:
        self.changes.append(_changes(as_recorded(decisions)))

    def has(self, decisions: Sequence[Decision] | Sequence[Mapping[str, Any]]) -> bool:
        """Whether a candidate is one of them, by its decisions or as it is recorded."""
        return bool(self.changes) and _changes(as_recorded(decisions)) in self.changes


def as_recorded(decisions: Sequence[Any]) -> list[Any]:
    """Decisions as a record that was read holds them."""
    return json.loads(json.dumps([d if isinstance(d, Mapping) else to_json(d) for d in decisions]))


def _changes(decisions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Recorded decisions without the compile options among them; these where there is nothing else."""
    return [d for d in decisions if d.get("kind") != CompileOption.__name__] or list(decisions)
