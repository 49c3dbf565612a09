"""The files that records are kept in: which one a key belongs to, how lines are read, added and removed.

A directory of records holds up to 256 files, `00.jsonl` to `ff.jsonl`, by the first two digits of the key's name, which
is a hash of all its parts: many records of one program are spread as evenly as those of many. A lookup opens one file.
`records.jsonl` is the one file of earlier releases; it is read, and nothing is added to it.

Each file has a lock file beside it, and whoever changes the file holds it. This is what keeps lines whole with many
writers, on one machine and over NFS:

- the lock is `filelock.FileLock`: flock, which the kernel releases when its holder dies. Linux clients of NFS make it a
  lock on the server, unless mounted with `nolock` or `local_lock=flock`; then there is none between machines. Where a
  file system knows no flock, filelock's lock file by exclusive creation takes its place. It is not released by a crash
  on another machine: what waits for it gives up after LOCK_TIMEOUT_S, and somebody has to delete it.
- NFS shows a file's current end to whoever opens it after its last writer closed it. So files are opened under the lock
  and are synced and closed before it is released, and a reader asks for size and time after it has opened a file:
  those of a path may be a minute old.
- lines are removed by writing what stays to a new file that takes the old one's place, under the same lock. A reader
  sees the old file or the new one, and nobody adds to a file that is no longer there.
- nothing is mapped into memory, and there is no index beside the lines that could be wrong.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import filelock

from exla.search.record import Record

ONE_FILE = "records.jsonl"
"""Where earlier releases kept all records."""
LOCK_TIMEOUT_S = 10
_TRIES = 20


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a file of records.

    Attributes:
      path: the file.
      number: of the line, from 1.
      text: the line as it is, without its newline.
      record: what it says; None where it is no record.
      reason: why it is none.
      torn: whether it is the end of the file without a newline: a writer is at it, or died.
    """

    path: Path
    number: int
    text: bytes
    record: Record | None
    reason: str = ""
    torn: bool = False


def key_name(key: Mapping[str, str]) -> str:
    """The name of a key: 16 hex digits, the hash of all its parts."""
    return hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]


def file_name(key: Mapping[str, str]) -> str:
    """The file that records of a key are in."""
    return f"{key_name(key)[:2]}.jsonl"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file of records.

    Raises:
      OSError: if it cannot be had, or not in time.
    """
    name = f"{path}.lock"
    try:
        lock: filelock.BaseFileLock = filelock.FileLock(name)
        try:
            lock.acquire(timeout=LOCK_TIMEOUT_S, poll_interval=0.01)
        except NotImplementedError:  # no flock here, and a filelock that does not change over by itself
            lock = filelock.SoftFileLock(name)
            lock.acquire(timeout=LOCK_TIMEOUT_S, poll_interval=0.01)
    except filelock.Timeout as error:
        raise TimeoutError(errno.ETIMEDOUT, f"somebody has held the lock for {LOCK_TIMEOUT_S} s", name) from error
    try:
        yield
    finally:
        lock.release()


def read_lines(path: Path, *, complete: bool = False) -> list[Line]:
    """All lines of a file but empty ones.

    Args:
      path: the file.
      complete: whether nobody is writing, so that an end without a newline is a line like any other.

    Raises:
      OSError: if it cannot be read.
    """
    return lines_of(path, path.read_bytes(), complete=complete)


def lines_of(path: Path, data: bytes, *, complete: bool = False) -> list[Line]:
    """What `read_lines` makes of a file that holds these bytes."""
    *lines, end = data.split(b"\n")
    found = [_line(path, k, text) for k, text in enumerate(lines, start=1) if text.strip()]
    if end.strip() and complete:
        found.append(_line(path, len(lines) + 1, end))
    elif end.strip():
        found.append(
            Line(path=path, number=len(lines) + 1, text=end, record=None, reason="the line is cut off", torn=True)
        )
    return found


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        return Line(path=path, number=number, text=text, record=Record.from_line(text))
    except ValueError as error:
        return Line(path=path, number=number, text=text, record=None, reason=str(error))


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Add lines at a file's end, on disk when this returns; the caller holds the lock.

    Raises:
      OSError: if that is impossible.
    """
    with _opened_at_end(path) as file:
        text = b"".join(line.encode() + b"\n" for line in lines)
        is_new = file.seek(0, os.SEEK_END) == 0
        if not is_new:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                text = b"\n" + text  # somebody died in the middle of a line
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        _sync_directory(path.parent)


@contextlib.contextmanager
def _opened_at_end(path: Path) -> Iterator[BinaryIO]:
    """Open a file to add to it; not one that it replaced, to which a stale cache of names on NFS may still lead."""
    for _ in range(_TRIES):
        with open(path, "ab+") as file:
            if os.fstat(file.fileno()).st_nlink:
                yield file
                return
        time.sleep(0.1)
    raise OSError(errno.ESTALE, "the file was replaced, and its name still leads to the old one", str(path))


def keep_lines(path: Path, choose: Callable[[Sequence[Line]], Sequence[Line]]) -> tuple[int, int]:
    """Remove lines from a file at once: after a crash it holds all of them or only those that stay.

    Args:
      path: the file.
      choose: picks those that stay from all lines; they are kept byte by byte.

    Returns:
      How many lines were there, and how many stayed.

    Raises:
      OSError: if that is impossible; the file is as it was.
    """
    with locked(path):
        lines = read_lines(path, complete=True)
        kept = choose(lines)
        if len(kept) < len(lines):
            new = path.with_name(f"{path.name}.new")
            with open(new, "wb") as file:
                file.writelines(line.text + b"\n" for line in kept)
                file.flush()
                os.fsync(file.fileno())
            shutil.copymode(path, new)
            os.replace(new, path)
            _sync_directory(path.parent)
        return len(lines), len(kept)


def _sync_directory(directory: Path) -> None:
    """Put a directory's names on disk, where its file system has a way to."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
