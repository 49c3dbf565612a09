"""How commands fail: one message, one line of JSON where that is asked for, and nothing else on standard output."""

import json
import os
import subprocess
import sys

import pytest

from exla.commands import records_ls, search_compare
from exla.errors import OptionError
from tests.commands.conftest import SHAPES

FAILS = {
    "records ls --directory nowhere": (2, "UsageError", "nowhere is not a directory"),
    "records verify --directory nowhere": (2, "UsageError", "nowhere is not a directory"),
    "records show none": (2, "UsageError", "'none' starts no name"),
    "records merge nowhere.jsonl": (1, "FileNotFoundError", "nowhere.jsonl"),
    "records prune": (2, "UsageError", "say what to remove"),
    "records prune --keep-best -1": (2, "UsageError", "--keep-best must be 0 or more, not -1"),
    "rules verify nonsense": (2, "UsageError", "no replace rule named nonsense"),
    "rules discover --equations 99": (2, "UsageError", "equations must be from 1"),
    "rules discover --equations 2 --budget-s 0": (1, "ExlaError", "the budget ran out"),
    "profile run nowhere.toml -o out": (2, "OptionError", "nowhere.toml"),
    "profile status .": (1, "ExlaError", "holds no campaign"),
    "profile export . -o out": (1, "ExlaError", "holds no campaign"),
    "search compare --strategies luck": (2, "UsageError", "unknown strategies: ['luck']"),
    "search compare --counts 0": (2, "UsageError", "above 0"),
    "search compare --spaces nowhere.jsonl": (2, "UsageError", "nowhere.jsonl"),
    "features nowhere.pb": (1, "FileNotFoundError", "nowhere.pb"),
    "features kernels.py": (1, "HloError", "is no HLO module"),
    "compile kernels:twice --executable": (2, "UsageError", "--out FILE"),
    "tune kernels:nonsense": (2, "UsageError", "has no 'nonsense'"),
    "train nowhere": (2, "OptionError", "nowhere"),
    "plan": (2, "UsageError", "PROGRAM"),
    "records show": (2, "UsageError", "KEY"),
    "records": (2, "UsageError", "COMMAND"),
    "nonsense": (2, "UsageError", "nonsense"),
    "targets --nonsense": (2, "UsageError", "unrecognized arguments: --nonsense"),
    "targets -- rest": (2, "UsageError", "nothing is expected after --"),
    "completion tcl": (2, "UsageError", "tcl"),
}


@pytest.mark.parametrize("words", FAILS)
def test_an_error_is_one_line_of_json_and_nothing_else_on_standard_output(words, exla_json, exla_command):
    code, kind, said = FAILS[words]
    got, rows = exla_json(*words.split())
    assert got == code and len(rows) == 1 and rows[0].keys() == {"error"}
    error = rows[0]["error"]
    assert error["kind"] == kind and said in error["message"] and error["source"] == ""
    got, out, err = exla_command(*words.split())
    assert got == code and out == "" and said in err and "Traceback" not in err


def test_a_beginning_of_the_flag_is_the_flag(exla_command):
    code, out, err = exla_command("records", "prune", "--js")
    assert code == 2 and json.loads(out)["error"]["kind"] == "UsageError" and err == ""


def test_what_a_script_is_given_asks_for_no_json(exla_command):
    code, out, err = exla_command("targets", "--", "--json")
    assert code == 2 and out == "" and "nothing is expected" in err


def test_ctrl_c_is_an_error_like_others(monkeypatch, exla_json, exla_command):
    def stopped(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(records_ls, "run", stopped)
    assert exla_command("records", "ls") == (1, "", "exla: interrupted\n")
    said = {"kind": "KeyboardInterrupt", "message": "interrupted", "source": ""}
    assert exla_json("records", "ls") == (1, [{"error": said}])


@pytest.mark.parametrize(
    ("error", "code", "shown"), [(KeyError("x"), 1, True), (OSError("full"), 1, False), (OptionError("no"), 2, False)]
)
def test_only_a_bug_shows_where_it_is_unasked(error, code, shown, monkeypatch, exla_command):
    def failing(arguments):
        raise error

    monkeypatch.setattr(records_ls, "run", failing)
    got, out, err = exla_command("records", "ls", "--json")
    assert got == code and json.loads(out)["error"]["message"] == str(error) and ("Traceback" in err) == shown


PRINTING = """
print("x" * 100_000)
from kernels import capped
"""


@pytest.mark.parametrize(
    "words",
    ["targets --json", "targets", "--help", "plan --help", "nonsense --json", "records ls", "plan printing.py"],
)
def test_a_pipe_that_nobody_reads_ends_the_command_quietly(words, folder):
    (folder / "printing.py").write_text(PRINTING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONUNBUFFERED": ""}
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "exla", *words.split()]
    child = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environment, text=True, timeout=120)
    os.close(write)
    assert (child.returncode, child.stderr) == (1, "")


def test_another_pipe_of_the_users_is_an_error_like_others(folder, exla_json):
    (folder / "pipes.py").write_text("raise BrokenPipeError('mine')\n")
    code, (row,) = exla_json("plan", "pipes.py")
    assert code == 1 and row["error"]["kind"] == "BrokenPipeError" and row["error"]["source"].startswith("pipes.py:1")


def test_a_plot_that_cannot_be_drawn_is_said_before_anything_is_compared(monkeypatch, exla_json):
    monkeypatch.setattr(search_compare.importlib.util, "find_spec", lambda name: None)
    code, (row,) = exla_json("search", "compare", "--plot", "regret.png")
    assert code == 1 and row["error"]["kind"] == "MissingExtraError" and "exla[report]" in row["error"]["message"]


def test_an_error_of_the_users_names_the_line(folder, exla_json):
    code, (row,) = exla_json("plan", "kernels:smooth", "--shapes", SHAPES.replace("300,3", "300,4"))
    assert code == 1 and row["error"]["source"] == f"{folder}/kernels.py:8 (smooth)"
