"""Configurations of a file, unpacked once, so that random rows of them are cheap.

An npz is a deflate stream: reading row 40,000 unpacks the 39,999 before it. A training run reads random rows all the
time, so the array is streamed once into a .npy file, and mapped into memory from there:

    unpacked = unpack(path, keep="minimum", folder=cache_folder(""))
    unpacked.configs[[17, 3]]           # (2, nc, 18), from the page cache
    unpacked.rows                       # those that stay when each configuration is kept once

An entry is a folder called after the SHA-256 of the source file: another file, or the same one changed, is another
entry, and a copy under another name is the same. An entry is written beside its place and renamed, so that it is whole
or not there; several processes may do so at once, and one of them wins.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from exla.datasets.tpugraphs_adapter import Layout, Tile, deduplicate, read

VERSION = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Unpacked:
    """One file.

    Attributes:
      file: opened; its configurations are better read from `configs`.
      sha256: of the file.
      configs: (c, nc, 18) or (c, 24) float32, mapped from disk, not writable.
      rows: (r,) int64, ascending, the rows that stay when each configuration is kept once.
      noise: what duplicates say of the noise: the fields of `metrics.NoiseFloor`.
    """

    file: Layout | Tile
    sha256: str
    configs: np.ndarray
    rows: np.ndarray
    noise: dict[str, Any]


def cache_folder(named: str) -> Path:
    """Where entries are: `named`, or the user's cache folder where that is ""."""
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("exla")) / "training"


def unpack(path: Path, keep: str, folder: Path) -> Unpacked:
    """Open a file, and unpack its configurations unless that was done before.

    Args:
      path: an npz file of TpuGraphs.
      keep: "minimum" or "drop", as for `deduplicate`.
      folder: of the cache.

    Raises:
      TpuGraphsError: if the file is not sound, or its runtimes are withheld.
    """
    file, sha256 = read(path), file_hash(path)
    entry = folder / f"{sha256}-{keep}-{VERSION}"
    if not entry.is_dir():
        _write(entry, file, keep)
    return Unpacked(
        file=file,
        sha256=sha256,
        configs=np.load(entry / "configs.npy", mmap_mode="r", allow_pickle=False),
        rows=np.load(entry / "rows.npy", allow_pickle=False),
        noise=json.loads((entry / "noise.json").read_text()),
    )


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(entry: Path, file: Layout | Tile, keep: str) -> None:
    once = deduplicate(file, keep)  # type: ignore[arg-type]
    entry.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
    try:
        row = 0
        configs: np.memmap | None = None
        for block in file.blocks():
            if configs is None:
                shape = (file.num_configs, *block.shape[1:])
                configs = np.lib.format.open_memmap(partial / "configs.npy", "w+", block.dtype, shape)
            configs[row : row + len(block)] = block
            row += len(block)
        if configs is not None:
            configs.flush()
        np.save(partial / "rows.npy", once.rows)
        (partial / "noise.json").write_text(json.dumps(asdict(once.noise)))
        _put_in_place(partial, entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, entry: Path) -> None:
    try:
        os.rename(partial, entry)
    except OSError:
        if not entry.is_dir():
            raise
