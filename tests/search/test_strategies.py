"""What every strategy owes, whichever it is: the registry is walked, on recorded spaces that need no device."""

import itertools
import math
import random
import re
from dataclasses import replace

import pytest

from exla.ir.program import Site
from exla.passes.decisions import CompileOption, Growth, Replace, Seal, Split
from exla.search.recorded import (
    Measured,
    RecordedSpace,
    compare,
    distance,
    packaged,
    read_spaces,
    simulate,
    write_space,
)
from exla.search.strategy import STRATEGIES, Outcome

SITE = Site(position=3, fingerprint="f" * 16)
RULE = Replace(path=(), site=SITE, rule="squared_distance")
SEAL = Seal(path=(), site=SITE)
TRIALS = 40


def split(chunk, axis=0, path=()):
    return Split(path=path, site=SITE, result=0, axis=axis, growth=Growth(small_bytes=100), chunk=chunk)


def measured(*decisions, run_s=None, status="ok", predicted_s=1.0, rank=0):
    return Measured(
        decisions=decisions,
        status=status,
        run_s=run_s if status == "ok" else None,
        peak_bytes=500,
        projected_bytes=400,
        arguments_bytes=100,
        outputs_bytes=100,
        predicted_s=predicted_s,
        option_rank=rank,
    )


def space(candidates, default=None, limit=1000):
    default = default or measured(status="over_limit")
    return RecordedSpace(name="made up", limit_bytes=limit, default=default, measured=candidates)


def many(count=30):
    """Times fall towards chunks of 64 along axis 1; predictions are right about the axis and not the chunk."""
    found = []
    for axis, option in itertools.product((0, 1), ("", "dots")):
        for k in range(count // 4):
            run_s = (1 + abs(k - 6)) * (2 - axis) * (1.0 if option else 1.1)
            decisions = (split(2**k, axis), CompileOption(name="fusion", value=option))
            found.append(measured(*decisions, run_s=run_s, predicted_s=(2 - axis) * (1 + k / 10), rank=int(not option)))
    return space(found)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_asks_for_nothing_twice_and_stops(name):
    found = many()
    session, asked = STRATEGIES.get(name).start(found, 0), []
    while (candidate := session.ask()) is not None:
        assert session.ask() is candidate, "asking again changes nothing"
        asked.append(candidate.all_decisions)
        session.tell(found.outcome(candidate) or Outcome(status="over_limit"))
        assert len(asked) <= 200
    assert len(set(asked)) == len(asked)
    assert session.ask() is None
    with pytest.raises(RuntimeError):
        session.tell(Outcome(status="ok"))


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_seed_asks_the_same_and_budgets_hold(name):
    curves = [simulate(name, many(), TRIALS, seed=3) for _ in range(2)]
    assert curves[0] == curves[1] and len(curves[0]) == TRIALS
    assert all(a >= b >= 1.0 for a, b in itertools.pairwise(curves[0]))
    assert simulate(name, many(), 5, seed=3) == curves[0][:5]


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_empty_space_and_one_where_all_fails(name):
    assert STRATEGIES.get(name).start(space([]), 0).ask() is None
    bad = [
        measured(split(2**k), status=s) for k, s in enumerate(("over_limit", "crash", "oom", "timeout", "wrong_result"))
    ]
    failing = space(bad)
    session, count = STRATEGIES.get(name).start(failing, 0), 0
    while (candidate := session.ask()) is not None:
        session.tell(failing.outcome(candidate) or Outcome(status="over_limit"))
        count += 1
        assert count <= 100


@pytest.mark.parametrize("name", [n for n in STRATEGIES if STRATEGIES.get(n).measures])
def test_one_that_measures_finds_the_best_of_a_small_space(name):
    assert simulate(name, many(), TRIALS)[-1] == 1.0


def test_the_measured_strategy_learns_what_the_prediction_gets_wrong():
    found = many(60)
    least = {name: [simulate(name, found, 16, seed)[-1] for seed in range(9)] for name in ("measured", "random")}
    assert sorted(least["measured"])[4] <= sorted(least["random"])[4]


def test_the_analytic_strategy_goes_on_from_the_best_prediction():
    found = many()
    session = STRATEGIES.get("analytic").start(found, 0)
    assert session.ask().all_decisions == (), "compile options alone come first"
    session.tell(Outcome(status="over_limit"))
    first = session.ask()
    assert first.splits[0].axis == 1 and first.splits[0].chunk == 1 and first.options[0].value == "dots"


@pytest.mark.parametrize(("projected", "asked"), [(2000, 1), (1100, 10)])
def test_what_is_projected_far_above_the_limit_is_not_tried_again_and_again(projected, asked, monkeypatch):
    found = [replace(measured(split(2**k), status="over_limit"), projected_bytes=projected) for k in range(12)]
    everything = space(found)
    monkeypatch.setattr(RecordedSpace, "ranked", lambda self, start, goal=None: list(self._of(start)))
    session, count = STRATEGIES.get("analytic").start(everything, 0), 0
    while (candidate := session.ask()) is not None:
        count += bool(candidate.splits)
        session.tell(Outcome(status="over_limit", peak_bytes=4000 - 500 * count))
    assert count == asked


@pytest.mark.parametrize(("counted", "goes_on"), [(1.0, False), (1.2, False), (0.96, False), (0.94, True), (1.3, True)])
def test_once_the_compiler_counts_what_was_projected_above_the_limit_only_less_is_tried(counted, goes_on, monkeypatch):
    """Where it counts far less, or far more, what is projected says little, and more of the same is tried."""
    same = [replace(measured(split(2**k), status="over_limit"), projected_bytes=1100) for k in range(4)]
    less = replace(measured(split(1, axis=1), status="over_limit"), projected_bytes=1040)
    everything, seen = space([*same, less]), []

    def less_for_less(self, start, goal=None):
        found = list(self._of(start))
        return found[:-1] if goal.bytes == everything.limit_bytes else sorted(found, key=lambda c: c.peak.bytes)

    monkeypatch.setattr(RecordedSpace, "ranked", less_for_less)
    session = STRATEGIES.get("analytic").start(everything, 0)
    while (candidate := session.ask()) is not None:
        seen += [candidate.peak.bytes] if candidate.splits else []
        session.tell(Outcome(status="over_limit", peak_bytes=int(counted * candidate.peak.bytes)))
    assert seen[:2] == [1100, 1040] and (len(seen) > 2) == goes_on


def test_what_is_far_above_the_limit_gives_way_to_what_is_sealed(monkeypatch):
    """Of what is not sealed one candidate is asked about, and nothing is ranked again before the sealed ones are."""
    far = replace(measured(split(8), status="over_limit"), projected_bytes=2000)
    near = replace(measured(SEAL, split(8), run_s=1.0), projected_bytes=600)
    everything, ranked = space([far, near]), []

    def in_order(self, start, goal=None):
        ranked.append(start.decisions)
        return [c for c in self._of(start) if (SEAL in c.decisions) == (SEAL in start.decisions)]

    monkeypatch.setattr(RecordedSpace, "ranked", in_order)
    monkeypatch.setattr(RecordedSpace, "rewritten", RecordedSpace.root)
    monkeypatch.setattr(RecordedSpace, "sealed", lambda self, start: iter([replace(start, decisions=(SEAL,))]))
    session, asked = STRATEGIES.get("analytic").start(everything, 0), []
    while (candidate := session.ask()) is not None:
        asked.append(candidate.decisions)
        session.tell(everything.outcome(candidate))
    assert ranked == [(), (SEAL,)]
    assert asked[-2:] == [far.decisions, near.decisions]


def test_what_is_projected_far_too_high_gives_way_to_what_is_predicted_to_be_much_faster(monkeypatch):
    """The compiler counts 300 bytes beside arguments and results where 700 are projected."""
    fine = replace(measured(split(1), run_s=9.0, predicted_s=9.0), projected_bytes=900)
    coarse = replace(measured(split(64), run_s=1.0, predicted_s=1.0), projected_bytes=1500)
    coarser = replace(measured(split(128), run_s=0.9, predicted_s=0.9), projected_bytes=2000)
    goals = []

    def within(self, start, goal=None):
        goals.append(goal)
        return sorted((c for c in self._of(start) if c.peak.bytes <= goal.bytes), key=lambda c: c.seconds)

    monkeypatch.setattr(RecordedSpace, "ranked", within)
    for candidates, expected in (([fine, coarse, coarser], [1, 64]), ([fine], [1])):
        everything = space(candidates)
        session, asked = STRATEGIES.get("analytic").start(everything, 0), []
        while (candidate := session.ask()) is not None:
            asked += [d.chunk for d in candidate.decisions if isinstance(d, Split)]
            peak = {1: 500, 64: 900}[asked[-1]] if asked else 2000
            session.tell(Outcome(status="ok" if asked else "over_limit", peak_bytes=peak))
        assert asked == expected
    assert [g.bytes for g in goals if not g.coarser][1] == 200 + int(0.9 * 800 * 700 / 300)


def test_finer_chunks_of_what_was_projected_too_low_come_before_what_is_far_slower():
    """The compiler counts 1,400 bytes of what was projected to take 900; of half as large chunks what is projected."""
    coarse = replace(measured(split(64), predicted_s=1.0), projected_bytes=900)
    fine = replace(measured(split(32), predicted_s=1.2), projected_bytes=740)
    slow = replace(measured(split(1, axis=1), predicted_s=20.0), projected_bytes=700)
    for candidates, expected in (([coarse, fine, slow], [64, 32]), ([coarse, slow], [64, 1])):
        session, asked = STRATEGIES.get("analytic").start(space(candidates), 0), []
        while (candidate := session.ask()) is not None:
            asked += [d.chunk for d in candidate.decisions if isinstance(d, Split)]
            peak = {64: 1400, 32: 740, 1: 700}[asked[-1]] if asked else 2000
            session.tell(Outcome(status="ok" if peak <= 1000 else "over_limit", peak_bytes=peak))
        assert asked[: len(expected)] == expected


@pytest.mark.parametrize("ranked_at_once", [1, 9])
def test_what_is_over_by_few_bytes_is_cut_finer_by_so_many(monkeypatch, ranked_at_once):
    """Both are counted as 50 bytes more than is projected, which in chunks half as large is within 1,000 bytes."""
    coarse = replace(measured(split(64), predicted_s=1.0), projected_bytes=990)
    fine = replace(measured(split(32), predicted_s=1.2), projected_bytes=945)
    slow = replace(measured(split(1, axis=1), predicted_s=20.0), projected_bytes=700)

    def within(self, start, goal=None):
        met = (c for c in self._of(start) if c.peak.bytes <= goal.bytes)
        return sorted(met, key=lambda c: c.seconds)[:ranked_at_once]

    monkeypatch.setattr(RecordedSpace, "ranked", within)
    session, asked = STRATEGIES.get("analytic").start(space([coarse, fine, slow]), 0), []
    while (candidate := session.ask()) is not None:
        asked += [d.chunk for d in candidate.decisions if isinstance(d, Split)]
        peak = candidate.peak.bytes + 50 if asked else 2000
        session.tell(Outcome(status="ok" if peak <= 1000 else "over_limit", peak_bytes=peak))
    assert asked[:2] == [64, 32]


def test_at_last_what_would_obey_a_tighter_limit_is_tried(monkeypatch):
    """Nothing else is ranked where 1,000 bytes are wanted; 200 of them are arguments and results."""
    loose = replace(measured(split(64)), projected_bytes=950)
    tight = replace(measured(split(8, axis=1)), projected_bytes=500)

    def within(self, start, goal=None):
        wanted = tight if goal.bytes == 200 + 320 and goal.finest else loose
        return [c for c in self._of(start) if c.decisions == wanted.decisions]

    monkeypatch.setattr(RecordedSpace, "ranked", within)
    session, asked = STRATEGIES.get("analytic").start(space([loose, tight]), 0), []
    while (candidate := session.ask()) is not None:
        asked += [d.chunk for d in candidate.decisions if isinstance(d, Split)]
        peak = 700 if asked[-1:] == [8] else 1300
        session.tell(Outcome(status="ok" if peak <= 1000 else "over_limit", peak_bytes=peak))
    assert asked == [64, 8]


def test_once_something_obeys_nothing_is_asked_for_that_is_projected_above_the_limit(monkeypatch):
    """It is ranked last, whatever it is predicted to take; of a lattice-Boltzmann step 69 were compiled so."""
    obeys = replace(measured(split(1), run_s=9.0, predicted_s=9.0), projected_bytes=900)
    slower = replace(measured(split(2), run_s=9.5, predicted_s=9.5), projected_bytes=950)
    above = [replace(measured(split(c), run_s=1.0, predicted_s=1.0), projected_bytes=1200 + c) for c in (64, 128)]

    def ranked(self, start, goal=None):
        return sorted(self._of(start), key=lambda c: (c.peak.bytes > goal.bytes, c.seconds))

    monkeypatch.setattr(RecordedSpace, "ranked", ranked)
    session, asked = STRATEGIES.get("analytic").start(space([obeys, slower, *above]), 0), []
    while (candidate := session.ask()) is not None:
        asked += [d.chunk for d in candidate.decisions if isinstance(d, Split)]
        session.tell(Outcome(status="ok" if asked else "over_limit", peak_bytes=900 if asked else 2000))
    assert asked == [1, 2]


def test_what_one_split_was_projected_too_low_by_is_held_against_others_only_when_several_failed():
    def one(chunk, axis, projected, predicted_s):
        made = measured(split(chunk, axis), status="over_limit", predicted_s=predicted_s)
        return replace(made, projected_bytes=projected, peak_bytes=1100)

    found = space([one(64, 0, 900, 1.0), one(32, 0, 850, 2.0), one(16, 1, 800, 3.0), one(8, 0, 300, 4.0)])
    session, asked = STRATEGIES.get("analytic").start(found, 0), []
    while (candidate := session.ask()) is not None:
        asked.append(str(candidate))
        session.tell(found.outcome(candidate))
    assert ["axis 0" in asked[0], "axis 1" in asked[1], "chunks of 8" in asked[2]] == [True] * 3, asked


def test_what_several_splits_were_projected_too_low_by_is_not_multiplied():
    """Three places take three times their room; what is projected at a third comes before what takes a fiftieth."""

    def one(axis, chunk, projected, counted, predicted_s):
        made = measured(split(chunk, axis), status="over_limit", predicted_s=predicted_s)
        return replace(made, projected_bytes=projected, peak_bytes=counted)

    failing = [one(axis, 64, 900, 2600, 1.0 + axis / 10) for axis in range(3)]
    third, tiny = one(3, 16, 400, 800, 1.3), one(3, 1, 215, 300, 1.5)
    found = space([*failing, third, tiny])
    session, asked = STRATEGIES.get("analytic").start(found, 0), []
    while (candidate := session.ask()) is not None:
        asked.append(candidate.decisions)
        peak = found.outcome(candidate).peak_bytes
        session.tell(Outcome(status="ok" if peak <= 1000 else "over_limit", peak_bytes=peak))
    assert [d for d in asked if d][:4] == [c.decisions for c in (*failing, third)]


@pytest.mark.parametrize(("splits", "is_rewritten"), [(1, True), (2, True), (3, False)])
def test_what_few_splits_bring_within_the_limit_comes_before_what_takes_more(splits, is_rewritten):
    """The rewritten program comes first, but where it takes more splits than the plain one, which takes one."""
    rewritten = measured(RULE, *(split(8, axis) for axis in range(splits)), run_s=1.0)
    plain = measured(split(8), run_s=1.0)
    session = STRATEGIES.get("analytic").start(space([rewritten, plain]), 0)
    while not (first := session.ask()).splits:
        session.tell(Outcome(status="over_limit"))
    assert (RULE in first.decisions) == is_rewritten


def test_rewrites_come_before_splits_and_what_fits_without_a_loop_first():
    unsplit, cut = measured(RULE, run_s=2.0), measured(RULE, split(8), run_s=1.0)
    session = STRATEGIES.get("off").start(space([cut, unsplit]), 0)
    assert session.ask().decisions == (RULE,)
    session.tell(Outcome(status="over_limit"))
    assert session.ask() is None


def test_recorded_spaces_are_read_as_they_were_written_and_bad_lines_are_named(tmp_path):
    path = tmp_path / "spaces.jsonl"
    write_space(path, many())
    (again,) = read_spaces(path)
    assert again.measured == many().measured and again.best_s == many().best_s
    path.write_text(path.read_text() + '{"space": "torn", "limit_bytes": 1')
    with pytest.raises(ValueError, match=r"spaces.jsonl:2 is no recorded space"):
        read_spaces(path)
    line = path.read_text().splitlines()[0]
    for wrong, said in (
        (line.replace('"ok"', '"over_limit"', 1), "has run_s"),
        (re.sub(r'"run_s": [0-9.]+', '"run_s": NaN', line, count=1), "seconds"),
    ):
        assert wrong != line
        path.write_text(wrong + "\n")
        with pytest.raises(ValueError, match=said):
            read_spaces(path)


def test_a_step_in_a_recorded_space_is_a_short_one():
    found = many()
    parent = next(c for c in found.all() if c.splits[0].chunk == 16)
    near = [found.mutate(parent, random.Random(k)) for k in range(8)]
    assert max(distance(parent, c) for c in near) <= min(2.5, max(distance(parent, c) for c in found.all()))
    assert distance(parent, parent) == 0


def test_nothing_is_slower_than_the_default_where_that_obeys():
    default = measured(run_s=1.5)
    row = compare([space(many().measured, default)], ["measured", "random"], [1, 8], [0, 1])
    assert all(r.slower == 0 and r.mean[8] <= r.mean[1] <= 1.5 for r in row)


@pytest.fixture(scope="module")
def recorded():
    return [s for path in packaged() for s in read_spaces(path)]


def test_packaged_spaces_are_whole(recorded):
    assert len({(s.name, s.default.status) for s in recorded}) == len(recorded)
    assert sum(s.default.status == "over_limit" for s in recorded) >= 20
    assert all(math.isfinite(s.best_s) and len(s.measured) >= 10 for s in recorded)
    assert {s.default.status for s in recorded} == {"ok", "over_limit"}


def test_on_the_packaged_spaces_prediction_is_near_the_best_and_measuring_nearer(recorded):
    rows = {
        (r.strategy, r.plain_obeys): r for r in compare(recorded, ["analytic", "measured", "random"], [1, 32], range(1))
    }
    assert rows["analytic", False].mean[1] <= 1.25 <= rows["random", False].mean[1]
    assert rows["measured", False].mean[32] <= 1.03
    assert all(r.slower == 0 for r in rows.values())


@pytest.mark.parametrize(("counted", "expected"), [(1000, [128, 32, 1]), (1600, [128, 32, 16, 1])])
def test_between_what_is_over_the_limit_and_what_leaves_most_of_the_room_something_is_tried(counted, expected):
    """Twice at most; the room beside arguments and results is 800 bytes, and chunks of 32 take `counted` of 1,000."""
    bytes_of = {1: 380, 16: 425, 32: 480, 128: 900}
    found = [
        replace(measured(split(chunk), run_s=1.0, predicted_s=100 / chunk), projected_bytes=projected)
        for chunk, projected in bytes_of.items()
    ]
    session, asked = STRATEGIES.get("analytic").start(space(found), 0), []
    while (candidate := session.ask()) is not None:
        asked += [d.chunk for d in candidate.decisions if isinstance(d, Split)]
        peak = {1: 350, 16: 600, 32: counted, 128: 2800}[asked[-1]] if asked else 5000
        session.tell(Outcome(status="ok" if peak <= 1000 else "over_limit", peak_bytes=peak))
    assert asked == expected
