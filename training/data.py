"""Programs to train on, and those that are held out.

    split = open_split(config)                        # Split(train=(Part, ...), held_out=(Part, ...))
    part = split.train[0]
    part.sample([5, 2])                               # a Sample of two of its configurations

A graph is put on one footing with its configurations, and made smaller if the config says so. What is held out is held
out by program wherever there are several: two configurations of one program are too much alike to test one by the
other. Files of the layout, tile and (same keys as layout) split collections are read alike; a run has one kind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exla.cost_model.batch import Sample
from exla.cost_model.graph import Graph
from exla.cost_model.inputs import Inputs, sample_of
from exla.cost_model.models import KERNEL, MODELS, configures
from exla.datasets.tpugraphs_adapter import Layout, TpuGraphs
from exla.errors import OptionError
from exla.training.cache import cache_folder, unpack
from exla.training.config import Config, DataConfig


def inputs_of(config: Config) -> Inputs:
    """How files become what a model reads; saved with the model, so that evaluation does the same."""
    data, segments = config.data, config.segments
    return Inputs(
        prune_hops=data.prune_hops,
        compress_paths=data.compress_paths,
        configs=data.configs_scored or data.configs,
        segment_size=segments.size,
        segment_method=segments.method,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """One file, each of its configurations once: r of them.

    Attributes:
      name: of the file.
      sha256: of the file.
      graph: as the model sees it.
      runtime: (r,) int64 nanoseconds, or float64 ratios to the default of a tile file.
      noise: the fields of `metrics.NoiseFloor`.
      file_rows: (r,) int64, where in the file they are.
    """

    name: str
    sha256: str
    graph: Graph
    runtime: np.ndarray
    noise: dict[str, Any]
    file_rows: np.ndarray
    _configs: np.ndarray
    _columns: np.ndarray

    @property
    def is_tile(self) -> bool:
        """Whether a configuration is of the whole kernel."""
        return self._configs.ndim == 2

    def sample(self, rows: Sequence[int] | np.ndarray) -> Sample:
        """Some configurations, by their number from 0 to r - 1, in any order, repeated or not."""
        rows = np.asarray(rows, np.int64)
        configs = np.asarray(self._configs[self.file_rows[rows]])
        return sample_of(self.graph, self._columns, configs, self.runtime[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Some configurations of a program.

    Attributes:
      program: it.
      rows: (k,) int64, their numbers.
    """

    program: Program
    rows: np.ndarray

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def runtime(self) -> np.ndarray:
        """(k,) the program's runtimes, of the rows."""
        return self.program.runtime[self.rows]

    def sample(self, numbers: Sequence[int] | np.ndarray) -> Sample:
        """Some of the rows, by their number from 0 to k - 1."""
        return self.program.sample(self.rows[np.asarray(numbers, np.int64)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """What is trained on, and what is not; at most `rows` have a program in common, and never a configuration."""

    train: tuple[Part, ...]
    held_out: tuple[Part, ...]

    def data_hash(self) -> str:
        """SHA-256 of the files' hashes and the rows that are used, for training and not, in order."""
        digest = hashlib.sha256()
        for kind, parts in (("train", self.train), ("held out", self.held_out)):
            for part in parts:
                digest.update(f"{kind} {part.program.sha256} {part.name}\n".encode())
                digest.update(np.ascontiguousarray(part.rows, "<i8").tobytes())
        return digest.hexdigest()


def npz_files(names: Sequence[str]) -> list[Path]:
    """The files named, and those in the folders named, in order.

    Raises:
      OptionError: if one is not there, or a folder holds none.
    """
    found: list[Path] = []
    for name in names:
        path = Path(name).expanduser()
        inside = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        if not inside or not all(p.is_file() for p in inside):
            raise OptionError(f"{path}: expected an .npz file, or a folder of them; relative to {Path.cwd()}")
        found += inside
    return found


def open_program(path: Path, how: Inputs, *, keep: str = "minimum", cache: str = "") -> Program:
    """Open one file.

    Of a file of the split collection only what a search ranks: candidates that obey the limit, without the program as
    it is.

    Args:
      path: an npz file of TpuGraphs.
      how: what is done to its graph.
      keep: "minimum" or "drop", as for `deduplicate`.
      cache: see `DataConfig`.

    Raises:
      TpuGraphsError: if the file is not sound, or its runtimes are withheld.
    """
    unpacked = unpack(path, keep, cache_folder(cache))
    file = unpacked.file
    graph, columns = how.reduced(file.graph)
    target = file.runtime if isinstance(file, Layout) else file.target
    rows = unpacked.rows
    if isinstance(file, Layout) and file.split is not None:
        ranked = [bool(d) and s == "ok" for d, s in zip(file.split.decisions, file.split.statuses, strict=True)]
        rows = rows[np.array(ranked)[rows]]
    return Program(
        name=path.stem,
        sha256=unpacked.sha256,
        graph=graph,
        runtime=target[rows],
        noise=unpacked.noise,
        file_rows=rows,
        _configs=unpacked.configs,
        _columns=columns,
    )


def open_split(config: Config) -> Split:
    """Open all files of a config, and divide them.

    Raises:
      OptionError: if there is nothing to train on, or files are of two kinds.
      TpuGraphsError: if a file is not sound.
    """
    data, held_out = config.data, config.held_out
    files = npz_files(data.files) + _of_collection(data, data.split)
    apart: list[Path] = []
    if held_out.by == "files":
        apart = npz_files(held_out.files) + (_of_collection(data, held_out.split) if held_out.split else [])
        if not apart:
            raise OptionError('held_out.by is "files": name them in held_out.files, or name held_out.split')
    if not files:
        raise OptionError("there is no data: name data.files, or data.folder and data.collection")
    how = inputs_of(config)
    opened = [open_program(path, how, keep=data.keep, cache=data.cache) for path in [*files, *apart]]
    if len({program.is_tile for program in opened}) > 1:
        raise OptionError("files of the layout and of the tile collections are mixed; train a model on each")
    check_kind(config.model.name, opened)
    _check_distinct(opened)
    return divide(opened[: len(files)], opened[len(files) :], config)


def _check_distinct(programs: Sequence[Program]) -> None:
    """Raise where one file is there twice: it could be trained on and held out."""
    known: dict[str, str] = {}
    for program in programs:
        if program.sha256 in known:
            raise OptionError(
                f"{program.name} and {known[program.sha256]} are the same file (SHA-256 {program.sha256[:16]}): what "
                "is trained on must not be held out; name it once"
            )
        known[program.sha256] = program.name


def check_kind(model: str, programs: Sequence[Program]) -> None:
    """Raise unless a model reads the configurations that files have.

    Raises:
      OptionError: if a model of layouts is given tiles, or the other way round.
    """
    for program in programs:
        if program.is_tile != (configures(model) == KERNEL):
            others = [name for name in MODELS if configures(name) != configures(model)]
            raise OptionError(
                f"{program.name} holds configurations of {'the whole kernel' if program.is_tile else 'nodes'}, which "
                f"{model} does not read; those that do: {', '.join(others)}"
            )


def divide(programs: Sequence[Program], apart: Sequence[Program], config: Config) -> Split:
    """Choose what is trained on, by `config.data.seed` alone.

    Args:
      programs: at least one.
      apart: held out already.
      config: says how.

    Raises:
      OptionError: if nothing would be left to train on.
    """
    by, data = config.held_out.by, config.data
    if by == "rows":
        return _by_rows(programs, data)
    numbers = _held_out_numbers(len(programs), config)
    train = [p for i, p in enumerate(programs) if i not in numbers]
    held_out = [*(p for i, p in enumerate(programs) if i in numbers), *apart]
    if not train:
        raise OptionError(f"nothing is left to train on: {len(programs)} programs, held out by {by}")
    return Split(
        train=tuple(some_of(p, data.train_rows, data.seed) for p in train),
        held_out=tuple(some_of(p, data.held_out_rows, data.seed) for p in held_out),
    )


def some_of(program: Program, count: int, seed: int) -> Part:
    """So many random configurations of a program; all if `count` is 0.

    Raises:
      OptionError: if it has none.
    """
    if not len(program.runtime):
        raise OptionError(
            f'{program.name}: no configuration is left of the file, data.keep = "drop" drops those that occur several '
            'times; leave it out, or set data.keep = "minimum"'
        )
    return Part(program=program, rows=np.sort(_shuffled(program, seed)[: count or None]))


def _of_collection(data: DataConfig, split: str) -> list[Path]:
    if not data.folder and not data.collection:
        return []
    if not data.folder or not data.collection:
        raise OptionError("data.folder and data.collection belong together; one of them is missing")
    return TpuGraphs(data.folder).files(data.collection, split)


def _held_out_numbers(count: int, config: Config) -> set[int]:
    held_out = config.held_out
    if held_out.by not in ("folds", "leave-one-out"):
        return set()
    folds = held_out.folds if held_out.by == "folds" else count
    if count < max(folds, 2) or held_out.fold >= folds:
        raise OptionError(
            f"held_out: fold {held_out.fold} of {folds} folds of {count} programs; take fewer folds, or hold out rows "
            '(held_out.by = "rows")'
        )
    order = np.random.default_rng([config.data.seed, count]).permutation(count)
    return set(np.array_split(order, folds)[held_out.fold].tolist())


def _by_rows(programs: Sequence[Program], data: DataConfig) -> Split:
    train, held_out = [], []
    for program in programs:
        order = _shuffled(program, data.seed)
        apart = data.held_out_rows or max(1, len(order) // 5)
        rows = order[apart:][: data.train_rows or None]
        if len(rows) < 2:
            most = len(order) - 2
            step = f"set data.held_out_rows to at most {most} (0 = a fifth)" if most > 0 else "leave the file out"
            raise OptionError(
                f"{program.name}: {len(order)} configurations, of which {apart} are held out: too few are left to "
                f"train on; {step}"
            )
        train.append(Part(program=program, rows=np.sort(rows)))
        held_out.append(Part(program=program, rows=np.sort(order[:apart])))
    return Split(train=tuple(train), held_out=tuple(held_out))


def _shuffled(program: Program, seed: int) -> np.ndarray:
    """All rows in an order that depends on the seed and the file alone."""
    return np.random.default_rng([seed, int(program.sha256[:16], 16)]).permutation(len(program.runtime))
