"""The command line itself: what starts without JAX, and what all commands have in common."""

import subprocess
import sys

import pytest

from exla.cli import COMMANDS, main
from exla.console import WIDE, to_output
from tests.test_architecture import SOURCES


def test_help_loads_no_jax():
    code = "import sys; from exla.cli import main\ntry: main(['--help'])\nfinally: print('jax' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert child.returncode == 0 and child.stdout.endswith("False\n"), child.stderr[-2000:]


def test_a_command_that_cannot_be_imported_is_one_message(monkeypatch, exla_command):
    monkeypatch.setitem(COMMANDS[""], "targets", ("exla.commands.no_such_module", ""))
    code, out, err = exla_command("targets")
    assert code == 1 and out == "" and "no_such_module" in err and "exla doctor" in err
    monkeypatch.setenv("EXLA_STRICT", "1")
    with pytest.raises(ImportError):
        main(["targets"])


NAMES = [[*([group] if group else []), name] for group, commands in COMMANDS.items() for name in commands]


@pytest.mark.parametrize("words", NAMES, ids=" ".join)
def test_every_command_explains_itself_and_speaks_json(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "exla " + " ".join(words) in text and len(text.split("\n\n")[1]) > 40  # more than the table's few words
    assert "--json" in text


def test_without_a_terminal_tables_are_wide_unless_columns_says_otherwise(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert to_output().width == WIDE >= 160
    monkeypatch.setenv("COLUMNS", "72")
    assert to_output().width == 72


def test_only_one_file_says_how_wide_tables_are():
    elsewhere = [p for p in SOURCES if "Console(" in p.read_text().replace("Console(stderr=True)", "")]
    assert [p.name for p in elsewhere] == ["console.py"]


@pytest.mark.parametrize("words", [["targets", "--", "rest"], ["nonsense"], []], ids=" ".join)
def test_what_is_not_understood_has_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2 and "exla" in capsys.readouterr().err


def test_a_misspelt_flag_is_told_the_one_that_was_meant(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["plan", "kernels:smooth", "--memry-limit", "2GiB"])
    assert stop.value.code == 2 and "--memry-limit 2GiB (did you mean --memory-limit?)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["targets", "--something"])
    assert "unrecognized arguments: --something\n" in capsys.readouterr().err


def test_the_package_runs_as_the_command():
    child = subprocess.run([sys.executable, "-m", "exla", "--help"], capture_output=True, text=True, timeout=60)
    assert child.returncode == 0 and child.stdout.startswith("usage: exla "), child.stderr[-2000:]
