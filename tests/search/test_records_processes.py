"""Many processes write at once, merge and prune, and no line is lost or torn."""

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest

from exla.errors import ExlaWarning
from exla.search import records, shards
from exla.search.prune import Cut
from exla.search.records import RecordStore
from exla.search.shards import file_name
from tests.search.test_records import record

SPAWN = multiprocessing.get_context("spawn")
KEY = record().key
"""One key, so that all processes are after one file."""


def _append(folder, k, count, started):
    store = RecordStore(Path(folder))
    started.wait()
    for n in range(count):
        store.append(record(key=KEY, seed=1000 * k + n, strategy="s" * 5000))  # more than one buffer


def _prune(folder, started, done):
    store = RecordStore(Path(folder))
    started.wait()
    while not done.is_set():
        store.prune(Cut(statuses=frozenset({"oom"})))


def test_appends_at_once_lose_and_tear_nothing(tmp_path):
    started = SPAWN.Barrier(3)
    workers = [SPAWN.Process(target=_append, args=(str(tmp_path), k, 25, started)) for k in range(2)]
    for w in workers:
        w.start()
    _append(tmp_path, 2, 25, started)
    for w in workers:
        w.join()
    report = RecordStore(tmp_path).read()
    assert not report.bad and len(RecordStore(tmp_path).files()) == 1
    assert sorted(r.seed for r in report.records) == [1000 * k + n for k in range(3) for n in range(25)]


def test_a_line_that_comes_while_a_prune_chooses_waits_and_stays(tmp_path):
    store, path = RecordStore(tmp_path), tmp_path / file_name(KEY)
    for k in range(3):
        store.append(record(key=KEY, seed=k))
    writer = threading.Thread(target=lambda: RecordStore(tmp_path).append(record(key=KEY, seed=9)))

    def choose(lines):
        writer.start()
        writer.join(0.3)
        return lines[1:]

    assert shards.keep_lines(path, choose) == (3, 2)
    writer.join()
    assert [r.seed for r in store.lookup(KEY)] == [1, 2, 9]


def test_a_prune_loses_nothing_that_is_added_meanwhile(tmp_path):
    store = RecordStore(tmp_path)
    started, done = SPAWN.Barrier(3), SPAWN.Event()
    pruner = SPAWN.Process(target=_prune, args=(str(tmp_path), started, done))
    writer = SPAWN.Process(target=_append, args=(str(tmp_path), 1, 60, started))
    pruner.start()
    writer.start()
    started.wait()
    for k in range(60):  # so that there is always something to remove
        store.append(record(key=KEY, status="oom", seed=k))
    writer.join()
    done.set()
    pruner.join()
    store.prune(Cut(statuses=frozenset({"oom"})))
    report = store.read()
    assert not report.bad and [r.seed for r in report.records] == [1000 + n for n in range(60)]
    assert not list(tmp_path.glob("*.new"))


def test_merges_at_once_add_each_record_once(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda _: RecordStore(tmp_path).add(record(k) for k in range(40)), range(4)))
    report = RecordStore(tmp_path).read()
    assert not report.bad and len(report.records) == len({r.to_line() for r in report.records}) == sum(added) == 40


def test_a_prune_that_dies_before_the_end_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    store = RecordStore(tmp_path)
    for k in range(3):
        store.append(record(key=KEY, seed=k, status="oom"))
    before = (tmp_path / file_name(KEY)).read_bytes()

    def dies(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(shards.os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        store.prune(Cut(statuses=frozenset({"oom"})))
    assert (tmp_path / file_name(KEY)).read_bytes() == before
    monkeypatch.undo()
    store.append(record(key=KEY, seed=3))  # the lock is free
    store.prune(Cut(statuses=frozenset({"oom"})))
    assert [r.seed for r in store.lookup(KEY)] == [3]


def test_a_lock_that_is_held_too_long_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "LOCK_TIMEOUT_S", 0.1)
    with (
        filelock.FileLock(f"{tmp_path / file_name(KEY)}.lock"),
        pytest.warns(ExlaWarning, match="somebody has held the lock"),
    ):
        RecordStore(tmp_path).append(record(key=KEY))
    assert not RecordStore(tmp_path).read().records


def test_a_file_system_without_flock_is_locked_by_a_file(tmp_path, monkeypatch):
    class Without(filelock.FileLock):
        def acquire(self, *_, **__):
            raise NotImplementedError("no flock here")

    monkeypatch.setattr(shards.filelock, "FileLock", Without)
    held = []
    monkeypatch.setattr(records, "append_lines", lambda path, lines: held.append(os.path.exists(f"{path}.lock")))
    RecordStore(tmp_path).append(record(key=KEY))
    assert held == [True] and not list(tmp_path.iterdir())


def test_a_line_is_not_added_to_a_file_that_was_replaced(tmp_path, monkeypatch):
    """A stale cache of names, as NFS clients have, leads to the old file for a while."""
    path = tmp_path / file_name(KEY)
    stale = []

    def stale_open(name, mode):
        if name == path and not stale:
            stale.append(name)
            old = tmp_path / "old"
            file = open(old, mode)  # noqa: SIM115
            os.unlink(old)
            return file
        return open(name, mode)

    monkeypatch.setattr(shards, "open", stale_open, raising=False)
    RecordStore(tmp_path).append(record(key=KEY))
    assert stale and [r.key for r in RecordStore(tmp_path).read().records] == [KEY]
