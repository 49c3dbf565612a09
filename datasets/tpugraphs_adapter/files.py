"""Opening a TpuGraphs file: the graph and the runtimes at once, the configurations when they are asked for.

    file = read("npz/layout/xla/random/train/resnet50.npz")
    file.graph.node_feat                # (n, 140)
    file.configs([17, 3, 17])           # (3, nc, 18), unpacked by streaming
    file.target                         # (c,) float64, lower is faster

Files of a test split hold 0 for every runtime. They open like any other, and asking for their `target` is an error.
A file counts as one of these if its folder is called `test`, or by `test=True`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from exla.cost_model.graph import Graph
from exla.datasets.tpugraphs_adapter.npz import Archive, StreamedArray
from exla.datasets.tpugraphs_adapter.schema import (
    CONFIGS,
    TILE,
    ArraySpec,
    check_headers,
    check_values,
    schema_of,
)
from exla.errors import Problem, TpuGraphsError

_EXACT = 2**53
"""Whole numbers up to here are exact as float64."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitParts:
    """What a file of exla's split collection has besides a layout file's arrays.

    Attributes:
      peak_bytes: (c,) int64, by the compiler's word.
      statuses: c of them, as of a record: "ok", or "over_limit" of what ran although it does not obey.
      decisions: c lists of decisions, as plain data.
      meta: where it comes from: instance, family, target, label, limit, versions.
    """

    peak_bytes: np.ndarray
    statuses: tuple[str, ...]
    decisions: tuple[Any, ...] = field(repr=False)
    meta: Mapping[str, Any]

    def arrays(self) -> dict[str, np.ndarray]:
        """As they are in a file."""
        return {
            "config_peak_bytes": np.asarray(self.peak_bytes, np.int64),
            "config_status": _json_bytes(list(self.statuses)),
            "config_decisions": _json_bytes(list(self.decisions)),
            "meta": _json_bytes(dict(self.meta)),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> SplitParts | None:
        """From the arrays of a file; None where it is of another collection.

        Raises:
          ValueError: if a text is no JSON of the right kind and length.
        """
        if "config_peak_bytes" not in arrays:
            return None
        peaks = arrays["config_peak_bytes"]
        read = {n: json.loads(bytes(arrays[n])) for n in ("config_status", "config_decisions", "meta") if n in arrays}
        statuses, decisions, meta = (read.get(n) for n in ("config_status", "config_decisions", "meta"))
        for name, value in (("config_status", statuses), ("config_decisions", decisions)):
            if not isinstance(value, list) or len(value) != len(peaks):
                raise ValueError(f"{name} is not a list of {len(peaks)}")
        if not isinstance(meta, dict):
            raise ValueError("meta is no object")
        assert isinstance(statuses, list) and isinstance(decisions, list)
        return cls(peak_bytes=peaks, statuses=tuple(map(str, statuses)), decisions=tuple(decisions), meta=meta)


def _json_bytes(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value, allow_nan=False, sort_keys=True).encode(), np.uint8)


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """A program of a layout collection, and its c configurations.

    Attributes:
      path: the file.
      graph: with its nc configurable nodes and its computations.
      runtime: (c,) int64, nanoseconds; 0 where they are withheld. Rank by these: float32 makes ties of them.
      is_default: (c,) bool, which configurations are the compiler's own; None where the file does not say.
      split: what a file of the split collection has besides; None for all others.
    """

    path: Path
    graph: Graph
    runtime: np.ndarray
    is_default: np.ndarray | None = None
    split: SplitParts | None = None
    _configs: StreamedArray = field(repr=False)

    @property
    def num_configs(self) -> int:
        return len(self.runtime)

    @property
    def has_target(self) -> bool:
        """Whether the runtimes are there, and not withheld."""
        return bool(self.runtime.all())

    @property
    def target(self) -> np.ndarray:
        """(c,) float64, the runtimes in nanoseconds.

        Raises:
          TpuGraphsError: if they are withheld, or too long to be exact as float64.
        """
        _refuse_placeholders(self.path, "config_runtime", self.runtime)
        if (longest := int(self.runtime.max())) > _EXACT:
            problem = Problem(
                array="config_runtime",
                expected=f"at most {_EXACT} ns, which float64 holds exactly",
                found=f"{longest} ns",
                next_step="Rank by .runtime, which is int64.",
            )
            raise TpuGraphsError(self.path, [problem])
        return self.runtime.astype(np.float64)

    def configs(self, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Configurations: (len(rows), nc, 18) float32. None = all c of them, which may take gigabytes.

        Raises:
          TpuGraphsError: for rows that are not there, and where the data are damaged.
        """
        return self._configs.take(rows)

    def blocks(self, rows: int | None = None) -> Iterator[np.ndarray]:
        """All configurations in order, in blocks of so many rows; None = of some MiB."""
        return self._configs.blocks(rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tile:
    """A kernel of a tile collection, and its c configurations.

    Attributes:
      path: the file.
      graph: without configurable nodes: a configuration is of the whole kernel.
      runtime: (c,) int64, nanoseconds; 0 where they are withheld.
      normalizers: (c,) int64, what the default configuration took in the same session, nanoseconds.
    """

    path: Path
    graph: Graph
    runtime: np.ndarray
    normalizers: np.ndarray
    _configs: StreamedArray = field(repr=False)

    @property
    def num_configs(self) -> int:
        return len(self.runtime)

    @property
    def has_target(self) -> bool:
        """Whether the runtimes are there, and not withheld."""
        return bool(self.runtime.all() and self.normalizers.all())

    @property
    def target(self) -> np.ndarray:
        """(c,) float64, runtime / normalizer: sessions differ, and only the ratio compares them.

        Raises:
          TpuGraphsError: if they are withheld.
        """
        _refuse_placeholders(self.path, "config_runtime", self.runtime)
        _refuse_placeholders(self.path, "config_runtime_normalizers", self.normalizers)
        return self.runtime.astype(np.float64) / self.normalizers.astype(np.float64)

    def configs(self, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Configurations: (len(rows), 24) float32; None = all c of them.

        Raises:
          TpuGraphsError: for rows that are not there, and where the data are damaged.
        """
        return self._configs.take(rows)

    def blocks(self, rows: int | None = None) -> Iterator[np.ndarray]:
        """All configurations in order, in blocks of so many rows; None = of some MiB."""
        return self._configs.blocks(rows)


def _refuse_placeholders(path: Path, name: str, values: np.ndarray) -> None:
    if not values.all():
        problem = Problem(
            array=name,
            expected="measured nanoseconds",
            found="0: the runtimes of test files are withheld",
            next_step="Train and evaluate on the train and valid splits; for the test split write a submission.",
        )
        raise TpuGraphsError(path, [problem])


def read(path: str | PathLike[str], *, test: bool | None = None) -> Layout | Tile:
    """Open a file: everything is read and checked but the configurations, of which only the header is.

    Args:
      path: an npz file of TpuGraphs.
      test: whether its runtimes may be withheld; None = if its folder is called "test".

    Raises:
      TpuGraphsError: with all problems that were found.
    """
    path = Path(path)
    opened, problems = _open(path, test)
    if problems or opened is None:
        raise TpuGraphsError(path, problems)
    return opened


def check(path: str | PathLike[str], *, test: bool | None = None) -> list[Problem]:
    """Read a file to its last byte, configurations too, and list what is wrong with it: nothing if it is sound.

    Args:
      path: an npz file of TpuGraphs.
      test: as for `read`.
    """
    try:
        opened, problems = _open(Path(path), test)
        if opened is not None:
            for _ in opened.blocks():
                pass
    except TpuGraphsError as error:
        return list(error.problems)
    return problems


def is_of_test_split(path: Path, test: bool | None) -> bool:
    """What `test` means for a file: itself, or whether the folder says so."""
    return path.absolute().parent.name == "test" if test is None else test


def _open(path: Path, test: bool | None) -> tuple[Layout | Tile | None, list[Problem]]:
    archive = Archive(path)
    schema = schema_of(list(archive.members))
    if schema is None:
        problem = Problem(
            array="file",
            expected="the arrays of a layout file (node_config_feat, ...) or of a tile file (config_feat, ...)",
            found=", ".join(sorted(archive.members)) or "no array",
            next_step="Name a file of npz/layout or npz/tile.",
        )
        return None, [*archive.problems, problem]
    unsound = {p.array for p in archive.problems}
    wrong, sizes = check_headers(schema, archive.headers())
    problems = [*archive.problems, *(p for p in wrong if p.array not in unsound)]
    arrays, damaged = _small_arrays(archive, schema, {p.array for p in problems})
    problems += damaged
    problems += check_values(arrays, sizes, test=is_of_test_split(path, test))
    problems += _by_column(archive, CONFIGS[schema])
    if problems:
        return None, problems
    try:
        return _made(archive, schema, arrays), []
    except ValueError as error:
        again = "Export the file again."
        return None, [Problem(array="meta", expected="JSON as exla writes it", found=str(error), next_step=again)]


def _small_arrays(
    archive: Archive, schema: Sequence[ArraySpec], wrong: set[str]
) -> tuple[dict[str, np.ndarray], list[Problem]]:
    arrays: dict[str, np.ndarray] = {}
    problems: list[Problem] = []
    for spec in schema:
        if spec.name in archive.members and spec.name not in wrong and spec.name not in CONFIGS.values():
            try:
                arrays[spec.name] = archive.read(spec.name)
            except TpuGraphsError as error:
                problems += error.problems
    return arrays, problems


def _by_column(archive: Archive, name: str) -> list[Problem]:
    if name not in archive.members or not archive.members[name].by_column:
        return []
    found = "column by column (fortran_order)"
    return [Problem(array=name, expected="rows one after another", found=found, next_step="Save it in C order.")]


def _made(archive: Archive, schema: tuple[ArraySpec, ...], arrays: dict[str, np.ndarray]) -> Layout | Tile:
    for array in arrays.values():
        array.setflags(write=False)
    configs = StreamedArray(archive, CONFIGS[schema])
    runtime = arrays["config_runtime"]
    nodes = {name: arrays[name] for name in ("node_feat", "node_opcode", "edge_index")}
    name = archive.path.stem
    if schema == TILE:
        normalizers = arrays["config_runtime_normalizers"]
        graph = Graph(name=name, **nodes)
        return Tile(path=archive.path, graph=graph, runtime=runtime, normalizers=normalizers, _configs=configs)
    ids, splits = arrays["node_config_ids"], arrays["node_splits"].reshape(-1)
    graph = Graph(name=name, **nodes, node_config_ids=ids, node_splits=splits)
    is_default = arrays.get("is_default")
    split = SplitParts.of(arrays)
    return Layout(path=archive.path, graph=graph, runtime=runtime, is_default=is_default, split=split, _configs=configs)
