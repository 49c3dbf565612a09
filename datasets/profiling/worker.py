"""The process in which one instance of a campaign is measured: a crash here takes nothing else with it.

    python -m exla.datasets.profiling.worker JOB.json RECORDS.jsonl

A job names a campaign and an instance (`run.py` writes it). Candidates that RECORDS holds are passed over. Before each
of the others a line of JSON says what begins, so that whoever started this process knows what it was at when it died;
after it, its record is on disk. The last line says how it ended.

Wall clock: each candidate is compiled, counted, compared with the plain program's values, and timed twice, which is
recorded as preliminary. Then all of them, the plain program too, run in *rounds*, once each in an order that is drawn
anew; after some rounds those that are far from the fastest are left out. A round in which everything was slow counts
for less by as much (the median of its times over their medians), and a time is the lower quartile over the rounds: what
a candidate takes when nobody else is at work. How far even and odd rounds are apart is recorded too. What compiles to
the code of an earlier candidate has its time, and says so. The *clock* is a lock that is held while anything runs: of
several processes that share a device, one runs while the others compile. A line says when it is taken and let go, and
from time to time that it is waited for, so that what hangs while it holds it is found out. Estimates of a TPU compiler
are read from what it compiled, and nothing runs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import filelock
import jax
import numpy as np

from exla.datasets.profiling.campaign import Campaign, Instance, from_dict
from exla.datasets.profiling.prepare import Prepared, Settled, prepare
from exla.passes.decisions import to_json
from exla.search.allowed import allowed_for
from exla.search.barred import as_recorded
from exla.search.child import turns
from exla.search.choice import describe
from exla.search.record import Record
from exla.search.records import make_key
from exla.search.shards import append_lines, locked, read_lines
from exla.search.space import Candidate
from exla.search.values import Allowed, difference
from exla.targets.cycles import estimated_cycles
from exla.targets.hlo_text import hlo_hash

STAGES = ((10, 0.25, 4.0), (30, 0.5, 2.0), (200, 1.0, 1.4))
"""Rounds, the share of the seconds until which they may go on, and how many times the least a candidate may take."""
FEWEST_ROUNDS = 3
"""Rounds of a stage that are run however long they take."""
HEARD_S = 5.0
"""Seconds after which a process says again that it waits for the clock."""


@dataclass(kw_only=True)
class Writer:
    """The records of one instance.

    Attributes:
      path: their file.
      key: of each record.
      about: in words, and the instance.
    """

    path: Path
    key: dict[str, str]
    about: dict[str, str]
    extra: dict[str, Any]
    limit_bytes: int
    done: set[str] = field(default_factory=set)

    def write(self, decisions: Sequence[Any], status: str, **found: Any) -> None:
        """Add a record; on disk when this returns."""
        self.add([self.record(decisions, status, **found)])

    def record(self, decisions: Sequence[Any], status: str, **found: Any) -> Record:
        """A record of a candidate of this instance."""
        extra = {**self.extra, **found.pop("extra", {})}
        return Record(
            key=self.key,
            decisions=[to_json(d) for d in decisions],
            status=status,
            limit_bytes=self.limit_bytes,
            is_default=not decisions,
            strategy="campaign",
            seed=0,
            about=self.about,
            extra=extra,
            **found,
        )

    def add(self, records: Sequence[Record]) -> None:
        """Add records; all are on disk when this returns."""
        with locked(self.path):
            append_lines(self.path, [record.to_line() for record in records])


def name_of(decisions: Sequence[Any]) -> str:
    """Decisions as text, the same whether they were made or read."""
    return json.dumps(as_recorded(decisions), sort_keys=True)


def recorded(path: Path) -> list[Record]:
    """The sound records of a file; none where there is no file."""
    if not path.exists():
        return []
    return [line.record for line in read_lines(path) if line.record is not None]


def measure(
    campaign: Campaign,
    instance: Instance,
    path: Path,
    say: Callable[[dict[str, Any]], None],
    clock: Path | None = None,
) -> None:
    """Measure what the records lack of an instance; a lock at `clock` is held while anything runs."""
    began = time.perf_counter()
    before = recorded(path)
    prepared = prepare(instance, campaign.target, Settled.by(before))
    attempt = prepared.attempt
    key = make_key(**describe(attempt.call, attempt.target), limit=str(attempt.limit_bytes))
    extra = {
        **{"instance": instance.name, "family": instance.family, "size": prepared.size, "label": campaign.label},
        **{"program": instance.program, "campaign": campaign.name, "megabytes": instance.megabytes},
        "share": instance.share,
    }
    known = attempt.target.fingerprint()
    writer = Writer(
        path=path,
        key=key,
        about={"source": instance.name, "target": attempt.target.name, "device": known.get("device", "")},
        extra=extra,
        limit_bytes=attempt.limit_bytes,
    )
    writer.done = {r.candidate for r in before}
    candidates = prepared.candidates(campaign)
    writer.extra["candidates"] = len(candidates) + 1
    say({"candidates": len(candidates) + 1, "prepared_s": time.perf_counter() - began})
    if campaign.label == "wall_clock":
        lock = None if clock is None else filelock.FileLock(clock, poll_interval=0.01)
        _Clock(campaign, prepared, writer, say, before, lock).run(candidates, began)
    else:
        _estimate(campaign, prepared, writer, say, candidates, began)


@dataclass(kw_only=True)
class _Running:
    """A program that is timed in rounds: what it is, how it is run, its times, and the rounds that they are of."""

    decisions: Sequence[Any]
    run: Callable[[], Any]
    about: dict[str, Any]
    extra: dict[str, Any]
    quick_s: float
    times: dict[int, float] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        return median(self.times.values()) if self.times else self.quick_s


class _Clock:
    """Times the candidates of one instance."""

    def __init__(
        self,
        campaign: Campaign,
        prepared: Prepared,
        writer: Writer,
        say: Callable[[dict[str, Any]], None],
        before: Sequence[Record],
        lock: filelock.BaseFileLock | None = None,
    ) -> None:
        self.campaign, self.prepared, self.writer, self.say, self.lock = campaign, prepared, writer, say, lock
        self.attempt = prepared.attempt
        self.arguments = jax.device_put(prepared.arguments)
        self.flat = jax.tree.leaves(self.arguments)
        self.finished = {r.candidate for r in before if not _is_preliminary(r)}
        self.running: list[_Running] = []
        self.truths: list[list[np.ndarray]] = []
        self.codes: dict[str, _Running] = {}
        self.twins: list[tuple[_Running, Sequence[Any], dict[str, Any], dict[str, Any]]] = []

    def run(self, candidates: Sequence[Candidate], began: float) -> None:
        """The plain program, the candidates, and rounds of all."""
        self.plain()
        for candidate in candidates:
            if time.perf_counter() - began > self.campaign.instance_s:
                break
            if name_of(candidate.all_decisions) not in self.finished:
                self.candidate(candidate)
        self.say({"begin": None})
        with self.held():
            self.rounds()
        self.write()

    def plain(self) -> None:
        """The program as jax.jit compiles it, timed whether it obeys the limit or not: all values are compared with."""
        self.say({"begin": []})
        begin = time.perf_counter()
        compiled = self.attempt.call.compile_plain()
        compile_s = time.perf_counter() - begin
        counted = self.attempt.target.compiled_bytes(compiled)

        def run() -> Any:
            return compiled(*self.arguments)

        first_s, values = self.first(run)
        self.truths = [values]
        about = {
            "compile_s": compile_s,
            "compiled_bytes": counted.total,
            "projected_bytes": self.prepared.space.root.peak.bytes,
        }
        self._begin((), run, about, {"obeys": counted.total <= self.attempt.limit_bytes}, first_s)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The clock, held."""
        while self.lock is not None and not self.lock.is_locked:
            try:
                self.lock.acquire(timeout=HEARD_S)
            except filelock.Timeout:
                self.say({"runs": False})
        self.say({"runs": True})
        try:
            yield
        finally:
            if self.lock is not None:
                self.lock.release()
            self.say({"runs": False})

    def first(self, run: Callable[[], Any]) -> tuple[float, list[np.ndarray]]:
        """Run a program for the first time: the seconds, and its values."""
        with self.held():
            begin = time.perf_counter()
            results = jax.block_until_ready(run())
            first_s = time.perf_counter() - begin
        return first_s, _values(results)

    def candidate(self, candidate: Candidate) -> None:
        """Compile, count, compare, time for the first time."""
        decisions = candidate.all_decisions
        self.say({"begin": as_recorded(decisions)})
        choice = self.attempt.candidate(candidate)
        last = self.attempt.tried[-1]
        about = {
            "projected_bytes": candidate.peak.bytes,
            "compiled_bytes": last.peak_bytes,
            "compile_s": last.compile_s,
        }
        extra: dict[str, Any] = {"predicted_s": _finite(candidate.seconds)}
        if choice is None:
            said = {**extra, "said": last.error[:200]}
            self.writer.write(decisions, self.attempt.outcome().status, **about, extra=said)
            return
        code = hlo_hash(choice.compiled.as_text())
        if code in self.codes:
            self.twins.append((self.codes[code], decisions, about, extra))
            return
        compiled, consts = choice.compiled, [jax.device_put(c) for c in choice.program.consts]

        def run() -> Any:
            return compiled(*consts, *self.flat)

        first_s, values = self.first(run)
        error, different = self.compared(values)
        extra["error"] = _finite(error)
        if not self._agrees(error, different):
            self.writer.write(decisions, "wrong_result", **about, extra={**extra, "different": different})
            return
        self.codes[code] = self._begin(decisions, run, about, extra, first_s)

    def compared(self, got: list[np.ndarray]) -> tuple[float, float]:
        """How far values are from the plain program's: as `jax.jit` compiles it, else under the option set nearest to.

        XLA's libraries are not always right (docs/numerics.md): a candidate that agrees with the plain program under
        any of the target's option sets computes what the program says.
        """
        found = difference(self.truths[0], got)
        if self._agrees(*found):
            return found
        if len(self.truths) == 1:
            lowered = jax.jit(self.prepared.function).lower(*self.arguments)
            for options in self.prepared.space.option_sets:
                other = lowered.compile(compiler_options=dict(options))
                self.truths.append(self.first(functools.partial(other, *self.arguments))[1])
        return min((difference(truth, got) for truth in self.truths), key=lambda f: (not self._agrees(*f), *f))

    def _agrees(self, error: float, different: float) -> bool:
        return error <= self._allowed.tolerance and different <= self._allowed.most_different

    @cached_property
    def _allowed(self) -> Allowed:
        return allowed_for(self.attempt.call.program)

    def _begin(
        self,
        decisions: Sequence[Any],
        run: Callable[[], Any],
        about: dict[str, Any],
        extra: dict[str, Any],
        first_s: float,
    ) -> _Running:
        """Time a program twice, and record that unless it is known; what takes as long as all rounds once is enough."""
        taken = [first_s]
        if first_s < self.campaign.rounds_s:
            with self.held():
                (taken,) = turns([run], seconds=0.0, fewest=2)
        one = _Running(decisions=decisions, run=run, about=about, extra=extra, quick_s=min(taken))
        if name_of(decisions) not in self.finished:
            self.running.append(one)
        if name_of(decisions) not in self.writer.done:
            self.writer.write(decisions, "ok", run_s=one.quick_s, **about, extra={**extra, "preliminary": True})
        return one

    def rounds(self) -> None:
        """Run all in rounds, and after some of them the fastest alone."""
        generator, began, number = random.Random(0), time.perf_counter(), 0
        for most, share, times_best in STAGES:
            least = min((r.median_s for r in self.running), default=0.0)
            near = [r for r in self.running if r.median_s <= times_best * least]
            end = began + share * self.campaign.rounds_s
            for done in range(most):
                if done >= FEWEST_ROUNDS and time.perf_counter() > end:
                    break
                self.say({"runs": True})
                for one in generator.sample(near, len(near)):
                    begin = time.perf_counter()
                    jax.block_until_ready(one.run())
                    one.times[number] = time.perf_counter() - begin
                number += 1

    def write(self) -> None:
        """Record the times of the rounds, all at once."""
        medians = {id(r): r.median_s for r in self.running}
        slow: dict[int, list[float]] = {}
        for one in self.running:
            for number, seconds in one.times.items():
                slow.setdefault(number, []).append(seconds / medians[id(one)])
        drift = {number: median(ratios) for number, ratios in slow.items()}
        records, found = [], dict[int, tuple[float, dict[str, Any]]]()
        for one in self.running:
            if not one.times:
                found[id(one)] = (one.quick_s, {"rounds": 2})
            else:
                halves = [[s / drift[n] for n, s in one.times.items() if n % 2 == k] for k in (0, 1)]
                run_s = float(np.quantile(halves[0] + halves[1], 0.25))
                said = [float(np.quantile(half, 0.25)) for half in halves if half]
                found[id(one)] = (run_s, {"rounds": len(one.times), "halves": said})
            run_s, said_of = found[id(one)]
            records.append(
                self.writer.record(one.decisions, "ok", run_s=run_s, **one.about, extra={**one.extra, **said_of})
            )
        for one, decisions, about, extra in self.twins:
            run_s = found[id(one)][0] if id(one) in found else one.quick_s
            twin = {**extra, "twin": name_of(one.decisions)}
            records.append(self.writer.record(decisions, "ok", run_s=run_s, **about, extra=twin))
        self.writer.add(records)


def _values(results: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(results)]


def _is_preliminary(record: Record) -> bool:
    return record.extra.get("preliminary") is True


def _estimate(
    campaign: Campaign,
    prepared: Prepared,
    writer: Writer,
    say: Callable[[dict[str, Any]], None],
    candidates: Sequence[Candidate],
    began: float,
) -> None:
    """Compile each candidate, and read the compiler's estimate."""
    attempt, root = prepared.attempt, prepared.space.root
    for candidate in (root, *candidates):
        if candidate is not root and time.perf_counter() - began > campaign.instance_s:
            break
        decisions = candidate.all_decisions
        if name_of(decisions) in writer.done:
            continue
        say({"begin": as_recorded(decisions)})
        choice = attempt.plain() if candidate is root else attempt.candidate(candidate)
        last, status = attempt.tried[-1], attempt.outcome().status
        found: dict[str, Any] = {"predicted_s": _finite(candidate.seconds), "said": last.error[:200]}
        if candidate is root:
            found["obeys"] = choice is not None
        cycles = None if choice is None else estimated_cycles(choice.compiled.as_text())
        if cycles is not None and status == "ok":
            found.update(
                estimated_cycles=cycles.total, unknown_trips=cycles.unknown_trips, unestimated=cycles.unestimated
            )
        writer.write(
            decisions,
            status,
            compile_s=last.compile_s,
            projected_bytes=candidate.peak.bytes,
            compiled_bytes=last.peak_bytes,
            extra=found,
        )


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def main() -> int:
    """Measure the instance that a job file names."""
    job = json.loads(Path(sys.argv[1]).read_text())
    campaign = from_dict(job["campaign"])
    instance = next(i for i in campaign.instances() if i.name == job["instance"])

    def say(what: dict[str, Any]) -> None:
        print(json.dumps(what), flush=True)

    clock = None if job["clock"] is None else Path(job["clock"])
    measure(campaign, instance, Path(sys.argv[2]), say, clock)
    say({"end": True})
    return 0


if __name__ == "__main__":
    sys.exit(main())
