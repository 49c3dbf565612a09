"""Records survive torn writes, hostile lines, many writers and old versions; nothing in them is executed."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exla.errors import ExlaWarning
from exla.passes.decisions import from_json
from exla.search.barred import as_recorded
from exla.search.prune import Cut
from exla.search.record import MOST_LINE_BYTES, Record
from exla.search.records import CODE, RecordStore, make_key, without
from exla.search.shards import ONE_FILE, file_name

SCHEMA_1 = Path(__file__).parents[1] / "fixtures" / "records_schema_1.jsonl"


def record(k=0, **changes):
    fields = dict(
        key=make_key(program=str(k)), decisions=[{"kind": "x"}], status="ok", is_default=False, strategy="s", seed=0
    )
    return Record(**{**fields, **changes})


FIRST, SECOND = file_name(record(1).key), file_name(record(2).key)


def test_what_is_appended_is_read_back(tmp_path):
    store = RecordStore(tmp_path)
    records = [record(k, compile_s=0.5, limit_bytes=k) for k in range(5)]
    for r in records:
        store.append(r)
    assert sorted(RecordStore(tmp_path).read().records, key=lambda r: r.limit_bytes) == records
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
    key = record().key
    for k in range(3):
        store.append(record(key=key, seed=k))
    path = folder / file_name(key)
    data = path.read_bytes()
    last = data[:-1].rfind(b"\n") + 1
    keep = last + cut % (len(data) - last)
    path.write_bytes(data[:keep])
    report = store.read()
    assert [r.seed for r in report.records] == [0, 1] and report.bad_lines == 0 and report.torn == (keep > last)
    store.append(record(key=key, seed=7))
    healed = store.read()
    only_the_newline_was_lost = keep == len(data) - 1
    assert [r.seed for r in healed.records] == [0, 1, *([2] if only_the_newline_was_lost else []), 7]
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
    (tmp_path / FIRST).write_bytes(
        b"\n".join([record(1).to_line().encode(), line.encode("latin-1"), record(2).to_line().encode(), b""])
    )
    report = RecordStore(tmp_path).read()
    assert report.records == (record(1), record(2)) and report.bad_lines == (1 if line else 0)
    assert [(b.path.name, b.number) for b in report.bad] == ([(FIRST, 2)] if line else [])


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300))
def test_random_bytes_never_raise(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / file_name(record(1).key)).write_bytes(data)
    store = RecordStore(folder)
    store.read()
    store.append(record(1))
    assert store.read().records[-1] == record(1)


def test_unknown_fields_are_kept(tmp_path):
    line = json.dumps({**json.loads(record().to_line()), "colour": [1, 2]})
    (tmp_path / file_name(record().key)).write_text(line + "\n")
    (read,) = RecordStore(tmp_path).read().records
    assert read.extra == {"colour": [1, 2]} and json.loads(read.to_line())["colour"] == [1, 2]


def test_every_old_schema_version_is_read():
    records = [Record.from_line(line) for line in SCHEMA_1.read_text().splitlines()]
    assert [r.status for r in records] == ["ok", "over_limit"] and records[0].schema_version == 1
    assert [dict(r.about) for r in records] == [{}, {}]


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
    assert store.explain_miss(make_key(program="q", jax="1", limit="2")) == "there are no records of this program"


def test_a_folder_that_cannot_be_written_warns_and_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(ExlaWarning, match="EXLA_RECORDS_DIR"):
        RecordStore(tmp_path / "file").append(record())


def test_a_record_that_is_too_long_to_be_read_again_is_not_written(tmp_path):
    with pytest.warns(ExlaWarning, match="longer than"):
        RecordStore(tmp_path).append(record(strategy="s" * MOST_LINE_BYTES))
    assert not RecordStore(tmp_path).files()


@pytest.mark.parametrize("key", [make_key(program="p"), {"program": "../x"}, {"limit": "ffff"}, {}], ids=range(4))
def test_a_record_is_in_the_file_of_its_key(key, tmp_path):
    store = RecordStore(tmp_path)
    store.append(record(key=key))
    assert [p.name for p in store.files()] == [file_name(key)]
    assert store.lookup(key) == [record(key=key)] and store.explain_miss(key) is None
    assert store.verify() == (1, [])


def test_records_of_one_program_are_spread_over_256_files():
    names = Counter(file_name(make_key(program="p", limit=str(k))) for k in range(5120))
    assert len(names) == 256 and max(names.values()) < 3 * 20
    assert file_name({"a": "1", "b": "2"}) == file_name({"b": "2", "a": "1"}) == "0e.jsonl"


def test_a_key_that_json_has_to_spell_otherwise_is_found(tmp_path):
    key = {"program": 'ab"\\é\n', "limit": ""}
    store = RecordStore(tmp_path)
    store.append(record(key=key))
    assert store.lookup(key) == [record(key=key)]


def test_records_of_one_program_are_told_apart_by_the_other_hashes(tmp_path):
    store = RecordStore(tmp_path)
    keys = [make_key(program="p", limit=str(k)) for k in range(4)]
    for k, key in enumerate(keys):
        store.append(record(key=key, about={"limit": keys[0]["limit"]}, seed=k))
    assert [[r.seed for r in store.lookup(key)] for key in keys] == [[0], [1], [2], [3]]
    assert store.lookup({"program": keys[0]["program"]}) == []


def test_a_lookup_parses_only_lines_with_every_hash(tmp_path, monkeypatch):
    store, parsed = RecordStore(tmp_path), []
    keys = [*(make_key(program="p", limit=str(k)) for k in range(5)), make_key(program="q", limit="3")]
    (tmp_path / ONE_FILE).write_text("".join(record(key=key).to_line() + "\n" for key in keys))
    monkeypatch.setattr(Record, "from_line", lambda line: parsed.append(line) or record(key=key))
    key = make_key(program="p", limit="3")
    assert len(store.lookup(key)) == 1 and len(parsed) == 1
    store.lookup(key)
    assert len(parsed) == 1  # the file is the same, so that it is not read again


def test_the_one_file_of_earlier_releases_is_read_and_left_alone(tmp_path):
    old, key = tmp_path / ONE_FILE, record(1).key
    old.write_text(SCHEMA_1.read_text())
    first = Record.from_line(SCHEMA_1.read_text().splitlines()[0])
    store = RecordStore(tmp_path)
    assert first.key == key and store.lookup(key) == [first]
    store.append(record(1, seed=5))
    assert [r.seed for r in store.lookup(key)] == [0, 5]  # oldest first
    assert len(store.read().records) == 3 and old.read_text() == SCHEMA_1.read_text()
    assert store.verify() == (3, [])


def test_records_that_come_with_exla_are_found_never_written_and_count_less(tmp_path):
    packaged, own = tmp_path / "packaged", tmp_path / "own"
    packaged.mkdir()
    shipped = [record(1, seed=100), record(2, seed=101)]
    (packaged / "v5e.jsonl").write_text("".join(r.to_line() + "\n" for r in shipped) + "torn")
    (packaged / "README.md").write_text("")
    before = {p.name: p.read_bytes() for p in packaged.iterdir()}
    os.chmod(packaged, 0o555)
    store = RecordStore(own, packaged)
    assert store.lookup(record(1).key) == shipped[:1] and store.read().records == ()
    assert list(store.read(packaged=True).records) == shipped and len(store.read(packaged=True).bad) == 1
    store.append(record(1))
    assert [r.seed for r in store.lookup(record(1).key)] == [100, 0]  # the last one is used
    store.add([record(2, seed=101)])
    store.prune(Cut(all_of_program=True))
    assert store.lookup(record(1).key) == shipped[:1]
    assert {p.name: p.read_bytes() for p in packaged.iterdir()} == before


def test_without_a_folder_of_packaged_records_there_are_none(tmp_path):
    assert RecordStore(tmp_path, tmp_path / "nowhere").lookup(record().key) == []


def test_what_comes_with_exla_is_good():
    """Lines that are read, one for each key, in the file of their target, of candidates that obeyed."""
    lines = list(RecordStore(Path("nowhere")).lines(packaged=True))
    assert lines and not [line for line in lines if line.record is None]
    for line in lines:
        shipped = line.record
        assert line.path.stem == shipped.about["target"].replace(":", "-")
        assert shipped.status == "ok" and not shipped.is_default and shipped.compiled_bytes <= shipped.limit_bytes
        assert as_recorded([from_json(d) for d in shipped.decisions]) == shipped.decisions != []
    keys = {tuple(sorted(without(line.record.key, CODE).items())) for line in lines}
    assert len(keys) == len(lines)
    assert sum(path.stat().st_size for path in {line.path for line in lines}) < 2**20


def test_adding_the_same_records_again_adds_nothing(tmp_path):
    store, old = RecordStore(tmp_path), SCHEMA_1.read_text().splitlines()
    (tmp_path / ONE_FILE).write_text(old[0] + "\n")
    records = [Record.from_line(old[0]), *(record(k) for k in range(4)), record(3), record(3, seed=1)]
    assert store.add(records) == 5
    assert store.add(records) == 0 and store.add(reversed(records)) == 0
    assert len(store.read().records) == 6


def test_verify_names_file_line_and_reason(tmp_path):
    store = RecordStore(tmp_path)
    store.append(record(1))
    with open(tmp_path / FIRST, "a") as file:
        file.write("\n{}\n" + record(2).to_line() + "\ncut")
    (tmp_path / SECOND).mkdir()
    count, bad = store.verify()
    found = [(b.path.name, b.number, b.reason.split(":")[0], b.torn) for b in bad]
    assert count == 5 and found[:3] == [
        (FIRST, 3, "the line lacks fields", False),
        (FIRST, 4, f"the record is looked for in {SECOND}", False),
        (FIRST, 5, "the line is cut off", True),
    ]
    assert found[3][:3] == (SECOND, 0, "the file cannot be read")


CUTS = [
    (Cut(), "abcdefg"),
    (Cut(statuses=frozenset({"oom", "timeout"})), "abcdeg"),
    (Cut(rules="new"), "bcdg"),
    (Cut(keep_best=1), "adefg"),
    (Cut(keep_best=2), "abdefg"),
    (Cut(keep_best=0), "afg"),
    (Cut(keep_best=1, rules="new"), "dg"),
    (Cut(program="1", all_of_program=True), "abcdg"),
    (Cut(program="1", statuses=frozenset({"ok"})), "abcdfg"),
    (Cut(bad=True), "abcdef"),
]


@pytest.mark.parametrize("cut, kept", CUTS, ids=range(len(CUTS)))
def test_a_cut_removes_what_it_names_and_nothing_else(cut, kept, tmp_path):
    new, other = {"program": "00", "exla": "new"}, {"program": "10", "exla": "old"}
    lines = {
        "a": record(key={**new, "exla": "old"}, is_default=True),
        "b": record(key=new, run_s=2.0, compiled_bytes=5),
        "c": record(key=new, compiled_bytes=1),  # no time is known
        "d": record(key=new, run_s=2.0, compiled_bytes=5, measured_bytes=4),
        "e": record(key=other),
        "f": record(key=other, status="oom"),
    }
    text = {name: json.dumps({**json.loads(r.to_line()), "colour": name}) + "\n" for name, r in lines.items()}
    text["g"] = '{"g": 1}\n'
    path = tmp_path / "00.jsonl"
    path.write_text("".join(text.values()))
    assert RecordStore(tmp_path).prune(cut, dry_run=True) == {"00.jsonl": (7 - len(kept), len(kept))}
    assert path.read_text() == "".join(text.values())
    assert RecordStore(tmp_path).prune(cut) == {"00.jsonl": (7 - len(kept), len(kept))}
    assert path.read_text() == "".join(text[name] for name in kept)


@pytest.mark.parametrize("lost", [1, 9])
def test_a_prune_takes_a_last_line_without_newline_for_a_line(lost, tmp_path):
    store = RecordStore(tmp_path)
    for k, status in enumerate(["oom", "ok", "oom"]):
        store.append(record(1, seed=k, status=status))
    path = tmp_path / FIRST
    path.write_bytes(path.read_bytes()[:-lost])
    cut, bad = Cut(statuses=frozenset({"oom"})), Cut(bad=True)
    both = [store.prune(c, dry_run=True)[FIRST][0] for c in (cut, bad)]
    store.prune(cut)
    report = store.read()
    assert path.read_bytes().endswith(b"\n") and [r.seed for r in report.records] == [1]
    assert report.bad_lines == (0 if lost == 1 else 1)  # what is left of a line is not known to be "oom"
    assert (
        both == [3 - len(report.records) - report.bad_lines, report.bad_lines] and store.prune(bad)[FIRST][0] == both[1]
    )
