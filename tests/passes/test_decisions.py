"""Decisions are plain data: each survives JSON, and what is read is of the right types or no decision."""

import json
import typing

import pytest

from exla.ir.program import Site
from exla.passes.decisions import (
    Arrange,
    Checkpoint,
    Collect,
    CompileOption,
    Decision,
    Distribute,
    Fold,
    Growth,
    Rematerialize,
    Reorder,
    Replace,
    Seal,
    Share,
    Sink,
    Split,
    Store,
    Swap,
    from_json,
    to_json,
)

HERE = {"path": ((4, 0),), "site": Site(position=3, fingerprint="f")}
SPLIT = Split(**HERE, result=0, axis=1, growth=Growth(small_bytes=9, again=True), chunk=2)
ONE_OF_EACH = [
    SPLIT,
    Share(**HERE, result=0, axis=1, growth=Growth(small_bytes=9), mesh=(("x", 2), ("y", 4)), names=("x",)),
    Sink(**HERE, operand=1, small_bytes=9),
    Arrange(**HERE, operand=1),
    Store(**HERE, result=0, how="host", early=1),
    Replace(**HERE, rule="squared_distance"),
    Reorder(**HERE, order=((0, 1), (0, 1, 2))),
    Swap(**HERE),
    Fold(**HERE, operand=1),
    Collect(**HERE, result=1),
    Distribute(**HERE),
    Rematerialize(**HERE),
    Checkpoint(**HERE, ends=(1, 2), small_bytes=9),
    Seal(**HERE),
    CompileOption(name="a", value="b"),
]


def test_there_is_one_of_each_kind():
    assert {type(decision) for decision in ONE_OF_EACH} == set(typing.get_args(Decision))


@pytest.mark.parametrize("decision", ONE_OF_EACH, ids=lambda d: type(d).__name__)
def test_a_decision_survives_json(decision):
    data = json.loads(json.dumps(to_json(decision)))
    assert from_json(data) == decision
    for field in data:
        for value in (None, {}, 1.5, [{}]):
            with pytest.raises(ValueError, match="not a decision: "):
                from_json({**data, field: value})
    with pytest.raises(ValueError, match="not a decision: the fields of"):
        from_json({**data, "more": 1})


def test_what_has_a_default_may_be_missing():
    data = to_json(SPLIT)
    assert from_json({**data, "growth": {"small_bytes": 9, "again": True}}) == SPLIT
    with pytest.raises(ValueError, match="the fields of Growth are small_bytes, "):
        from_json({**data, "growth": {"again": True}})


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("kind", ["split", "Evil", ["Split"], "Site"]),
        ("chunk", ["8", True]),
        ("path", ["x", [0], [[0]], [["a", 0]], [[0, 0, 0]]]),
        ("site", [3, {"position": "7", "fingerprint": "f"}, {"position": 1, "fingerprint": 2}, {"position": 1}]),
        ("growth", [[], {"small_bytes": "1"}, {"small_bytes": 1, "again": 1}, {"small_bytes": 1, "more": 1}]),
    ],
)
def test_fields_of_decisions_have_their_types(field, wrong):
    for value in wrong:
        with pytest.raises(ValueError, match="not a decision: "):
            from_json({**to_json(SPLIT), field: value})


@pytest.mark.parametrize("data", [None, "Split", 3, [], ["kind"], {}])
def test_what_is_no_mapping_with_a_kind_is_no_decision(data):
    with pytest.raises(
        ValueError,
        match="not a decision: .*; kinds are Arrange, Checkpoint, Collect, CompileOption, Distribute, Fold, ",
    ):
        from_json(data)
