"""From a space of candidates to what a cost model reads: one graph, and 18 numbers for each node of each candidate.

    described = describe(space.starts)                     # the graph of a program, before it is split
    configs = described.configs(candidates, option_sets)   # (candidates, configurable nodes, 18)

The graph is the HLO of the program before optimisation and before any split, lowered for the CPU whatever the target
is, so that one program has one graph. Where rewrites pay there are several programs to start from; their graphs stand
side by side in one, and a candidate's numbers say "not of this candidate" in all but its own. An instruction belongs to
an equation by its named scope (`exla.ir.scopes`), a parameter to an input by its number.

The numbers of a node, -1 where one does not apply (`COLUMNS` names them):

- 0 to 5: log2 of the extents of its first six axes, those of one chunk where it is computed or read by the chunk;
- 6: how many loops are around it; 7: which loop, by number; 8 and 9: log2 of the trips of the outermost and, where
  there are several, the innermost loop; a remainder counts as part of a trip;
- 10: in how many places it is computed; 11: its role (`ROLES`); 12: its combiner (`COMBINERS`);
- 13: log2 of the bytes that one chunk of its loop needs, projected;
- 14: the option set that the candidate is compiled with, by number;
- 15: 1 where it was moved into a loop of the user's that reads it, 2 where it is transposed before a chunk loop that
  multiplies it, 3 where it is computed on each device's share, 4 where it waits for its readers as bfloat16, 5 where it
  waits in the host's memory;
- 16: log2 of the microseconds that the roofline predicts, 17: log2 of the temporary bytes that are projected, both of
  the whole candidate: what is known without learning, for the model to improve on.

Two candidates of a space that are different programs have different numbers (`tests/cost_model/test_split_configs.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from exla import _compat
from exla._compat import Literal
from exla.cost_model.features import featurize
from exla.cost_model.graph import NODE_CONFIG_FEATURES, Graph
from exla.cost_model.hlo import entry_computation, parse_module
from exla.ir.emit import emit
from exla.ir.memory import project
from exla.ir.program import Program, as_struct
from exla.ir.scopes import equation_number, number_of
from exla.passes.decisions import Change, CompileOption
from exla.passes.split.loop import Carry, Combine, Loop, Stack
from exla.passes.unless import EXPANSIONS
from exla.search.space import Candidate, start_of

COLUMNS = (
    *(f"extent_{axis}" for axis in range(6)),
    *("depth", "loop", "trips_outer", "trips_inner", "times", "role", "combiner", "chunk_bytes", "options", "moved"),
    *("predicted_us", "temporary_bytes"),
)
ROLES = ("whole", "inside", "sliced_leaf", "whole_leaf", "stacked", "combined", "carried", "other_start")
COMBINERS = ("sum", "prod", "max", "min", "and", "or", "xor", "argmax", "argmin", "top_k")
"""In an order that never changes: a place is what a trained model knows. A later one is appended."""

MOVED = {"transpose": 2.0, "convert_element_type": 4.0, "device_put": 5.0}
"""Primitives by which passes move values that equations have made (`exla.passes.arrange`, `exla.passes.store`)."""

_AT = {name: k for k, name in enumerate(COLUMNS)}
_ROLE = {name: float(k) for k, name in enumerate(ROLES)}
_INPUT = "input"
Key = tuple[str, int]
"""("equation", its number) or ("input", its position)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Described:
    """The programs that a space starts from, as one graph.

    Attributes:
      graph: the graph; its configurable nodes are those that an equation or an input is known for.
      starts: the decisions that lead to each program.
      nodes: of each configurable node, which start it is of, and of what in it.
      levels: of each start, equation number -> how many control-flow bodies are around it.
    """

    graph: Graph
    starts: tuple[tuple[Change, ...], ...]
    nodes: tuple[tuple[int, Key], ...] = field(repr=False)
    levels: tuple[Mapping[int, int], ...] = field(repr=False)

    def configs(self, candidates: Sequence[Candidate], option_sets: Sequence[Mapping[str, str]]) -> np.ndarray:
        """The numbers of candidates.

        Args:
          candidates: of the space that was described.
          option_sets: those of the space, in its order.

        Returns:
          (c, nc, 18) float32.
        """
        known = [tuple(names.items()) for names in option_sets]
        out: np.ndarray = np.full((len(candidates), len(self.nodes), NODE_CONFIG_FEATURES), -1, np.float32)
        unread = _Place()
        for row, candidate in zip(out, candidates, strict=True):
            start = start_of(self.starts, candidate.decisions)
            found = _Reader(self.levels[start]).read(candidate.program)
            options = tuple((o.name, o.value) for o in candidate.options or () if isinstance(o, CompileOption))
            common = {
                "options": float(known.index(options)) if options in known else -1.0,
                "predicted_us": _log2(candidate.seconds * 1e6) if math.isfinite(candidate.seconds) else -1.0,
                "temporary_bytes": _log2(candidate.peak.temporary_bytes),
            }
            for numbers, (of, key) in zip(row, self.nodes, strict=True):
                if of != start:
                    numbers[_AT["role"]] = _ROLE["other_start"]
                    continue
                place = found.get(key, unread)
                place.write(numbers)
                for name, value in common.items():
                    numbers[_AT[name]] = value
        return out


def describe(starts: Iterable[Candidate], name: str = "program") -> Described:
    """Describe the programs that a space starts from.

    Args:
      starts: `Space.starts`; their equations are numbered (`exla.ir.scopes.numbered`).
      name: what the graph is called in reports.
    """
    graphs, nodes, levels, decisions = [], list[tuple[int, Key]](), [], []
    for number, start in enumerate(starts):
        graph, keys = _graph_of(start.program)
        graphs.append(graph)
        nodes += [(number, key) for key in keys]
        levels.append(dict(_levels(start.program.jaxpr, 0)))
        decisions.append(start.decisions)
    return Described(
        graph=_side_by_side(name, graphs), starts=tuple(decisions), nodes=tuple(nodes), levels=tuple(levels)
    )


def _graph_of(program: Program) -> tuple[Graph, list[Key]]:
    """The graph of one program, and what its configurable nodes are."""
    structs = [as_struct(v.aval) for v in program.invars]
    traced = jax.jit(emit(program, EXPANSIONS), keep_unused=True).trace(*structs)
    lowered = traced.lower(lowering_platforms=("cpu",))
    module = parse_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    features = featurize(module)
    entry = entry_computation(module)
    found: dict[int, Key] = {}
    node = 0
    for computation in module.computations:
        for instruction in computation.instructions:
            number = number_of(features.op_names[node])
            if number is not None:
                found[node] = ("equation", number)
            elif entry is not None and computation.id == entry.id and instruction.opcode == "parameter":
                found[node] = (_INPUT, instruction.parameter_number)
            node += 1
    graph = features.graph
    return (
        Graph(
            name=graph.name,
            node_feat=graph.node_feat,
            node_opcode=graph.node_opcode,
            edge_index=graph.edge_index,
            node_config_ids=np.array(list(found), np.int64),
            node_splits=graph.node_splits,
        ),
        list(found.values()),
    )


def _side_by_side(name: str, graphs: Sequence[Graph]) -> Graph:
    """Graphs in one, without an edge between them."""
    first: np.ndarray = np.cumsum([0] + [g.num_nodes for g in graphs])
    splits = [g.node_splits[1 if k else 0 :] + at for k, (g, at) in enumerate(zip(graphs, first, strict=False))]
    return Graph(
        name=name,
        node_feat=np.concatenate([g.node_feat for g in graphs]),
        node_opcode=np.concatenate([g.node_opcode for g in graphs]),
        edge_index=np.concatenate([g.edge_index + at for g, at in zip(graphs, first, strict=False)]),
        node_config_ids=np.concatenate([g.node_config_ids + at for g, at in zip(graphs, first, strict=False)]),
        node_splits=np.concatenate(splits),
    )


def _levels(jaxpr: Any, level: int) -> Iterable[tuple[int, int]]:
    for eqn in jaxpr.eqns:
        number = equation_number(eqn)
        if number is not None:
            yield number, level
        for body in _compat.bodies(eqn):
            yield from _levels(body.jaxpr, level + 1)


@dataclass(frozen=True)
class _Frame:
    """A chunk loop around something."""

    number: int
    trips: float
    chunk_bytes: int


@dataclass
class _Place:
    """What becomes of one equation or input."""

    extents: tuple[int, ...] = ()
    frames: tuple[_Frame, ...] = ()
    times: int = 1
    role: str = "whole"
    combiner: str = ""
    sunk: bool = False
    moved: str = ""
    shared: bool = False

    def write(self, numbers: np.ndarray) -> None:
        for axis, extent in enumerate(self.extents[:6]):
            numbers[axis] = _log2(extent)
        numbers[_AT["depth"]] = len(self.frames)
        numbers[_AT["times"]] = self.times
        numbers[_AT["role"]] = _ROLE[self.role]
        numbers[_AT["moved"]] = MOVED[self.moved] if self.moved else 3 if self.shared else self.sunk
        if self.combiner:
            numbers[_AT["combiner"]] = COMBINERS.index(self.combiner) if self.combiner in COMBINERS else len(COMBINERS)
        if self.frames:
            numbers[_AT["loop"]] = self.frames[-1].number
            numbers[_AT["trips_outer"]] = _log2(self.frames[0].trips)
            numbers[_AT["chunk_bytes"]] = _log2(self.frames[-1].chunk_bytes)
        if len(self.frames) > 1:
            numbers[_AT["trips_inner"]] = _log2(self.frames[-1].trips)


class _Reader:
    """Reads where the equations of a start are in a candidate."""

    def __init__(self, levels: Mapping[int, int]) -> None:
        self._levels = levels
        self._places: dict[Key, _Place] = {}
        self._loops = 0

    def read(self, program: Program) -> dict[Key, _Place]:
        names = {v: (_INPUT, k) for k, v in enumerate(program.invars)}
        for v, key in names.items():
            self._places[key] = _Place(extents=v.aval.shape if hasattr(v.aval, "shape") else ())
        self._walk(program, names, (), 0)
        return self._places

    def _walk(
        self, program: Program, names: dict[Any, Key], frames: tuple[_Frame, ...], level: int, shared: bool = False
    ) -> None:
        """Read a program; `names` says what its inputs are, and is completed by what its results are."""
        for eqn in program.eqns:
            if eqn.primitive.name == "exla_split":
                self._read_loop(eqn, names, frames, level, shared)
                continue
            number = equation_number(eqn)
            if eqn.primitive.name == "shard_map" and number is None:
                self._read_shares(eqn, names, frames, level)
                continue
            if number is not None:
                key = ("equation", number)
                names.update((v, key) for v in eqn.outvars)
                self._found(key, eqn, frames, level, shared)
            elif eqn.primitive.name in MOVED and not isinstance(eqn.invars[0], Literal):
                self._move(eqn, names)
            for body in _compat.bodies(eqn):
                self._walk(Program(jaxpr=body.jaxpr), {}, frames, level + 1, shared)

    def _move(self, eqn: Any, names: dict[Any, Key]) -> None:
        """Note a move that no equation of the start has done: its result is what its operand is."""
        key = names.get(eqn.invars[0])
        if key is not None:
            names[eqn.outvars[0]] = key
            self._places[key].moved = self._places[key].moved or eqn.primitive.name

    def _read_shares(self, eqn: Any, names: dict[Any, Key], frames: tuple[_Frame, ...], level: int) -> None:
        """Read what is computed on each device's share, which is no control flow of the user's."""
        (body,) = _compat.bodies(eqn)
        given = zip(eqn.invars, body.jaxpr.invars, strict=True)
        inner = {v: names[o] for o, v in given if not isinstance(o, Literal) and o in names}
        self._walk(Program(jaxpr=body.jaxpr), inner, frames, level, shared=True)
        left = zip(eqn.outvars, body.jaxpr.outvars, strict=True)
        names.update((o, inner[v]) for o, v in left if not isinstance(v, Literal) and v in inner)

    def _found(self, key: Key, eqn: Any, frames: tuple[_Frame, ...], level: int, shared: bool) -> None:
        place = self._places.get(key)
        extents = tuple(getattr(eqn.outvars[0].aval, "shape", ())) if eqn.outvars else ()
        sunk = level > self._levels.get(key[1], level)
        role = "inside" if frames else "whole"
        if place is None:
            self._places[key] = _Place(extents=extents, frames=frames, role=role, sunk=sunk, shared=shared)
            return
        if frames != place.frames:  # one equation of the start may have become several
            place.times += 1
        if len(frames) > len(place.frames):
            place.extents, place.frames, place.role, place.sunk = extents, frames, role, sunk
            place.shared = shared

    def _read_loop(self, eqn: Any, names: dict[Any, Key], frames: tuple[_Frame, ...], level: int, shared: bool) -> None:
        loop: Loop = eqn.params["loop"]
        frame = _Frame(self._loops, loop.size / loop.chunk, project(loop.body).bytes)
        self._loops += 1
        inner: dict[Any, Key] = {}
        for v, position, placement in loop.inputs(loop.body):
            operand = eqn.invars[position]
            key = None if isinstance(operand, Literal) else names.get(operand)
            if key is None:
                continue
            inner[v] = key
            place = self._places.get(key)
            if place is None or place.role not in ("whole", "whole_leaf", "inside"):
                continue
            if placement is None:
                place.role = "whole_leaf" if place.role == "whole" else place.role
            else:
                place.role, place.extents = "sliced_leaf", tuple(v.aval.shape)
        self._walk(loop.body, inner, (*frames, frame), level, shared)
        partials = list(loop.body.outvars)
        results = list(eqn.outvars)
        for output in loop.outputs:
            mine, partials = partials[: output.parts], partials[output.parts :]
            made, results = results[: len(output.avals)], results[len(output.avals) :]
            keys = [inner[v] for v in mine if not isinstance(v, Literal) and v in inner]
            if keys:
                names.update((v, keys[0]) for v in made)
            for key in keys:
                self._put_together(self._places.get(key), output)

    def _put_together(self, place: _Place | None, output: Stack | Combine | Carry) -> None:
        if place is None:
            return
        if isinstance(output, Stack):
            place.role = "stacked" if place.role == "inside" else place.role
        elif isinstance(output, Combine):
            place.role, place.combiner = "combined", output.combiner
        else:
            place.role = "carried"


def _log2(number: float) -> float:
    return math.log2(max(number, 1.0))
