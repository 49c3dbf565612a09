"""`exla tune`, `exla search space`, `exla explain --space` and `exla search compare`."""

import json

import pytest

from exla.passes.decisions import from_json
from exla.search import tune
from exla.search.measure import Timing
from exla.search.recorded import write_space
from tests.commands.conftest import SHAPES
from tests.search.test_strategies import many, measured, space, split

pytestmark = pytest.mark.usefixtures("compiled_quickly")
SMALL = ("--shapes", SHAPES, "--memory-limit", "96KiB")


@pytest.fixture
def clock(monkeypatch):
    """Processes that are not started: each candidate takes less time than the one before."""
    asked = []

    def timed(program, **kwargs):
        asked.append(program)
        return Timing(status="ok", run_s=1 / len(asked), reference_s=1.0, rounds=5, error=0.0)

    monkeypatch.setattr(tune, "timed", timed)
    return asked


def test_tune_shows_what_was_measured_and_the_plan_that_won(exla_command, clock):
    code, out, _ = exla_command("tune", "kernels:smooth", *SMALL, "--search-trials", "3")
    assert code == 0 and "4 candidates" in out and "ended by: trials" in out and "1 over_limit" in out
    assert "exla plan" in out and "split axis" in out and clock
    assert "the winner takes" in out and "the plain program 1000 ms; exla.jit uses it from now on" in " ".join(
        out.split()
    )
    code, out, _ = exla_command("plan", "kernels:smooth", *SMALL, "--json")
    assert json.loads(out)["source"] == "record"


def test_tune_as_json_is_a_line_for_each_trial_and_one_for_the_winner(exla_json, clock):
    code, rows = exla_json(
        "tune", "kernels:smooth", *SMALL, "--search-trials", "3", "--search", "random", "--seed", "7"
    )
    *trials, last = rows
    assert code == 0 and len(trials) == 4 and trials[0]["status"] == "over_limit" and last["stop"] == "trials"
    ran = [t for t in trials if t["run_s"] is not None]
    assert last["winner"]["run_s"] == min(t["run_s"] for t in ran)
    assert all(from_json(d) for t in trials for d in t["decisions"])


def test_tune_says_where_nothing_was_measured(exla_command, clock):
    words = ("--search-seconds", "1e-9", "--records", "off")
    code, out, _ = exla_command("tune", "kernels:smooth", *SMALL, *words)
    assert code == 0 and "nothing that obeys the limit was measured" in out and "split axis" in out


def test_tune_refuses_a_search_that_measures_nothing(exla_command):
    code, _, err = exla_command("tune", "kernels:smooth", *SMALL, "--search", "analytic")
    assert code == 2 and "measures nothing" in err and "evolutionary" in err


@pytest.mark.parametrize("words", [("search", "space", "kernels:smooth"), ("explain", "kernels:smooth", "--space")])
def test_a_space_is_counted_and_said_in_words(exla_command, words):
    code, out, _ = exla_command(*words, *SMALL)
    assert code == 0 and "candidates within 96.0 KiB" in out and out.count("split axis") >= 3


def test_a_space_as_json(exla_json):
    code, (size, *rows) = exla_json("search", "space", "kernels:smooth", *SMALL, "--show", "4", "--count", "20")
    assert code == 0 and size["candidates"] >= 20 and len(rows) == 4
    assert all(r["projected_bytes"] <= size["goal_bytes"] and r["predicted_s"] > 0 for r in rows)


@pytest.mark.parametrize("words", [("--count", "-5"), ("--count", "0"), ("--count", "many"), ("--show", "-1")])
def test_numbers_that_count_nothing_are_not_understood(exla_command, exla_json, words):
    code, out, err = exla_command("search", "space", "kernels:smooth", *SMALL, *words)
    assert code == 2 and out == "" and f"argument {words[0]}: a whole number of" in err and repr(words[1]) in err
    code, (row,) = exla_json("search", "space", "kernels:smooth", *SMALL, *words)
    assert code == 2 and row["error"]["kind"] == "UsageError" and words[0] in row["error"]["message"]


def test_compare_prints_a_table_for_each_kind_of_space(exla_command, exla_json, tmp_path):
    path = tmp_path / "spaces.jsonl"
    write_space(path, many())
    obeying = space([measured(split(2**k), run_s=1 + k) for k in range(5)], measured(run_s=3.0))
    obeying.name = "obeys"
    write_space(path, obeying)
    code, out, _ = exla_command("search", "compare", "--spaces", str(path), "--strategies", "random", "analytic")
    assert code == 0 and "1 programs that obey as they are, 5 candidates" in out and "slower" in out
    code, rows = exla_json("search", "compare", "--spaces", str(path), "--strategies", "measured", "--counts", "1", "8")
    assert code == 0 and [r["plain_obeys"] for r in rows] == [False, True] and rows[1]["slower"] == 0
    assert rows[1]["mean"]["8"] == 1.0 <= rows[0]["mean"]["8"] <= rows[0]["mean"]["1"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--strategies", "luck"), 2, "unknown strategies: ['luck']"),
        (("--spaces", "nowhere.jsonl"), 2, "nowhere.jsonl"),
    ],
)
def test_what_compare_does_not_understand(exla_command, words, code, said):
    got, _, err = exla_command("search", "compare", *words)
    assert got == code and said in err
