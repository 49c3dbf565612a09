"""The tuning records: where they are, and whether they can be read and written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import filelock

from exla.doctor.finding import NOTE, OK, PROBLEM, Finding


def tuning_records() -> Sequence[Finding]:
    """The folder, whether it can be written, its size, who holds its lock, and lines that are no records."""
    from exla.search.records import RecordStore
    from exla.units import format_bytes

    store = RecordStore(None)
    folder = store.directory
    if (why := _unwritable(folder)) is not None:
        is_off = os.environ.get("EXLA_RECORDS") in ("off", "read")
        step = 'set EXLA_RECORDS_DIR to a folder that can be written, or EXLA_RECORDS="off"'
        return (
            Finding(
                name="records",
                status=NOTE if is_off else PROBLEM,
                found=f"{folder} cannot be written: {why}",
                next_step="" if is_off else step,
            ),
        )
    if not store.files():
        return (Finding(name="records", status=OK, found=f"none yet; they are kept in {folder}"),)
    read = store.read()
    size = format_bytes(sum(p.stat().st_size for p in folder.iterdir() if p.is_file()))
    found = [Finding(name="records", status=OK, found=f"{len(read.records)} in {folder}; the folder has {size}")]
    if read.bad_lines or read.torn:
        bad = f"{read.bad_lines} lines are no records" + ("; a last one is cut off" if read.torn else "")
        step = "`exla records verify` lists them, `exla records prune --bad` removes them"
        found.append(Finding(name="bad records", status=NOTE, found=f"{bad}; they are passed over", next_step=step))
    if any(map(_is_locked, folder.glob("*.lock"))):
        text = "another process holds the lock just now; one that waits for it gives up after 10 s, and goes on"
        found.append(Finding(name="records lock", status=NOTE, found=text, next_step="look again in a moment"))
    return found


def _unwritable(folder: Path) -> str | None:
    """Why a folder cannot be written or made; None where it can.

    A file is made in the nearest folder that exists, and removed: by permissions alone, root may write anywhere.
    """
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        return f"{nearest} is no folder"
    try:
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=".exla-"):
            return None
    except OSError as error:
        return f"no file can be made in {nearest} ({error.strerror or error})"


def _is_locked(lock: Path) -> bool:
    if not lock.exists():
        return False
    try:
        with filelock.FileLock(lock, timeout=0):
            return False
    except filelock.Timeout:
        return True
