"""`exla tune`, `exla search space`, `exla explain --space` and `exla search compare`."""

import json
import os
import warnings

import pytest

from exla.commands.tune import NOT_TIMED, SOURCES
from exla.passes.decisions import from_json
from exla.search import tune
from exla.search.measure import Timing
from exla.search.record import STATUSES
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
    code, out, err = exla_command("tune", "kernels:smooth", *SMALL, "--search-trials", "3")
    lines = [line for line in err.splitlines() if line.startswith("tuning")]
    assert [line.partition(" (")[0] for line in lines] == [f"tuning {k}/4" for k in range(1, 5)]
    assert lines[0].endswith("(over_limit): nothing obeys yet") and lines[-1].endswith("ms")
    assert code == 0 and "ended by: trials" in out and "1 over_limit" in out
    assert "the program as it is and 3 candidates" in " ".join(out.split())
    assert "exla plan" in out and "split axis" in out and clock
    assert "the winner takes" in out and "the plain program 1000 ms; exla.jit uses it from now on" in " ".join(
        out.split()
    )
    code, out, _ = exla_command("plan", "kernels:smooth", *SMALL, "--json")
    assert json.loads(out)["source"] == "record"


def test_tune_explains_the_words_of_its_table_and_its_help_explains_all(exla_command, clock):
    words = ("tune", "kernels:smooth", *SMALL, "--search-trials", "3")
    _, out, _ = exla_command(*words)
    below = out.partition("ms: median of one run; compiled: by the compiler's count; from:\n")[2]
    assert f"measured      {SOURCES['measured']}\n" in below and SOURCES["record"] not in below
    assert f"1 over_limit  {NOT_TIMED['over_limit']}\n" in below
    assert f"record        {SOURCES['record']}\n" in exla_command(*words)[1]
    _, text, _ = exla_command("tune", "--help")
    assert all(said in text for said in (*SOURCES.values(), *NOT_TIMED.values()))
    assert set(STATUSES) - {"ok"} < set(NOT_TIMED)


def test_tune_as_json_is_a_line_for_each_trial_one_for_the_winner_and_one_for_the_plan(exla_json, clock):
    code, rows = exla_json(
        "tune", "kernels:smooth", *SMALL, "--search-trials", "3", "--search", "random", "--seed", "7"
    )
    *trials, last, plan = rows
    assert code == 0 and len(trials) == 4 and trials[0]["status"] == "over_limit" and last["stop"] == "trials"
    ran = [t for t in trials if t["run_s"] is not None]
    assert last["winner"]["run_s"] == min(t["run_s"] for t in ran)
    assert all(from_json(d) for t in trials for d in t["decisions"])
    assert plan["function"] == "smooth" and plan["decisions"] == last["winner"]["decisions"] and last["not_kept"] == ""


def test_tune_says_who_uses_a_winner_where_no_limit_is_named(exla_command, clock):
    shapes = SMALL[: SMALL.index("--memory-limit")]
    code, out, _ = exla_command("tune", "kernels:smooth", *shapes, "--search-trials", "1")
    assert code == 0 and "searches that measure use it from now on" in " ".join(out.split())


def test_tune_says_where_nothing_was_measured(exla_command, clock):
    words = ("--search-seconds", "1e-9", "--records", "off")
    code, out, _ = exla_command("tune", "kernels:smooth", *SMALL, *words)
    assert code == 0 and "nothing that obeys the limit was measured" in out and "split axis" in out


def test_the_plan_is_there_where_nothing_was_measured(exla_json, clock):
    code, (*_, last, plan) = exla_json("tune", "kernels:smooth", *SMALL, "--search-seconds", "1e-9")
    assert code == 0 and last["winner"] is None and last["stop"] == "seconds"
    assert plan["source"] == "search" and plan["decisions"] and plan["compiled_bytes"] <= 96 * 1024


def test_a_function_of_exla_jit_is_tuned_whatever_it_is_wrapped_with(exla_command, clock):
    code, out, _ = exla_command("tune", "kernels:capped", "--shapes", SHAPES, "--search-trials", "2")
    assert code == 0 and "2 candidates" in out and "the winner takes" in out


@pytest.mark.parametrize("how", ["unwritable", "off"])
def test_tune_says_that_nothing_could_be_kept_and_why(how, exla_command, exla_json, clock, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    words = ["tune", "kernels:smooth", *SMALL, "--search-trials", "2"]
    if how == "off":
        words, why = [*words, "--records", "off"], "records='off'"
    else:
        monkeypatch.setenv("EXLA_RECORDS_DIR", str(tmp_path / "file" / "below"))
        why = f"tuning records cannot be written to {tmp_path}/file/below ([Errno 20]"
    with warnings.catch_warnings(action="ignore"):
        code, out, _ = exla_command(*words)
        assert code == 0 and f"; nothing is kept: {why}" in out and "from now on" not in out
        code, (*_, last, _) = exla_json(*words)
    assert code == 0 and last["winner"] and last["not_kept"].startswith(why)


PRINTING = """
import jax.numpy as jnp
print("imported")
def far(x, y):
    print("traced")
    return jnp.max(jnp.sum(jnp.abs(x[:, None] - y[None]), axis=-1))
"""


@pytest.mark.parametrize(
    "words", [("plan",), ("tune", "--search-trials", "1"), ("search", "space"), ("explain", "--space")]
)
def test_json_is_not_mixed_with_what_the_function_prints(words, folder, exla_command, clock):
    (folder / "printing.py").write_text(PRINTING)
    given = ("printing:far", "--shapes", "f32[400,3] f32[400,3]", "--memory-limit", "64KiB", "--json")
    code, out, err = exla_command(*words, *given)
    assert code == 0 and all(isinstance(json.loads(line), dict) for line in out.splitlines()) and out
    assert "imported" in err and "traced" in err


SCRIPT = """
import sys
import jax, jax.numpy as jnp
from kernels import smooth, twice
import exla

print("arguments", sys.argv[1:])
capped = exla.jit(smooth, memory_limit="96KiB")
counted = exla.jit(smooth, memory_limit="96KiB", search="analytic")
for rows in (400, 500, 400):
    capped(jnp.ones((rows, 3)), jnp.ones((300, 3)), jnp.ones(300))
counted(jnp.ones((450, 3)), jnp.ones((300, 3)), jnp.ones(300))
if "fail" in sys.argv:
    raise ValueError("on purpose")
"""


@pytest.fixture
def script(folder):
    (folder / "script.py").write_text(SCRIPT)
    return "script.py"


def test_every_signature_of_a_script_is_tuned(script, exla_command, clock):
    code, out, _ = exla_command("tune", script, "--search-trials", "2", "--", "--epochs", "3")
    assert code == 0 and out.startswith("arguments ['--epochs', '3']\n1. smooth: f32[400,3]")
    assert out.count(" 2 candidates") == 2 == out.count("exla.jit uses it from now on")
    assert out.count("2. smooth: f32[500,3]") == 2 and "not measured: the script plans it with search='analytic'" in out
    tables, plans = out.split("exla plan\n", 1)
    assert tables.count(" 2 candidates") == 2 and plans.count("exla plan\n") == 2
    assert "EXLA_SEARCH" not in os.environ


def test_tune_of_a_script_as_json_has_the_lines_of_each_search_and_then_the_plans(script, exla_json, clock):
    words = ("tune", script, "--search-trials", "2", "--search", "random", "--", "fail")
    code, rows = exla_json(*words)
    kinds = [next(k for k in ("status", "stop", "function", "error") if k in row) for row in rows]
    assert kinds == [*["status"] * 3, "stop", *["status"] * 3, "stop", *["function"] * 3, "error"]
    assert code == 1 and rows[-1]["error"]["message"] == "on purpose"
    assert [rows[k]["winner"]["decisions"] for k in (3, 7)] == [rows[k]["decisions"] for k in (8, 9)]


def test_tune_of_a_script_refuses_a_search_that_measures_nothing(script, exla_command):
    code, out, err = exla_command("tune", script, "--search", "analytic")
    assert code == 2 and out == "" and "measures nothing" in err


@pytest.mark.parametrize("words", [("search", "space", "script.py"), ("explain", "script.py", "--space")])
def test_a_space_is_asked_of_a_function(words, script, exla_command):
    code, out, err = exla_command(*words)
    assert code == 2 and out == "" and "script.py:function" in err and "neither" not in err


@pytest.mark.parametrize("words", [("tune", "kernels:smooth"), ("explain", "kernels:smooth", "--space")])
def test_a_function_takes_nothing_after_two_dashes(words, exla_command):
    code, out, err = exla_command(*words, *SMALL, "--", "rest")
    assert code == 2 and out == "" and "only a script takes" in err


@pytest.mark.parametrize("how", [["--json"], []], ids=["lines of JSON", "in words"])
@pytest.mark.filterwarnings("error::exla.ExlaWarning")
def test_trials_that_nobody_reads_end_the_search(how, monkeypatch, exla_command, clock, capsys):
    def closed(*words, file=None, **kwargs):
        raise BrokenPipeError

    monkeypatch.setattr("exla.commands.tune.print", closed, raising=False)
    code, _, err = exla_command("tune", "kernels:smooth", *SMALL, *how)
    assert code == 1 and not clock and "exla failed" not in err


def test_tune_refuses_a_search_that_measures_nothing(exla_command):
    code, _, err = exla_command("tune", "kernels:smooth", *SMALL, "--search", "analytic")
    assert code == 2 and "measures nothing" in err and "evolutionary" in err


@pytest.mark.parametrize("words", [("search", "space", "kernels:smooth"), ("explain", "kernels:smooth", "--space")])
def test_a_space_is_counted_and_said_in_words(exla_command, words):
    code, out, _ = exla_command(*words, *SMALL)
    assert code == 0 and "candidates within 96.0 KiB" in out and out.count("split axis") >= 3
    assert "the first 10 of the walk, not the best:" in out


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
