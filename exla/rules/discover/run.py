"""A discovery from start to end, which can be killed and taken up again.

The unit of work is a signature: its graphs are enumerated, and the pairs that lower the peak are written to the state
file as one line of JSON, flushed to disk. A run reads the lines that are there and goes on with the signatures that
are missing; what a killed run loses is the signature it was in. A last line that was cut off is dropped, and a state
that was made with other options or other code is refused.

When all signatures are there, the pairs are pruned and verified together, which takes seconds, and written to the
result's file. The same options give the same result; only `seconds` differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from exla.ir.memory import project
from exla.ir.program import canonical as canonical_program
from exla.rules.discover.cost import REFERENCE_SIZES, cost_of, pays
from exla.rules.discover.enumerate import LIMITS, enumerate_graphs, signatures
from exla.rules.discover.fingerprint import P, Q
from exla.rules.discover.prune import best_pairs, pruned, simplifications
from exla.rules.discover.state import append, read_state
from exla.rules.discover.terms import Pair, Term, from_graph, size_of, subterms, to_graphs
from exla.rules.discover.verify import verify
from exla.rules.graphs import Graph, as_function

SCHEMA_VERSION = 1
CONTRACTION = ("multiply", "dot", "sum", "broadcast")
LEAST_PROJECTED_GAIN = 1.25

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched.

    Attributes:
      equations: the most equations of a graph.
      inputs: the most inputs.
      seed: of all random values.
    """

    equations: int = 4
    inputs: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most in (("equations", 6), ("inputs", 4)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from 1 to {most}, not {getattr(self, name)}")


def discover(
    search: Search,
    state: Path,
    *,
    again: bool = False,
    budget_s: float | None = None,
    progress: Progress = lambda done, total, doing: None,
) -> dict[str, Any] | None:
    """Discover rules.

    Args:
      search: what is searched.
      state: file that holds what is done so far.
      again: whether to begin anew where there is a state.
      budget_s: no signature is begun after so many seconds.
      progress: is told how many signatures are done, of how many, and which is next.

    Returns:
      The result as plain data, or None where the budget ran out first.

    Raises:
      StateError: if the state was made by another search.
    """
    started = time.perf_counter()
    every = signatures(search.inputs)
    if again:
        state.unlink(missing_ok=True)
    done = read_state(state, _header(search))
    for signature in every:
        name = " ".join(signature)
        if name in done:
            continue
        if budget_s is not None and time.perf_counter() - started > budget_s:
            return None
        progress(len(done), len(every), name)
        done[name] = _unit(signature, search)
        append(state, done[name])
    progress(len(done), len(every), "prune and verify")
    return _result(search, [done[" ".join(s)] for s in every])


def _unit(signature: tuple[str, ...], search: Search) -> dict[str, Any]:
    """What there is to know of one signature, as plain data."""
    started = time.perf_counter()
    found = enumerate_graphs(signature, search.equations, search.seed)
    equal: dict[int, int] = {}
    for _, *others in found.equal:
        for term in others:
            equal[size_of(term)] = equal.get(size_of(term), 0) + 1
    return {
        "signature": " ".join(signature),
        "graphs": _by_size(found.graphs),
        "values": _by_size(found.classes),
        "equal": _by_size(equal),
        "pairs": [[side.to_json() for side in to_graphs(p)] for p in best_pairs(found.equal, search.seed)],
        "seconds": {"total": round(time.perf_counter() - started, 3), **_by_size(found.seconds)},
    }


def _result(search: Search, units: list[dict[str, Any]]) -> dict[str, Any]:
    started = time.perf_counter()
    read = (tuple(from_graph(Graph.from_json(side)) for side in pair) for unit in units for pair in unit["pairs"])
    pairs: dict[Pair, None] = {(first, second): None for first, second in read}
    aids = simplifications(signatures(search.inputs), search.seed)
    verified: dict[Pair, str | None] = {}

    def accept(pair: Pair) -> bool:
        verified[pair] = verify(pair, search.seed)
        return verified[pair] is not None

    left = pruned(pairs, aids, accept)
    kept = [(pair, gain) for pair in left if (gain := _projected(pair)) is not None]
    sizes = range(1, search.equations + 1)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": f"exla rules discover --equations {search.equations} --inputs {search.inputs} --seed {search.seed}",
        "seed": search.seed,
        "primes": [Q, P],
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
        "limits": {"equations": search.equations, "inputs": search.inputs, **LIMITS},
        "counts": {
            "signatures": len(units),
            **{name: _total(units, name, sizes) for name in ("graphs", "values", "equal")},
            "lower_the_peak": _by_size({n: sum(size_of(p[0]) == n for p in pairs) for n in sizes}),
            "follow_from_no_smaller": _by_size({n: sum(size_of(p[0]) == n for p in verified) for n in sizes}),
            "verified": _by_size({n: sum(size_of(p[0]) == n for p in left) for n in sizes}),
            "kept": _by_size({n: sum(size_of(p[0]) == n for p, _ in kept) for n in sizes}),
        },
        "seconds": {
            "enumerate": {str(n): round(sum(u["seconds"].get(str(n), 0) for u in units), 2) for n in sizes},
            "signatures": round(sum(u["seconds"]["total"] for u in units), 2),
            "prune_and_verify": round(time.perf_counter() - started, 2),
        },
        "rules": [_rule(n, pair, verified[pair], gain) for n, (pair, gain) in enumerate(kept, 1)],
    }


def _rule(number: int, pair: Pair, how: str | None, gain: dict[str, Any]) -> dict[str, Any]:
    before, after = to_graphs(pair)
    return {
        "name": f"discovered_{number}",
        "rewrite": f"{before} -> {after}",
        "family": family(pair),
        "verified": how,
        **gain,
        "pattern": before.to_json(),
        "replacement": after.to_json(),
    }


def family(pair: Pair) -> str:
    """What kind of rule a pair is.

    "contraction": both sides are one sum of products of the same factors. "degenerate": the pattern holds what programs
    hardly do, a broadcast that is an equation of its own, x + x or log(exp(x)). "other": the rest.
    """
    if {t[0] for side in pair for t in subterms(side)} - {"in"} <= set(CONTRACTION):
        return "contraction"
    return "degenerate" if any(_is_degenerate(t) for t in subterms(pair[0])) else "other"


def _is_degenerate(term: Term) -> bool:
    op, _, *operands = term
    return op == "broadcast" or op == "log" and operands[0][0] == "exp" or op == "add" and operands[0] == operands[1]


def _projected(pair: Pair) -> dict[str, Any] | None:
    """Where a pair gains most by the engine's own projection, and the peaks there; None where it gains nowhere."""
    before, after = to_graphs(pair)
    costs = [cost_of(side) for side in pair]
    where = np.flatnonzero(pays(*costs))
    best: tuple[float, dict[str, Any] | None] = (0.0, None)
    for index in sorted(where, key=lambda n: -costs[0].peak[n] / costs[1].peak[n])[:4]:
        sizes = {a: REFERENCE_SIZES[index][a] for a in before.sizes}
        peaks = [_peak_bytes(graph, sizes) for graph in (before, after)]
        gain = peaks[0] / max(peaks[1], 1)
        if gain >= LEAST_PROJECTED_GAIN and gain > best[0]:
            best = (gain, {"sizes": sizes, "peak_bytes": peaks})
    return best[1]


def _peak_bytes(graph: Graph, sizes: dict[str, int]) -> int:
    shapes = [jax.ShapeDtypeStruct([sizes[a] for a in axes], np.float32) for axes in graph.inputs]
    return project(canonical_program(jax.make_jaxpr(as_function(graph))(*shapes))).temporary_bytes


def _header(search: Search) -> dict[str, Any]:
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in (*sorted(here.glob("*.py")), here.parent / "graphs.py"):
        digest.update(path.read_bytes())
    return {"search": asdict(search), "code": digest.hexdigest()[:16]}


def write(result: dict[str, Any], path: Path) -> None:
    """Write a result; a file is there whole or not at all."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in result.items() if name != "rules"]
    rules = ",\n".join("  " + json.dumps(rule) for rule in result["rules"])
    text = "{\n" + ",\n".join([*lines, f' "rules": [\n{rules}\n ]']) + "\n}\n"
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)


def _by_size(counts: dict[int, Any]) -> dict[str, Any]:
    return {str(size): round(count, 3) for size, count in sorted(counts.items())}


def _total(units: Iterable[dict[str, Any]], name: str, sizes: Iterable[int]) -> dict[str, int]:
    units = list(units)
    return {str(n): sum(unit[name].get(str(n), 0) for unit in units) for n in sizes}
