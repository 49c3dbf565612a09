"""Run a campaign: each instance in a process of its own, every record on disk before the next candidate begins.

    run_campaign("cpu.toml", Path("runs/cpu"))

The folder holds a copy of the campaign, `records/<instance>.jsonl`, and `instances.jsonl` with a line for each instance
that is finished. Run again, it goes on where it was: finished instances are passed over, and so are the candidates of
the others that have a record. A process that crashes, hangs or runs out of memory costs the candidate that it was at,
which is recorded as such, and nothing else. Another campaign in the same folder is refused.
"""

from __future__ import annotations

import gzip
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import filelock

from exla.cost_model.candidates import ranker_for
from exla.datasets.profiling.campaign import Campaign, Instance, from_dict, read_campaign
from exla.datasets.profiling.worker import recorded
from exla.errors import OptionError
from exla.search.record import Record
from exla.search.shards import append_lines, lines_of, locked

MOST_CRASHES = 4
"""Processes of one instance that may die before the instance is given up."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How an instance ended.

    Attributes:
      instance: its name.
      status: "ok", or "failed" where its process died too often or could not even begin.
      records: how many it has.
      seconds: it took this time.
      said: what a process that died said last.
    """

    instance: str
    status: str
    records: int
    seconds: float
    said: str = ""


@dataclass(kw_only=True)
class Folder:
    """Where a campaign is kept.

    Attributes:
      path: the folder.
      campaign: what is measured there.
    """

    path: Path
    campaign: Campaign
    _lock: filelock.BaseFileLock | None = field(default=None, repr=False)

    @classmethod
    def open(cls, path: Path, campaign: Campaign | None = None) -> Folder:
        """Open a folder, or begin one.

        Raises:
          OptionError: if another campaign is there, or a file, or nothing and none is given; if weights are wanted that
            are missing.
        """
        if campaign is not None and campaign.unsure and ranker_for(campaign.target) is None:
            raise OptionError(
                f"unsure = {campaign.unsure}, and there are no weights for {campaign.target} that could be unsure. "
                "Train some on a campaign without it, and name their folder in EXLA_WEIGHTS"
            )
        if path.is_file():
            raise OptionError(f"{path} is a file; a campaign is kept in a folder, which is made if there is none")
        copy = path / "campaign.json"
        if copy.exists():
            try:
                there = from_dict(json.loads(copy.read_text()), str(copy))
            except ValueError as error:
                raise OptionError(f"{copy}: not what a campaign wrote: {error}") from error
            if campaign is not None and asdict(there) != asdict(campaign):
                differ = [k for k, v in asdict(campaign).items() if asdict(there)[k] != v]
                raise OptionError(
                    f"{path} holds another campaign: {', '.join(differ)} differ. Use another folder, or the campaign "
                    f"that was begun there ({copy})"
                )
            return cls(path=path, campaign=there)
        if campaign is None:
            raise OptionError(f"{path} holds no campaign (campaign.json)")
        (path / "records").mkdir(parents=True, exist_ok=True)
        partial = path / f".campaign.json.{os.getpid()}"
        partial.write_text(json.dumps(asdict(campaign), indent=1))
        os.replace(partial, copy)
        return cls(path=path, campaign=campaign)

    def lock(self) -> None:
        """Keep other runs out of the folder until this process ends.

        Raises:
          OptionError: if one is at work there.
        """
        lock = filelock.FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise OptionError(f"another run is at work in {self.path}") from None
        self._lock = lock

    def unlock(self) -> None:
        """Let others in before this process ends."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def records_of(self, instance: str) -> Path:
        return self.path / "records" / f"{instance}.jsonl"

    def finished(self) -> dict[str, Finished]:
        """What is finished, by instance; a line that was cut off is not."""
        path = self.path / "instances.jsonl"
        found: dict[str, Finished] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    one = Finished(**json.loads(line))
                except (ValueError, TypeError):
                    continue
                found[one.instance] = one
        return found

    def left(self) -> tuple[list[Instance], Progress]:
        """The instances that are not finished, in order, and a progress that counts them."""
        known = self.finished()
        todo = [i for i in self.campaign.instances() if i.name not in known]
        return todo, Progress(known=len(known), todo=len(todo))

    def finish(self, finished: Finished) -> None:
        """Note that an instance is finished; on disk when this returns."""
        path = self.path / "instances.jsonl"
        with locked(path):
            append_lines(path, [json.dumps(asdict(finished))])

    def records(self) -> Iterator[tuple[str, list[Record], int]]:
        """Each instance with its sound records, and how many lines are none.

        Files may have been compressed by gzip, to be kept; one that is damaged counts as one line that is no record.
        """
        for path in sorted((self.path / "records").glob("*.jsonl*")):
            name, dot, rest = path.name.partition(".jsonl")
            if not dot or rest not in ("", ".gz"):
                continue
            try:
                lines = lines_of(path, gzip.decompress(path.read_bytes()) if rest else path.read_bytes())
            except (gzip.BadGzipFile, EOFError, zlib.error):
                yield name, [], 1
                continue
            yield name, [x.record for x in lines if x.record is not None], sum(x.record is None for x in lines)


def folder_name(target: str, device: str = "") -> str:
    """What the folder of one kind of device is called."""
    text = f"{target} {device}".replace(":", "-")
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in text).strip("_").lower()


Say = Callable[[str], None]


def run_campaign(
    folder: Folder,
    *,
    jobs: int = 1,
    say: Say = print,
    seconds: float = float("inf"),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Measure what is not finished.

    Args:
      folder: where, and what.
      jobs: instances that are prepared and compiled beside one another; one at a time runs anything.
      say: told a line after each instance.
      seconds: after which no further instance begins.
      environment: of the processes besides this one's.

    Returns:
      How many instances are left.

    Raises:
      OptionError: if another run is at work in the folder, or `jobs` is below 1.
    """
    if jobs < 1:
        raise OptionError(f"jobs = {jobs}: at least one instance is measured at a time")
    folder.lock()
    todo, progress = folder.left()
    end, telling, stopped = time.monotonic() + seconds, threading.Lock(), threading.Event()

    def go_on() -> None:
        if stopped.is_set():
            raise _Stopped

    def one(instance: Instance) -> bool:
        if time.monotonic() > end:
            return False
        records, clock = folder.records_of(instance.name), folder.path / ".clock"
        finished = measure_instance(folder.campaign, instance, records, environment, go_on, clock)
        with telling:
            folder.finish(finished)
            say(progress.line(finished))
        return True

    if jobs == 1:
        return len(todo) - sum(map(one, todo))
    pool = ThreadPoolExecutor(jobs)
    try:
        return len(todo) - sum(pool.map(one, todo))
    except BaseException:
        stopped.set()  # nothing is recorded of what an interrupt ends
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Stopped(Exception):
    """The run ends; what an instance was at is no finding."""


@dataclass(kw_only=True)
class Progress:
    """How far a run is, and how long it will take at this pace.

    Attributes:
      known: instances that were finished before.
      todo: those that were not.
    """

    known: int
    todo: int
    _done: int = 0
    _began: float = field(default_factory=time.monotonic)

    def line(self, finished: Finished, before: str = "") -> str:
        """What is said of an instance that is finished."""
        self._done += 1
        left = (time.monotonic() - self._began) / self._done * (self.todo - self._done)
        said = f" ({finished.said})" if finished.said else ""
        return (
            f"{self.known + self._done}/{self.known + self.todo} {before}{finished.instance}: {finished.status}, "
            f"{finished.records} records in {finished.seconds:.0f} s; {left / 60:.0f} min to go{said}"
        )


def measure_instance(
    campaign: Campaign,
    instance: Instance,
    records: Path,
    environment: Mapping[str, str] | None = None,
    each: Callable[[], None] = lambda: None,
    clock: Path | None = None,
) -> Finished:
    """Measure one instance in processes of its own, another one after each that dies.

    Args:
      campaign: what it is of.
      instance: which.
      records: the file of its records.
      environment: of the processes besides this one's.
      each: called whenever a process has said something.
      clock: the lock that is held while anything is run; None where no other instance is measured on this device.
    """
    began, said = time.monotonic(), ""
    records.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="exla-") as scratch:
        job = Path(scratch) / "job.json"
        about = {
            "campaign": asdict(campaign),
            "instance": instance.name,
            "clock": None if clock is None else str(clock),
        }
        job.write_text(json.dumps(about))
        for _ in range(MOST_CRASHES):
            status, at, said = _worker(campaign, job, records, environment, each)
            if status == "ok":
                break
            if at is None:  # it could not even begin
                break
            if at in (list(r.decisions) for r in recorded(records)):  # it had ended, and the next one had not begun
                continue
            _record_death(instance, records, at, status, said, campaign)
            each()
            if not at:  # the plain program itself: there is nothing to compare with
                break
    ended = "ok" if status == "ok" else "failed"
    return Finished(
        instance=instance.name,
        status=ended,
        records=len(recorded(records)),
        seconds=time.monotonic() - began,
        said=said[:300],
    )


def _worker(
    campaign: Campaign,
    job: Path,
    records: Path,
    environment: Mapping[str, str] | None,
    each: Callable[[], None],
) -> tuple[str, list[Any] | None, str]:
    """Run one process to its end: how it ended, the decisions that it was at, and what it said last."""
    command = [sys.executable, "-m", "exla.datasets.profiling.worker", str(job), str(records)]
    # A filtered traceback ends with a note on filtering, and not with the error.
    variables = {**os.environ, "EXLA_RECORDS": "off", "JAX_TRACEBACK_FILTERING": "off", **(environment or {})}
    if not campaign.target.startswith("gpu"):
        variables["JAX_PLATFORMS"] = "cpu"
    heard: queue.Queue[str | None] = queue.Queue()
    with tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, env=variables)
        assert process.stdout is not None
        listener = threading.Thread(target=_listen, args=(process.stdout, heard), daemon=True)
        listener.start()
        at: list[Any] | None = None
        runs = False
        try:
            while True:
                line = heard.get(timeout=campaign.run_s if runs else campaign.timeout_s)
                each()
                if line is None:
                    break
                message = _message(line)
                if message.get("end"):
                    process.wait(timeout=campaign.timeout_s)
                    return "ok", None, ""
                at, runs = message.get("begin", at), message.get("runs", runs)
            process.wait(timeout=campaign.timeout_s)
            status = "oom" if process.returncode in (-9, 137) else "crash"
        except (queue.Empty, subprocess.TimeoutExpired):
            status = "timeout"
        finally:
            process.kill()
            process.wait()
            listener.join()
        err.seek(0)
        return status, at, (err.read().strip().splitlines() or [f"status {process.returncode}"])[-1]


def _listen(stream: Any, heard: queue.Queue[str | None]) -> None:
    for line in stream:
        heard.put(line)
    heard.put(None)


def _message(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _record_death(
    instance: Instance, records: Path, decisions: Sequence[Any], status: str, said: str, campaign: Campaign
) -> None:
    """Record that a process died at a candidate."""
    extra = {
        **{"instance": instance.name, "family": instance.family, "program": instance.program},
        **{"campaign": campaign.name, "label": campaign.label, "said": said[:200]},
    }
    record = Record(
        key={},
        decisions=list(decisions),
        status=status,
        is_default=not decisions,
        strategy="campaign",
        seed=0,
        extra=extra,
    )
    with locked(records):
        append_lines(records, [record.to_line()])


def start(path: str | os.PathLike[str], out: Path) -> Folder:
    """The folder of the campaign that a file describes."""
    return Folder.open(out, read_campaign(path))
