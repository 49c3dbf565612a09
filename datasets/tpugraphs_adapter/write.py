"""Writing TpuGraphs files: the keys, dtypes and shapes of Google's own, checked before a file appears.

    write_layout("mine.npz", graph=graph, configs=configs, runtime=runtime)
    write("copy.npz", read("other.npz"))

Configurations may come in blocks, so that no more than one of them is in memory. What `read` would refuse is not
written: the file takes its name when it is complete and sound.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

import numpy as np

from exla.cost_model.graph import Graph
from exla.datasets.tpugraphs_adapter.files import Layout, SplitParts, Tile, is_of_test_split
from exla.datasets.tpugraphs_adapter.schema import (
    CONFIGS,
    LAYOUT,
    TILE,
    ArraySpec,
    check_headers,
    check_values,
    first_not_finite,
)
from exla.errors import Problem, TpuGraphsError

_NONE: np.ndarray = np.zeros(0, np.int64)


def write_layout(
    path: str | PathLike[str],
    *,
    graph: Graph,
    configs: np.ndarray | Iterable[np.ndarray],
    runtime: np.ndarray,
    is_default: np.ndarray | None = None,
    split: SplitParts | None = None,
    test: bool | None = None,
) -> None:
    """Write a file of a layout collection, or of the split collection.

    Args:
      path: the file; replaced if it is there.
      graph: of n nodes, nc of them configurable, with `node_splits`.
      configs: (c, nc, 18) float32, or blocks of rows that make it up.
      runtime: (c,) int64, nanoseconds.
      is_default: (c,) bool; None = the file does not say.
      split: what a file of the split collection has besides.
      test: whether the runtimes may all be 0; None = if the folder is called "test".

    Raises:
      TpuGraphsError: with all problems that were found; nothing is written then.
    """
    arrays = {
        **_graph_arrays(graph),
        "node_config_ids": np.asarray(graph.node_config_ids),
        "config_runtime": np.asarray(runtime),
        "node_splits": np.asarray(graph.node_splits).reshape(1, -1),
        **({} if is_default is None else {"is_default": np.asarray(is_default)}),
        **({} if split is None else split.arrays()),
    }
    _write(Path(path), LAYOUT, arrays, configs, test)


def write_tile(
    path: str | PathLike[str],
    *,
    graph: Graph,
    configs: np.ndarray | Iterable[np.ndarray],
    runtime: np.ndarray,
    normalizers: np.ndarray,
    test: bool | None = None,
) -> None:
    """Write a file of a tile collection.

    Args:
      path: the file; replaced if it is there.
      graph: of n nodes.
      configs: (c, 24) float32, or blocks of rows that make it up.
      runtime: (c,) int64, nanoseconds.
      normalizers: (c,) int64, nanoseconds of the default configuration.
      test: whether the runtimes may all be 0; None = if the folder is called "test".

    Raises:
      TpuGraphsError: with all problems that were found; nothing is written then.
    """
    arrays = {
        **_graph_arrays(graph),
        "config_runtime": np.asarray(runtime),
        "config_runtime_normalizers": np.asarray(normalizers),
    }
    _write(Path(path), TILE, arrays, configs, test)


def write(path: str | PathLike[str], file: Layout | Tile) -> None:
    """Write an open file again, block by block: the same keys, dtypes and values.

    Raises:
      TpuGraphsError: if the original is damaged; nothing is written then.
    """
    test = not file.has_target
    if isinstance(file, Layout):
        write_layout(
            path,
            graph=file.graph,
            configs=file.blocks(),
            runtime=file.runtime,
            is_default=file.is_default,
            split=file.split,
            test=test,
        )
    else:
        write_tile(
            path,
            graph=file.graph,
            configs=file.blocks(),
            runtime=file.runtime,
            normalizers=file.normalizers,
            test=test,
        )


def _graph_arrays(graph: Graph) -> dict[str, np.ndarray]:
    return {name: np.asarray(getattr(graph, name)) for name in ("node_feat", "node_opcode", "edge_index")}


def _write(
    path: Path,
    schema: tuple[ArraySpec, ...],
    arrays: Mapping[str, np.ndarray],
    configs: np.ndarray | Iterable[np.ndarray],
    test: bool | None,
) -> None:
    name = CONFIGS[schema]
    spec = next(s for s in schema if s.name == name)
    headers = {k: (v.dtype, v.shape) for k, v in arrays.items()}
    if isinstance(configs, np.ndarray):
        headers[name] = (configs.dtype, configs.shape)
        blocks: Iterable[np.ndarray] = [configs]
    else:
        known = {"c": arrays["config_runtime"].size, "nc": arrays.get("node_config_ids", _NONE).size}
        headers[name] = (np.dtype(spec.dtype), tuple(known[s] if isinstance(s, str) else s for s in spec.shape))
        blocks = configs
    problems, sizes = check_headers(schema, headers)
    wrong = {p.array for p in problems}
    sound = {k: v for k, v in arrays.items() if k not in wrong}
    problems += check_values(sound, sizes, test=is_of_test_split(path, test))
    if problems:
        raise TpuGraphsError(path, problems)
    new = path.with_name(f"{path.name}.new")
    try:
        with zipfile.ZipFile(new, "w", compression=zipfile.ZIP_DEFLATED) as archive:
            for key, array in arrays.items():
                with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
            _write_configs(archive, path, spec, headers[name][1], blocks)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _write_configs(
    archive: zipfile.ZipFile,
    path: Path,
    spec: ArraySpec,
    shape: tuple[int, ...],
    blocks: Iterable[np.ndarray],
) -> None:
    rows = 0
    with archive.open(f"{spec.name}.npy", "w", force_zip64=True) as file:
        header = {"descr": spec.dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            found = f"{block.dtype} {block.shape} at row {rows}"
            bad = first_not_finite(block) if block.dtype.str == spec.dtype and block.size else None
            if block.dtype.str != spec.dtype or block.shape[1:] != shape[1:] or bad is not None:
                _refuse(path, spec, shape, found if bad is None else f"NaN or infinity in row {rows + bad}")
            rows += len(block)
            file.write(np.ascontiguousarray(block).tobytes())
    if rows != shape[0]:
        _refuse(path, spec, shape, f"{rows} rows in all, {math.prod(shape[1:])} numbers each")


def _refuse(path: Path, spec: ArraySpec, shape: tuple[int, ...], found: str) -> None:
    problem = Problem(
        array=spec.name,
        expected=f"finite {np.dtype(spec.dtype)} blocks that make up {shape}",
        found=found,
        next_step="Give one row for each runtime.",
    )
    raise TpuGraphsError(path, [problem])
