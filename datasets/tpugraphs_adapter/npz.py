"""Arrays in a zip: headers without data, small arrays whole, large arrays row by row.

    archive = Archive(path)              # reads the directory and each array's header
    archive.read("config_runtime")
    StreamedArray(archive, "node_config_feat").take([7, 3, 7])

numpy reads a member whole or not at all, and the largest `node_config_feat` unpacks to 2.6 GB. Here a member is
unpacked in blocks of a few MiB, and only the rows asked for stay. A zip's checksum covers a whole member, so the first
look at an array goes through to its end, whichever rows it is for; later ones stop at the last row that is needed.

Nothing is believed: headers are parsed as literals, arrays of objects are refused by their header (nothing is ever
unpickled), sizes are compared before anything is allocated, and whatever zipfile and zlib raise becomes a
`TpuGraphsError`. A file that changes after it was opened is an error.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from exla.datasets.tpugraphs_adapter.schema import Header, first_not_finite
from exla.errors import Problem, TpuGraphsError

BLOCK_BYTES = 2**22
"""How much of a large array is unpacked at a time."""
_MOST_PER_BYTE = 1032
"""Deflate makes at most this many bytes of one."""
_LONGEST_END = 22 + 2**16
"""A zip's last record, with the longest comment."""
_DAMAGE = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, OSError),
    *(RuntimeError, NotImplementedError, ValueError, OverflowError, MemoryError),
)
"""What zipfile, zlib and numpy raise for files that are not what they seem (RuntimeError: encrypted)."""
_AGAIN = "Download or export the file again."


@dataclass(frozen=True, kw_only=True)
class Member:
    """One array of an archive, as its header describes it.

    Attributes:
      dtype, shape: of the array.
      by_column: whether it is stored column by column.
      header_bytes: where its data begin.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    by_column: bool
    header_bytes: int

    @property
    def data_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


class Archive:
    """An npz file whose headers were read.

    Args:
      path: the file.

    Attributes:
      members: key -> header, of the arrays whose headers are sound.
      problems: what is wrong with the others.

    Raises:
      TpuGraphsError: if it is no zip at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: dict[str, Member] = {}
        self.problems: list[Problem] = []
        with _damage(path, "file", "a zip of arrays (npz)"):
            self._signature = _signature(path)
            with zipfile.ZipFile(path) as archive:
                infos = archive.infolist()
                if (declared := _declared_members(path)) != len(infos):
                    raise ValueError(f"a zip of {declared} members, of which its directory lists {len(infos)}")
                for info in infos:
                    self._add(archive, info)

    def headers(self) -> dict[str, Header]:
        """Key -> (dtype, shape)."""
        return {name: (m.dtype, m.shape) for name, m in self.members.items()}

    def read(self, name: str) -> np.ndarray:
        """One array, whole.

        Raises:
          TpuGraphsError: if its data are damaged.
        """
        member = self.members[name]
        with self.opened(name) as file:
            data = file.read(member.data_bytes)
        array = np.frombuffer(data, member.dtype)
        return array.reshape(member.shape[::-1]).T.copy() if member.by_column else array.reshape(member.shape).copy()

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """A member's data, its header skipped; what goes wrong with them inside is a TpuGraphsError."""
        with _damage(self.path, name, "data that unpack to what their checksum says"):
            if _signature(self.path) != self._signature:
                raise OSError("the file has changed since it was opened")
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
                file.read(self.members[name].header_bytes)
                yield file

    def _add(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        name = info.filename.removesuffix(".npy")
        try:
            if name == info.filename or name in self.members:
                raise ValueError("two arrays of one name" if name in self.members else "a member that is no .npy")
            self.members[name] = _header(archive, info)
        except _DAMAGE as error:
            is_pickle = isinstance(error, _ObjectsError)
            self.problems.append(
                Problem(
                    array=name,
                    expected="an array of numbers with a sound header",
                    found=f"{error or type(error).__name__}",
                    next_step="Save numbers, not objects: nothing is unpickled." if is_pickle else _AGAIN,
                )
            )


class _ObjectsError(ValueError):
    """An array of Python objects, which only unpickling could read."""


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"compression method {info.compress_type}, neither stored nor deflated")
    if info.file_size > _MOST_PER_BYTE * info.compress_size:
        raise ValueError(f"{info.compress_size} bytes that claim to unpack to {info.file_size}")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in readers:
            raise ValueError(f"npy format {version}, neither 1.0 nor 2.0")
        try:
            shape, by_column, dtype = readers[version](file)
        except (ValueError, TypeError, SyntaxError, tokenize.TokenError, OverflowError) as error:
            raise ValueError("a header that numpy cannot read") from error
        header_bytes = file.tell()
    if dtype.hasobject:
        raise _ObjectsError(f"pickled objects (dtype {dtype})")
    member = Member(dtype=dtype, shape=tuple(map(int, shape)), by_column=by_column, header_bytes=header_bytes)
    if any(size < 0 for size in member.shape) or header_bytes + member.data_bytes != info.file_size:
        raise ValueError(f"shape {member.shape} of {dtype}, but {info.file_size - header_bytes} bytes of data")
    return member


@contextlib.contextmanager
def _damage(path: Path, name: str, expected: str) -> Iterator[None]:
    try:
        yield
    except TpuGraphsError:
        raise
    except _DAMAGE as error:
        found = f"{error or type(error).__name__}"
        problem = Problem(array=name, expected=expected, found=found, next_step=_AGAIN)
        raise TpuGraphsError(path, [problem]) from error


def _declared_members(path: Path) -> int:
    """How many members a zip's last record says there are: zipfile does not miss those that its directory lost."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _LONGEST_END))
        tail = file.read()
    at = tail.rfind(b"PK\5\6")
    return int.from_bytes(tail[at + 10 : at + 12], "little")


def _signature(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


class StreamedArray:
    """A large array of floats, read by rows of its first axis.

    Args:
      archive: where it is.
      name: its key; it has at least one row, and rows of at least one number.
    """

    def __init__(self, archive: Archive, name: str) -> None:
        self.archive = archive
        self.name = name
        self.shape = archive.members[name].shape
        self.dtype = archive.members[name].dtype
        self._is_sound = False

    def blocks(self, rows: int | None = None) -> Iterator[np.ndarray]:
        """All rows in order, in blocks.

        Args:
          rows: rows of a block; None = as many as fit BLOCK_BYTES.

        Raises:
          TpuGraphsError: where the data are damaged, or not finite. With the last block the checksum was compared.
        """
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        rows = rows or max(1, BLOCK_BYTES // row_bytes)
        with self.archive.opened(self.name) as file:
            for start in range(0, self.shape[0], rows):
                size = min(rows, self.shape[0] - start)
                data = file.read(size * row_bytes)
                block = np.frombuffer(data, self.dtype).reshape(size, *self.shape[1:])
                if not self._is_sound:
                    self._check_finite(block, start)
                yield block
        self._is_sound = True

    def take(self, rows: Sequence[int] | np.ndarray | None) -> np.ndarray:
        """Some rows, in any order, repeated or not; None = all.

        Raises:
          TpuGraphsError: for rows that are not there, and where the data are damaged.
        """
        wanted = np.arange(self.shape[0]) if rows is None else self._rows(rows)
        out = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        order = np.argsort(wanted, kind="stable")
        ascending = wanted[order]
        start = done = 0
        for block in self.blocks():
            if self._is_sound and done == len(wanted):
                break
            stop = start + len(block)
            until = int(np.searchsorted(ascending, stop))
            out[order[done:until]] = block[ascending[done:until] - start]
            start, done = stop, until
        return out

    def _rows(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        wanted = np.asarray(rows)
        if wanted.size == 0:
            wanted = wanted.astype(np.int64)
        outside = f"{wanted.dtype} of shape {wanted.shape}"
        if wanted.ndim == 1 and wanted.dtype.kind in "iu":
            bad = (wanted < 0) | (wanted >= self.shape[0])
            if not bad.any():
                return wanted.astype(np.int64)
            outside = f"row {wanted[np.argmax(bad)]}"
        problem = Problem(
            array=self.name,
            expected=f"a list of rows from 0 to {self.shape[0] - 1}",
            found=outside,
            next_step="A mask becomes rows by numpy.flatnonzero.",
        )
        raise TpuGraphsError(self.archive.path, [problem])

    def _check_finite(self, block: np.ndarray, start: int) -> None:
        if (row := first_not_finite(block)) is not None:
            problem = Problem(
                array=self.name,
                expected="finite numbers",
                found=f"NaN or infinity in row {start + row}",
                next_step="Export the file again.",
            )
            raise TpuGraphsError(self.archive.path, [problem])
