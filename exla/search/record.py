"""One tuning record: a candidate that was compiled or measured, and what came of it; one line of JSON.

    record = Record(key=make_key(program=..., limit=...), decisions=[...], status="ok", is_default=False, ...)
    Record.from_line(record.to_line()) == record

A line comes from anywhere: another process, another machine, an editor. What is read is checked field by field and is
refused with a reason that fits on a line; nothing in it is ever executed. Fields that this version does not know are
kept and written again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

SCHEMA_VERSION = 1
STATUSES = ("ok", "compile_error", "over_limit", "oom", "timeout", "crash", "wrong_result", "replay_miss")
MOST_LINE_BYTES = 4 * 1024**2
"""A longer line is no record: its decisions would be more than a program has equations."""
MOST_NESTING = 50
"""Deeper data could exhaust the stack of whoever compares, prints or writes it."""
MOST_BYTES = 2**63 - 1
_REASON_CHARACTERS = 200


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
      about: what the hashes of the key stand for, in words, for people: "target", "device", "source",
        "arguments", "options" (those that are not the default). Never compared.
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
    about: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is none of {', '.join(STATUSES)}")
        if self.status != "ok" and self.run_s is not None:
            raise ValueError(f"a record with status {self.status!r} has no run time, got {self.run_s}")
        for name in ("compile_s", "run_s"):
            seconds = getattr(self, name)
            if seconds is not None and not _is_time(seconds):
                raise ValueError(f"{name}={seconds!r} is not a finite number of seconds")
        for name in ("limit_bytes", "projected_bytes", "compiled_bytes", "measured_bytes"):
            count = getattr(self, name)
            if count is not None and not (_is_int(count) and 0 <= count <= MOST_BYTES):
                raise ValueError(f"{name}={count!r} is not a number of bytes")
        if not _is_text_to_text(self.key):
            raise ValueError("key must map names to hashes")
        if not _is_text_to_text(self.about):
            raise ValueError("about must map texts to texts")
        if not isinstance(self.decisions, list) or not all(isinstance(d, Mapping) for d in self.decisions):
            raise ValueError("decisions must be a list of objects")
        if not isinstance(self.is_default, bool) or not isinstance(self.strategy, str):
            raise ValueError("is_default must be a bool and strategy a text")
        for name in ("seed", "schema_version"):
            if not _is_int(getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)!r} is not an int")

    @property
    def candidate(self) -> str:
        """The decisions as text: what tells a candidate from the others of its program."""
        return json.dumps(list(self.decisions), sort_keys=True)

    def to_line(self) -> str:
        """The record as one line of JSON in ASCII, without the newline."""
        known = {name: getattr(self, name) for name in _KNOWN}
        return json.dumps({**self.extra, **known}, allow_nan=False, sort_keys=True)

    @classmethod
    def from_line(cls, line: str | bytes) -> Record:
        """Read one line.

        Raises:
          ValueError: if it is not a record; the message is short, whatever the line holds.
        """
        try:
            return cls._from_line(line)
        except (TypeError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(_reason(error)) from None

    @classmethod
    def _from_line(cls, line: str | bytes) -> Record:
        if len(line) > MOST_LINE_BYTES:
            raise ValueError(f"the line is longer than {MOST_LINE_BYTES} bytes")
        text = line if isinstance(line, str) else line.decode()
        data = _DECODER.decode(text)
        if text.count("[") + text.count("{") > MOST_NESTING:
            _check_nesting(data)
        if not isinstance(data, dict):
            raise ValueError("the line is not an object")
        known = {k: data.pop(k) for k in _KNOWN & data.keys()}
        return cls(**known, extra=data)


_KNOWN = frozenset(f.name for f in fields(Record)) - {"extra"}


def _reason(error: BaseException) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} of the line is not UTF-8"
    if isinstance(error, RecursionError):
        return "the line is nested too deeply"
    if isinstance(error, TypeError):
        return f"the line lacks fields: {str(error).partition('missing ')[2] or error}"
    said = str(error) or type(error).__name__
    return said if len(said) <= _REASON_CHARACTERS else f"{said[:_REASON_CHARACTERS]}…"


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_REASON_CHARACTERS]} is not a finite number")
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _check_nesting(data: Any) -> None:
    level = [data]
    for _ in range(MOST_NESTING):
        inside = (x.values() if isinstance(x, dict) else x for x in level if isinstance(x, (dict, list)))
        level = [x for values in inside for x in values]
    if level:
        raise ValueError(f"the line is nested more than {MOST_NESTING} levels deep")


def _is_text_to_text(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) and isinstance(v, str) for k, v in value.items())


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: Any) -> bool:
    """Whether a value is a number of seconds from 0 on; an int may be too big for a float."""
    return (_is_int(value) or isinstance(value, float)) and 0 <= value <= 1e18
