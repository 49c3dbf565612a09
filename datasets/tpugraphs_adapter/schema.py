"""What a TpuGraphs file holds: its arrays, and what makes their values valid.

A file is an npz with one array a key. Shapes are written with letters, and a letter is one number in a whole file:
n nodes, m edges, c configurations, nc configurable nodes, k-1 computations. The two tables below are the schema; the
functions compare a file with them and return every difference, they raise nothing.

The published description calls opcodes, edges and ids int32. The files hold uint8 and int64, and so does this schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from exla.cost_model.graph import NODE_CONFIG_FEATURES, NODE_FEATURES, TILE_CONFIG_FEATURES
from exla.errors import Problem

LAST_OPCODE = 120
"""The highest id of TpuGraphs' table of opcodes; 0 stands for an opcode that is not in it."""


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """One array of a file.

    Attributes:
      name: its key.
      dtype: as numpy writes it, little-endian.
      shape: numbers and letters.
      required: whether every file has it.
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    required: bool = True


_GRAPH = (
    ArraySpec(name="node_feat", dtype="<f4", shape=("n", NODE_FEATURES)),
    ArraySpec(name="node_opcode", dtype="|u1", shape=("n",)),
    ArraySpec(name="edge_index", dtype="<i8", shape=("m", 2)),
)
LAYOUT = (
    *_GRAPH,
    ArraySpec(name="node_config_ids", dtype="<i8", shape=("nc",)),
    ArraySpec(name="config_runtime", dtype="<i8", shape=("c",)),
    ArraySpec(name="node_config_feat", dtype="<f4", shape=("c", "nc", NODE_CONFIG_FEATURES)),
    ArraySpec(name="node_splits", dtype="<i8", shape=(1, "k")),
    ArraySpec(name="is_default", dtype="|b1", shape=("c",), required=False),
    ArraySpec(name="config_peak_bytes", dtype="<i8", shape=("c",), required=False),
    ArraySpec(name="config_status", dtype="|u1", shape=("s",), required=False),
    ArraySpec(name="config_decisions", dtype="|u1", shape=("d",), required=False),
    ArraySpec(name="meta", dtype="|u1", shape=("t",), required=False),
)
"""A file of a layout collection, or of exla's own split collection: the last four arrays are in the latter alone.

`config_status` is c texts, `config_decisions` c lists and `meta` an object, each JSON in the bytes of UTF-8.
"""
TILE = (
    *_GRAPH,
    ArraySpec(name="config_runtime", dtype="<i8", shape=("c",)),
    ArraySpec(name="config_runtime_normalizers", dtype="<i8", shape=("c",)),
    ArraySpec(name="config_feat", dtype="<f4", shape=("c", TILE_CONFIG_FEATURES)),
)
"""A file of a tile collection."""
CONFIGS = {LAYOUT: "node_config_feat", TILE: "config_feat"}
"""The array of a schema that can be too large for memory."""
_AT_LEAST = {"n": 1, "c": 1, "nc": 1, "k": 2}

Header = tuple[np.dtype, tuple[int, ...]]


def schema_of(names: Sequence[str]) -> tuple[ArraySpec, ...] | None:
    """The schema that some keys are of; None where they are of neither or as much of one as of the other."""
    layout = sum(name in {s.name for s in LAYOUT} for name in names)
    tile = sum(name in {s.name for s in TILE} for name in names)
    return None if layout == tile else LAYOUT if layout > tile else TILE


def check_headers(schema: Sequence[ArraySpec], headers: Mapping[str, Header]) -> tuple[list[Problem], dict[str, int]]:
    """Compare keys, dtypes and shapes with a schema.

    Args:
      schema: LAYOUT or TILE.
      headers: key -> (dtype, shape).

    Returns:
      What differs, and the number that each letter stands for; a letter's first array in the schema decides.
    """
    problems = _check_keys(schema, headers)
    sizes: dict[str, int] = {}
    decided_by: dict[str, str] = {}
    for spec in schema:
        if spec.name not in headers:
            continue
        dtype, shape = headers[spec.name]
        if dtype.str != spec.dtype:
            expected, found = f"dtype {np.dtype(spec.dtype)} ({spec.dtype})", f"{dtype} ({dtype.str})"
            problems.append(_problem(spec.name, expected, found, "Write the array with that dtype."))
        for letter, size in zip(spec.shape, shape, strict=False):
            if isinstance(letter, str) and letter not in sizes:
                sizes[letter], decided_by[letter] = size, spec.name
        if len(shape) != len(spec.shape) or not all(map(partial(_fits, sizes), spec.shape, shape)):
            expected = f"shape {_shape(spec, sizes, decided_by)}"
            problems.append(_problem(spec.name, expected, f"{shape}", "Arrays of one file have to agree."))
    return problems, sizes


def _check_keys(schema: Sequence[ArraySpec], headers: Mapping[str, Header]) -> list[Problem]:
    keys = ", ".join(s.name if s.required else f"{s.name} (optional)" for s in schema)
    there = ", ".join(sorted(headers)) or "an empty file"
    again = "Download or export the file again: it cannot be made up."
    return [
        *(
            _problem(name, f"only {keys}", f"the array {name!r}", "Remove or rename it.")
            for name in sorted(set(headers) - {s.name for s in schema})
        ),
        *(
            _problem(s.name, "the array", f"only {there}", again)
            for s in schema
            if s.required and s.name not in headers
        ),
    ]


def _fits(sizes: Mapping[str, int], letter: str | int, size: int) -> bool:
    return size == letter if isinstance(letter, int) else size == sizes[letter] and size >= _AT_LEAST.get(letter, 0)


def _shape(spec: ArraySpec, sizes: Mapping[str, int], decided_by: Mapping[str, str]) -> str:
    letters = [s for s in spec.shape if isinstance(s, str)]
    known = [f"{x} = {sizes[x]} by {decided_by[x]}" for x in letters if x in sizes and decided_by[x] != spec.name]
    least = [f"{x} at least {_AT_LEAST[x]}" for x in letters if x in _AT_LEAST]
    comma = "," if len(spec.shape) == 1 else ""
    return f"({', '.join(map(str, spec.shape))}{comma})" + "".join(f", {text}" for text in (*known, *least))


def check_values(arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int], *, test: bool) -> list[Problem]:
    """Check the values of small arrays whose headers are right.

    Args:
      arrays: key -> values, of those that could be read.
      sizes: letter -> number.
      test: whether the file is of a test split, whose runtimes may all be 0.
    """
    return [
        _problem(name, *found)
        for name, check in _CHECKS.items()
        if name in arrays and (found := check(arrays[name], sizes.get("n"), test)) is not None
    ]


def _problem(array: str, expected: str, found: str, next_step: str) -> Problem:
    return Problem(array=array, expected=expected, found=found, next_step=next_step)


def first_not_finite(values: np.ndarray) -> int | None:
    """The first row that holds NaN or infinity."""
    finite = np.isfinite(values)
    return None if finite.all() else int(np.argmin(finite.reshape(len(values), -1).all(axis=1)))


_Found = tuple[str, str, str] | None


def _node_feat(values: np.ndarray, n: int | None, test: bool) -> _Found:
    row = first_not_finite(values)
    return None if row is None else ("finite numbers", f"NaN or infinity in row {row}", "Export the file again.")


def _node_opcode(values: np.ndarray, n: int | None, test: bool) -> _Found:
    if not (bad := values > LAST_OPCODE).any():
        return None
    at = int(np.argmax(bad))
    return f"opcodes 0 to {LAST_OPCODE}", f"{values[at]} at node {at}", "Map the opcodes by TpuGraphs' table."


def _edge_index(values: np.ndarray, n: int | None, test: bool) -> _Found:
    if n is None or not (bad := ((values < 0) | (values >= n)).any(axis=1)).any():
        return None
    at = int(np.argmax(bad))
    return f"nodes 0 to {n - 1}", f"{values[at].tolist()} in row {at}", "Rows are [consumer, producer], from 0."


def _node_config_ids(values: np.ndarray, n: int | None, test: bool) -> _Found:
    if n is not None and (bad := (values < 0) | (values >= n)).any():
        at = int(np.argmax(bad))
        return f"nodes 0 to {n - 1}", f"{values[at]} in row {at}", "Configurable nodes are counted from 0."
    ids, counts = np.unique(values, return_counts=True)
    if (counts > 1).any():
        at = int(np.argmax(counts > 1))
        return (
            "each node once",
            f"node {ids[at]} {counts[at]} times",
            "Give each node one row.",
        )
    return None


def _runtimes(values: np.ndarray, n: int | None, test: bool) -> _Found:
    if test and not values.any() or (values > 0).all():
        return None
    at = int(np.argmax(values <= 0))
    return (
        "positive nanoseconds" + (", or 0 everywhere" if test else ""),
        f"{values[at]} in row {at}",
        "A measurement that failed is left out; "
        + ("a test file has all runtimes or none." if test else "a file of placeholders is read with test=True."),
    )


def _node_splits(values: np.ndarray, n: int | None, test: bool) -> _Found:
    splits = values.reshape(-1)
    if splits[0] == 0 and (np.diff(splits) > 0).all() and (n is None or splits[-1] == n):
        return None
    return (
        f"increasing numbers from 0 to {'n' if n is None else n}",
        f"{splits[:8].tolist()}{'...' if len(splits) > 8 else ''}, ending with {splits[-1]}",
        "List where each computation begins, and the number of nodes.",
    )


_CHECKS: dict[str, Callable[[np.ndarray, int | None, bool], _Found]] = {
    "node_feat": _node_feat,
    "node_opcode": _node_opcode,
    "edge_index": _edge_index,
    "node_config_ids": _node_config_ids,
    "config_runtime": _runtimes,
    "config_runtime_normalizers": _runtimes,
    "node_splits": _node_splits,
}
