"""Whatever a file of records holds, reading it never raises, and the good lines around stay."""

import dataclasses
import json
import typing

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exla.passes.decisions import Decision
from exla.report.records import in_words, printable, rows
from exla.search.record import MOST_LINE_BYTES, Record
from exla.search.records import RecordStore, make_key
from exla.search.shards import file_name
from tests.search.test_records import record

KEY = make_key(program="p", limit="1")
GOOD = [record(key=KEY, seed=10_000 + k) for k in range(3)]
LINE = record(key=KEY, about={"target": "cpu"}, compile_s=0.5, extra={"colour": [1, {"a": None}]}).to_line()
FIELDS = sorted(json.loads(LINE))
DEEP = "[" * 400 + "]" * 400

texts = st.text(st.characters(), max_size=8) | st.sampled_from(["\ud800", "\x00", "\x1b[2J", "[bold]"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**63, 1e308])
    | st.floats()
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
wrong_fields = st.dictionaries(st.sampled_from(FIELDS), values, min_size=1, max_size=3).map(
    lambda changes: json.dumps({**json.loads(LINE), **changes}).encode()
)
KINDS = [*(kind.__name__ for kind in typing.get_args(Decision)), "x"]
DECISION_FIELDS = sorted({f.name for kind in typing.get_args(Decision) for f in dataclasses.fields(kind)})
decisions = st.lists(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(KINDS)},
        optional={n: values for n in DECISION_FIELDS},
    ),
    max_size=3,
).map(lambda d: json.dumps({**json.loads(LINE), "decisions": d}).encode())
twice = st.tuples(st.sampled_from(FIELDS), values).map(
    lambda item: f'{LINE[:-1]}, "{item[0]}": {json.dumps(item[1])}}}'.encode()
)
cut_off = st.integers(0, len(LINE) - 1).map(lambda n: LINE[:n].encode())
overwritten = st.tuples(st.integers(0, len(LINE) - 1), st.binary(min_size=1, max_size=6)).map(
    lambda change: LINE[: change[0]].encode() + change[1] + LINE[change[0] + 1 :].encode()
)
raw_numbers = st.sampled_from(
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "9" * 5000,
        "1" + "0" * 400,
        DEEP,
        '{"a":' * 300 + "0" + "}" * 300,
    ]
)
spelled = st.tuples(st.sampled_from(FIELDS), raw_numbers).map(
    lambda item: f'{LINE[:-1]}, "{item[0]}": {item[1]}, "unknown": {item[1]}}}'.encode()
)
hostile = st.binary(max_size=60) | wrong_fields | decisions | twice | cut_off | overwritten | spelled


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(hostile, max_size=5), end=st.just(b"") | hostile)
@example(lines=[b"\xef\xbb\xbf" + LINE.encode(), LINE.encode("utf-16"), b"[" * 100_000, b"\x00" * 4096], end=b"{")
@example(lines=[b'"' + b"x" * MOST_LINE_BYTES, b'{"key": "\\ud800\xed\xa0\x80"}'], end=b"\x00")
def test_hostile_lines_cost_only_themselves(lines, end, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    mixed = [GOOD[0].to_line().encode(), *lines[:2], GOOD[1].to_line().encode(), *lines[2:], GOOD[2].to_line().encode()]
    path = folder / file_name(KEY)
    path.write_bytes(b"\n".join([*mixed, end]))
    store = RecordStore(folder)
    report = store.read()
    assert [r for r in report.records if r in GOOD] == GOOD
    assert [r for r in store.lookup(KEY) if r in GOOD] == GOOD
    store.explain_miss({**KEY, "limit": "0"})
    assert all(len(line.reason) < 400 and line.reason.isprintable() for line in map(_shown, store.verify()[1]))
    for read in report.records:
        assert Record.from_line(read.to_line()) == read
        assert all(words.isprintable() for words in in_words(read))
    rows(report.records)
    store.append(GOOD[0])
    assert store.read().records[-1] == store.lookup(KEY)[-1] == GOOD[0]


def _shown(line):
    return type(line)(**{**vars(line), "reason": printable(line.reason)})


@pytest.mark.parametrize("field", FIELDS)
@settings(max_examples=25, deadline=None)
@given(value=values)
def test_a_field_of_another_type_is_refused_with_a_short_reason(field, value):
    try:
        read = Record.from_line(json.dumps({**json.loads(LINE), field: value}))
    except ValueError as error:
        assert 0 < len(str(error)) < 400
    else:
        assert Record.from_line(read.to_line()) == read


@pytest.mark.parametrize(
    "line, reason",
    [
        (b"\xff", "byte 0 of the line is not UTF-8"),
        (b"{}", "lacks fields"),
        (b"[" * 3_000, "nested too deeply|Expecting value"),
        (LINE.replace("[1,", f"[{DEEP},").encode(), "nested more than 50 levels deep"),
        (LINE.replace("0.5", "1" + "0" * 400).encode(), "^compile_s=1000"),
        (LINE.replace("[1,", "[1e999,").encode(), "1e999 is not a finite number"),
        (LINE.replace('"ok"', f'"{"x" * 9999}"').encode(), "^status 'x{100}"),
        (b" " * (MOST_LINE_BYTES + 1), "longer than"),
    ],
    ids=range(8),
)
def test_the_reason_says_what_is_wrong(line, reason):
    with pytest.raises(ValueError, match=reason):
        Record.from_line(line)
