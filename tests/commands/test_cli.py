"""The command line itself: what starts without JAX, and what all commands have in common."""

import subprocess
import sys

import pytest

from exla.cli import COMMANDS, main


def test_help_loads_no_jax():
    code = "import sys; from exla.cli import main\ntry: main(['--help'])\nfinally: print('jax' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert child.returncode == 0 and child.stdout.endswith("False\n"), child.stderr[-2000:]


NAMES = [[*([group] if group else []), name] for group, commands in COMMANDS.items() for name in commands]


@pytest.mark.parametrize("words", NAMES, ids=" ".join)
def test_every_command_explains_itself_and_speaks_json(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "exla " + " ".join(words) in text and len(text.split("\n\n")[1]) > 40  # more than the table's few words
    assert "--json" in text or words == ["completion"]


@pytest.mark.parametrize("words", [["targets", "--", "rest"], ["nonsense"], []], ids=" ".join)
def test_what_is_not_understood_has_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2 and "exla" in capsys.readouterr().err
