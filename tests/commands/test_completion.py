"""`exla completion`: the script knows every command, flag and value."""

import json
import shutil
import subprocess
import sys

import pytest

from exla.cli import COMMANDS
from exla.commands.completion import SHELLS
from exla.options import Options


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_names_every_command_and_option(shell, exla_command):
    pytest.importorskip("shtab")
    code, out, err = exla_command("completion", shell)
    assert code == 0 and err == ""
    for group, commands in COMMANDS.items():
        assert group in out and all(name in out for name in commands)
    assert all(name.replace("_", "-") in out for name in vars(Options())) and "tpu:v5e" in out


def test_json_holds_the_script(exla_command):
    pytest.importorskip("shtab")
    code, out, _ = exla_command("completion", "bash", "--json")
    said = json.loads(out)
    assert code == 0 and said == {"shell": "bash", "script": exla_command("completion", "bash")[1].rstrip("\n")}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    "words, completed",
    [
        ("exp", "explain"),
        ("rules ver", "verify"),
        ("plan kernels.py --mem", "--memory-limit"),
        ("plan --search o", "off"),
    ],
)
def test_bash_completes(words, completed, exla_command, folder):
    pytest.importorskip("shtab")
    (folder / "complete.bash").write_text(exla_command("completion", "bash")[1])
    code = """
        source complete.bash; COMP_WORDS=(exla "$@"); COMP_CWORD=$#
        _shtab_exla exla "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; echo "${COMPREPLY[*]}"
    """
    command = ["bash", "-c", code, "bash", *words.split()]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip() == completed


def test_without_shtab_the_message_says_what_to_install(exla_command, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, out, err = exla_command("completion", "bash")
    assert code == 1 and out == "" and 'pip install "exla[completion]"' in err


def test_an_unknown_shell_is_not_understood(exla_command):
    code, _, err = exla_command("completion", "tcl")
    assert code == 2 and "fish" in err
