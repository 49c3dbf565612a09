"""Tuning records: what was compiled, with what outcome, kept for the next process.

A record is one JSON line in `records.jsonl` under the user's cache directory (`EXLA_RECORDS_DIR` overrides it).
Writers append, flush and fsync under a file lock; readers never trust what they find: a torn last line is dropped, a
bad line is counted and reported, unknown fields are kept, and nothing is ever unpickled or executed.

The key is a set of named hashes, one for each thing the outcome depends on, so that a miss can say which part differed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from exla.errors import ExlaWarning

SCHEMA_VERSION = 1
STATUSES = ("ok", "compile_error", "over_limit", "oom", "timeout", "crash", "wrong_result", "replay_miss")
FILE_NAME = "records.jsonl"
LOCK_TIMEOUT_S = 10


@dataclass(frozen=True, kw_only=True)
class Record:
    """One compiled or measured candidate.

    Attributes:
      key: named hashes of what the outcome depends on.
      decisions: the candidate, as plain data.
      status: one of STATUSES.
      compile_s, run_s: seconds, or None; a failure has no run time.
      limit_bytes, projected_bytes, compiled_bytes, measured_bytes: the four byte counts, None where unknown.
      is_default: whether this is the program as jax.jit compiles it.
      strategy: the search that proposed it.
      seed: its random seed.
      schema_version: of the line.
      extra: fields that this version does not know.
    """

    key: Mapping[str, str]
    decisions: Sequence[Mapping[str, Any]]
    status: str
    is_default: bool
    strategy: str
    seed: int
    compile_s: float | None = None
    run_s: float | None = None
    limit_bytes: int | None = None
    projected_bytes: int | None = None
    compiled_bytes: int | None = None
    measured_bytes: int | None = None
    schema_version: int = SCHEMA_VERSION
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is none of {', '.join(STATUSES)}")
        if self.status != "ok" and self.run_s is not None:
            raise ValueError(f"a record with status {self.status!r} has no run time, got {self.run_s}")
        for name in ("compile_s", "run_s"):
            seconds = getattr(self, name)
            if seconds is not None and not (_is_number(seconds) and math.isfinite(seconds) and seconds >= 0):
                raise ValueError(f"{name}={seconds!r} is not a finite number of seconds")
        for name in ("limit_bytes", "projected_bytes", "compiled_bytes", "measured_bytes"):
            count = getattr(self, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
                raise ValueError(f"{name}={count!r} is not a number of bytes")
        if not isinstance(self.key, Mapping) or not all(
            isinstance(k, str) and isinstance(v, str) for k, v in self.key.items()
        ):
            raise ValueError("key must map names to hashes")
        if not isinstance(self.decisions, list) or not all(isinstance(d, Mapping) for d in self.decisions):
            raise ValueError("decisions must be a list of objects")
        if not isinstance(self.is_default, bool) or not isinstance(self.strategy, str):
            raise ValueError("is_default must be a bool and strategy a text")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed={self.seed!r} is not an int")
        if isinstance(self.schema_version, bool) or not isinstance(self.schema_version, int):
            raise ValueError(f"schema_version={self.schema_version!r} is not an int")

    def to_line(self) -> str:
        """The record as one line of JSON, without the newline."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        return json.dumps({**self.extra, **known}, allow_nan=False, sort_keys=True)

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Read one line.

        Raises:
          ValueError: if it is not a record.
        """
        try:
            data = json.loads(line)
        except RecursionError as error:
            raise ValueError("the line is nested too deeply") from error
        if not isinstance(data, dict):
            raise ValueError("the line is not an object")
        names = {f.name for f in fields(cls)} - {"extra"}
        known = {k: v for k, v in data.items() if k in names}
        try:
            return cls(**known, extra={k: v for k, v in data.items() if k not in names})
        except TypeError as error:
            raise ValueError(f"the line lacks fields: {error}") from error


@dataclass(frozen=True, kw_only=True)
class ReadReport:
    """What reading a records file found.

    Attributes:
      records: the good lines, in order.
      bad_lines: how many complete lines were not records.
      torn: whether the last line was cut off.
    """

    records: tuple[Record, ...]
    bad_lines: int
    torn: bool


class RecordStore:
    """The records of one directory.

    Args:
      directory: where they are; None = EXLA_RECORDS_DIR, else the user's cache directory.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.path = (directory or default_directory()) / FILE_NAME
        self._seen: tuple[int, int] | None = None
        self._by_key: dict[tuple[tuple[str, str], ...], list[Record]] = {}

    def append(self, record: Record) -> None:
        """Add one record; where that is impossible, warn and go on."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(f"{self.path}.lock", timeout=LOCK_TIMEOUT_S), open(self.path, "ab+") as file:
                if file.seek(0, os.SEEK_END) > 0:
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        file.write(b"\n")
                file.write(record.to_line().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except (OSError, filelock.Timeout) as error:
            warnings.warn(
                f"tuning records cannot be written to {self.path.parent} ({error}); set EXLA_RECORDS_DIR to a "
                'directory that can be written, or records="off"',
                ExlaWarning,
                stacklevel=2,
            )

    def read(self) -> ReadReport:
        """Read all records; bad lines are counted, never fatal."""
        try:
            data = self.path.read_bytes()
        except OSError:
            return ReadReport(records=(), bad_lines=0, torn=False)
        *lines, rest = data.split(b"\n")
        records, bad = [], 0
        for line in lines:
            if not line.strip():
                continue
            try:
                records.append(Record.from_line(line.decode()))
            except ValueError:
                bad += 1
        return ReadReport(records=tuple(records), bad_lines=bad, torn=bool(rest.strip()))

    def lookup(self, key: Mapping[str, str]) -> list[Record]:
        """The records whose key is equal in every part, oldest first."""
        self._refresh()
        return list(self._by_key.get(tuple(sorted(key.items())), ()))

    def explain_miss(self, key: Mapping[str, str]) -> str | None:
        """Say which parts of the key differ from the nearest record's, or None where there is a record."""
        self._refresh()
        if tuple(sorted(key.items())) in self._by_key:
            return None
        if not self._by_key:
            return "there are no records"
        differing: list[list[str]] = []
        for other in map(dict, self._by_key):
            differing.append(sorted(name for name in {*key, *other} if key.get(name) != other.get(name)))
        return "the nearest record differs in " + ", ".join(min((len(d), d) for d in differing)[1])

    def _refresh(self) -> None:
        try:
            stat = self.path.stat()
        except OSError:
            self._seen, self._by_key = None, {}
            return
        now = (stat.st_size, stat.st_mtime_ns)
        if now == self._seen:
            return
        self._seen, self._by_key = now, {}
        for record in self.read().records:
            self._by_key.setdefault(tuple(sorted(record.key.items())), []).append(record)


def default_directory() -> Path:
    """EXLA_RECORDS_DIR, else `exla/records` in the user's cache directory."""
    named = os.environ.get("EXLA_RECORDS_DIR")
    return Path(named) if named else Path(platformdirs.user_cache_dir("exla")) / "records"


def make_key(**parts: str) -> dict[str, str]:
    """Hash each part of a key alone: 16 hex digits each."""
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in parts.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
