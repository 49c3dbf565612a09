"""Tuning records: what was compiled, with what outcome, kept for the next process.

    store = RecordStore()
    store.append(record)
    store.lookup(record.key)[-1] == record

Records are lines of JSON in the user's cache directory (`EXLA_RECORDS_DIR` overrides it), spread over files by key
(`exla.search.shards`). Beside them, read-only ones come with exla. The key is a set of named hashes, one for each thing
the outcome depends on, so that a miss can say which part differed; a record of another device never matches.

Readers never trust what they find: a torn last line is dropped, a bad line is counted and reported, unknown fields are
kept, and nothing is ever unpickled or executed. A lookup reads one file and parses only lines that hold every hash of
the key as text; there is no index.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from exla.errors import ExlaWarning
from exla.search.prune import Cut
from exla.search.record import MOST_LINE_BYTES, Record
from exla.search.shards import ONE_FILE, Line, append_lines, file_name, keep_lines, locked, read_lines

PACKAGED = Path(__file__).parent / "packaged"
CODE, LIMIT = "exla", "limit"
"""The parts of a key that stand for exla's own code, and for the limit."""
_SAMPLE_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class ReadReport:
    """What reading all records found.

    Attributes:
      records: the good lines; those of one key in the order in which they were written.
      bad: the others.
    """

    records: tuple[Record, ...]
    bad: tuple[Line, ...]

    @property
    def bad_lines(self) -> int:
        """How many complete lines were not records."""
        return sum(not b.torn for b in self.bad)

    @property
    def torn(self) -> bool:
        """Whether a last line was cut off."""
        return any(b.torn for b in self.bad)


class RecordStore:
    """The records of one directory, and those that come with exla.

    Args:
      directory: where they are; None = EXLA_RECORDS_DIR, else the user's cache directory.
      packaged: where the read-only ones are; None = `PACKAGED`.
    """

    def __init__(self, directory: Path | None = None, packaged: Path | None = None) -> None:
        self.directory = directory or default_directory()
        self.packaged = packaged or PACKAGED
        self._found: dict[tuple[Path, str], tuple[tuple[int, ...], tuple[Record, ...]]] = {}

    def files(self) -> list[Path]:
        """The user's own files, the one of earlier releases first."""
        return sorted(_files(self.directory), key=lambda p: (p.name != ONE_FILE, p.name))

    def append(self, record: Record) -> str:
        """Add one record; where that is impossible, warn and go on.

        Returns:
          Why it could not be added; "" where it was.
        """
        path = self.directory / file_name(record.key)
        try:
            line = _line_of(record)
            self.directory.mkdir(parents=True, exist_ok=True)
            with locked(path):
                append_lines(path, [line])
        except (OSError, ValueError) as error:
            reason = f"tuning records cannot be written to {self.directory} ({error})"
            warnings.warn(
                f'{reason}; set EXLA_RECORDS_DIR to a directory that can be written, or records="off"',
                ExlaWarning,
                stacklevel=2,
            )
            return reason
        return ""

    def add(self, records: Iterable[Record]) -> int:
        """Add those of some records that are not there already; returns how many those were.

        Raises:
          OSError: if that is impossible. Some may have been added then; doing it again adds the others.
        """
        by_file: dict[str, dict[str, None]] = {}
        for record in records:
            by_file.setdefault(file_name(record.key), {})[_line_of(record)] = None
        self.directory.mkdir(parents=True, exist_ok=True)
        earlier = _lines_of(self.directory / ONE_FILE)
        added = 0
        for name, wanted in sorted(by_file.items()):
            path = self.directory / name
            with locked(path):
                there = earlier | _lines_of(path)
                if missing := [line for line in wanted if line not in there]:
                    append_lines(path, missing)
            added += len(missing)
        return added

    def lines(self, *, packaged: bool = False) -> Iterator[Line]:
        """Every line, bad ones too; of the records that come with exla as well where asked for.

        A file that cannot be read is one bad line, number 0.
        """
        for path in [*self.files(), *(sorted(_files(self.packaged)) if packaged else ())]:
            try:
                yield from read_lines(path)
            except OSError as error:
                yield Line(path=path, number=0, text=b"", record=None, reason=f"the file cannot be read: {error}")

    def read(self, *, packaged: bool = False) -> ReadReport:
        """Read all records; bad lines are counted, never fatal."""
        lines = list(self.lines(packaged=packaged))
        return ReadReport(
            records=tuple(x.record for x in lines if x.record is not None),
            bad=tuple(x for x in lines if x.record is None),
        )

    def verify(self) -> tuple[int, list[Line]]:
        """How many lines of the user's own there are, and those that no lookup will find, with the reason."""
        lines = [
            replace(x, reason=f"the record is looked for in {file_name(x.record.key)}")
            if x.record is not None and x.path.name not in (ONE_FILE, file_name(x.record.key))
            else x
            for x in self.lines()
        ]
        return len(lines), [line for line in lines if line.reason]

    def prune(self, cut: Cut, *, dry_run: bool = False) -> dict[str, tuple[int, int]]:
        """Remove the user's own lines that a cut names.

        Args:
          cut: what to remove.
          dry_run: whether to count only.

        Returns:
          File name -> (lines that go, lines that stay).

        Raises:
          OSError: if that is impossible; files that come later in the order of `files` are as they were.
        """
        counts = {}
        for path in self.files():
            if dry_run:
                with locked(path):
                    lines = read_lines(path, complete=True)
                before, after = len(lines), len(cut.keep(lines))
            else:
                before, after = keep_lines(path, cut.keep)
            counts[path.name] = (before - after, after)
        return counts

    def lookup(self, key: Mapping[str, str]) -> list[Record]:
        """The records whose key is equal in every part, oldest first: exla's own, then the user's."""
        wanted = dict(key)
        files = (*sorted(_files(self.packaged)), self.directory / ONE_FILE, self.directory / file_name(key))
        return [r for path in files for r in self._holding(path, wanted) if dict(r.key) == wanted]

    def under_other_limits(self, key: Mapping[str, str]) -> list[Record]:
        """The records whose key is equal in every part but the limit; all files are searched for them."""
        wanted = without(key, LIMIT)
        files = [*sorted(_files(self.packaged)), *self.files()]
        found = [r for path in files for r in self._holding(path, wanted) if without(r.key, LIMIT) == wanted]
        return [r for r in found if r.key.get(LIMIT) != key.get(LIMIT)]

    def shipped(self, key: Mapping[str, str]) -> list[Record]:
        """The records that come with exla and were made by other code than that of a key, and are equal in the rest.

        What they decided is worth trying; what they found out must be found out again.
        """
        wanted = without(key, CODE)
        return [
            record
            for path in sorted(_files(self.packaged))
            for record in self._holding(path, wanted)
            if record.key.get(CODE) != key.get(CODE) and without(record.key, CODE) == wanted
        ]

    def explain_miss(self, key: Mapping[str, str]) -> str | None:
        """Say which parts of the key differ from the nearest record's, or None where there is a record.

        Records of the same program are near, wherever they are; all files are searched for them.
        """
        if self.lookup(key):
            return None
        same = {"program": key["program"]} if "program" in key else {}
        files = [*self.files(), *_files(self.packaged)]
        others = [r.key for path in files for r in self._holding(path, same)]
        differing = [
            sorted(name for name in {*key, *other} if key.get(name) != other.get(name))
            for other in others
            if other.get("program") == key.get("program")
        ]
        if differing:
            return "the nearest record differs in " + ", ".join(min((len(d), d) for d in differing)[1])
        return "there are no records" + (" of this program" if self.files() else "")

    def _holding(self, path: Path, parts: Mapping[str, str]) -> tuple[Record, ...]:
        """The records of a file whose lines hold some hashes as text; as read before while the file is the same."""
        memory = (path, "\n".join(parts.values()))
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())  # of the open file: NFS may know an old state of the path
                state = (status.st_ino, status.st_size, status.st_mtime_ns)
                known = self._found.get(memory)
                if known is not None and known[0] == state:
                    return known[1]
                data = file.read()
        except OSError:
            return ()
        found = tuple(_matching(data, [v.encode() for v in parts.values() if v and json.dumps(v) == f'"{v}"']))
        self._found[memory] = (state, found)
        return found


def _matching(data: bytes, texts: Sequence[bytes]) -> Iterator[Record]:
    """The records among the complete lines that hold every text; JSON has one plain way to write a hash.

    Lines are looked for by the text that is rare at the beginning: every line may hold the hash of the target.
    """
    end = data.rfind(b"\n") + 1
    rarest = min(texts, key=lambda text: data.count(text, 0, _SAMPLE_BYTES), default=b"\n")
    at = data.find(rarest, 0, end)
    while at >= 0:
        start, stop = data.rfind(b"\n", 0, at) + 1, data.index(b"\n", at)
        line = data[start:stop]
        if all(text in line for text in texts):
            with contextlib.suppress(ValueError):
                yield Record.from_line(line)
        at = data.find(rarest, stop + 1, end)


def _line_of(record: Record) -> str:
    line = record.to_line()
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"a record of {len(line)} bytes is longer than the {MOST_LINE_BYTES} that are read again")
    return line


def _lines_of(path: Path) -> set[str]:
    """The records of a file, each as this version writes it."""
    try:
        return {line.record.to_line() for line in read_lines(path) if line.record is not None}
    except FileNotFoundError:
        return set()


def _files(directory: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(directory) if entry.name.endswith(".jsonl")]
    except OSError:
        return []


def default_directory() -> Path:
    """EXLA_RECORDS_DIR, else `exla/records` in the user's cache directory."""
    named = os.environ.get("EXLA_RECORDS_DIR")
    return Path(named) if named else Path(platformdirs.user_cache_dir("exla")) / "records"


def make_key(**parts: str) -> dict[str, str]:
    """Hash each part of a key alone: 16 hex digits each."""
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in parts.items()}


def without(key: Mapping[str, str], part: str) -> dict[str, str]:
    """A key without one of its parts."""
    return {name: value for name, value in key.items() if name != part}
