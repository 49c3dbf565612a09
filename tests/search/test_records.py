"""Records survive torn writes, hostile lines, many writers and old versions; nothing in them is executed."""

import json
import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exla.errors import ExlaWarning
from exla.search.records import FILE_NAME, Record, RecordStore, make_key

SCHEMA_1 = Path(__file__).parents[1] / "fixtures" / "records_schema_1.jsonl"


def record(k=0, **changes):
    fields = dict(
        key=make_key(program=str(k)), decisions=[{"kind": "x"}], status="ok", is_default=False, strategy="s", seed=0
    )
    return Record(**{**fields, **changes})


def test_what_is_appended_is_read_back(tmp_path):
    store = RecordStore(tmp_path)
    records = [record(k, compile_s=0.5, limit_bytes=k) for k in range(5)]
    for r in records:
        store.append(r)
    assert RecordStore(tmp_path).read().records == tuple(records)
    assert store.lookup(make_key(program="3")) == [records[3]]
    assert store.lookup(make_key(program="9")) == []


def test_a_lookup_sees_what_another_writer_appended(tmp_path):
    reader, writer = RecordStore(tmp_path), RecordStore(tmp_path)
    assert reader.lookup(record(1).key) == []
    writer.append(record(1))
    assert reader.lookup(record(1).key) == [record(1)]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, 400))
def test_a_torn_line_costs_itself_and_the_next_append_heals_it(cut, tmp_path_factory):
    folder = tmp_path_factory.mktemp("torn")
    store = RecordStore(folder)
    for k in range(3):
        store.append(record(k))
    path = folder / FILE_NAME
    data = path.read_bytes()
    last = data[:-1].rfind(b"\n") + 1
    keep = last + cut % (len(data) - last)
    path.write_bytes(data[:keep])
    report = store.read()
    assert report.records == (record(0), record(1)) and report.bad_lines == 0 and report.torn == (keep > last)
    store.append(record(7))
    healed = store.read()
    only_the_newline_was_lost = keep == len(data) - 1
    assert healed.records == (record(0), record(1), *([record(2)] if only_the_newline_was_lost else []), record(7))
    assert healed.bad_lines == int(keep > last and not only_the_newline_was_lost) and not healed.torn


HOSTILE = [
    "",
    "{}",
    "[]",
    "null",
    "not json",
    "[" * 100_000,
    '{"key": 3}',
    record().to_line().replace('"ok"', '"fine"'),
    record().to_line().replace('"seed": 0', '"seed": "x"'),
    record().to_line().replace('"compile_s": null', '"compile_s": NaN'),
    record().to_line().replace('"compile_s": null', '"compile_s": -1'),
    record().to_line().replace('"limit_bytes": null', '"limit_bytes": 1e99'),
    record().to_line().replace('"decisions": [{"kind": "x"}]', '"decisions": "rm"'),
    "\x00\x01\x80",
]


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_a_bad_line_is_counted_and_the_good_ones_stay(line, tmp_path):
    (tmp_path / FILE_NAME).write_bytes(
        b"\n".join([record(1).to_line().encode(), line.encode("latin-1"), record(2).to_line().encode(), b""])
    )
    report = RecordStore(tmp_path).read()
    assert report.records == (record(1), record(2)) and report.bad_lines == (1 if line else 0)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300))
def test_random_bytes_never_raise(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / FILE_NAME).write_bytes(data)
    store = RecordStore(folder)
    store.read()
    store.append(record(1))
    assert store.read().records[-1] == record(1)


def test_unknown_fields_are_kept(tmp_path):
    line = json.dumps({**json.loads(record().to_line()), "colour": [1, 2]})
    (tmp_path / FILE_NAME).write_text(line + "\n")
    (read,) = RecordStore(tmp_path).read().records
    assert read.extra == {"colour": [1, 2]} and json.loads(read.to_line())["colour"] == [1, 2]


def test_every_old_schema_version_is_read():
    records = [Record.from_line(line) for line in SCHEMA_1.read_text().splitlines()]
    assert [r.status for r in records] == ["ok", "over_limit"] and records[0].schema_version == 1


@pytest.mark.parametrize("status", ["oom", "timeout", "compile_error"])
def test_a_failure_has_no_run_time(status):
    with pytest.raises(ValueError, match="no run time"):
        record(status=status, run_s=1.0)


def test_a_miss_says_which_part_differs(tmp_path):
    store = RecordStore(tmp_path)
    assert store.explain_miss(make_key(a="1")) == "there are no records"
    store.append(record(key=make_key(program="p", jax="1", limit="2")))
    assert store.explain_miss(make_key(program="p", jax="9", limit="2")) == "the nearest record differs in jax"
    assert store.explain_miss(make_key(program="p", jax="1", limit="2")) is None


def test_a_folder_that_cannot_be_written_warns_and_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(ExlaWarning, match="EXLA_RECORDS_DIR"):
        RecordStore(tmp_path / "file").append(record())


def _write(folder, k):
    store = RecordStore(Path(folder))
    for n in range(25):
        store.append(record(100 * k + n))


def test_many_processes_write_at_once_and_nothing_is_lost(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(str(tmp_path), k)) for k in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    report = RecordStore(tmp_path).read()
    assert report.bad_lines == 0 and len(report.records) == len({r.key["program"] for r in report.records}) == 75
