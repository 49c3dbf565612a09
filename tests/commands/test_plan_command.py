"""`exla plan`, `explain` and `compile`: of functions and of scripts, as text and as JSON, and their exit codes."""

import json
import os
import subprocess
import sys
import threading

import jax.numpy as jnp
import pytest

import exla
from exla.observe import observing
from exla.passes.decisions import from_json, to_json
from exla.report.data import error_data, plan_data
from exla.targets.hlo_text import hlo_hash
from tests.commands.conftest import SHAPES

pytestmark = pytest.mark.usefixtures("compiled_quickly")
SMALL = ("--shapes", SHAPES, "--memory-limit", "96KiB")


def test_plan_prints_the_plan(exla_command):
    code, out, err = exla_command("plan", "kernels:smooth", *SMALL)
    assert code == 0 and err == ""
    assert out.startswith("exla plan\n  limit      96.0 KiB") and "split axis" in out and "kernels.py:8 (smooth)" in out


def test_explain_says_what_became_of_each_value(exla_command):
    code, out, _ = exla_command("explain", "kernels.py:capped", "--shapes", SHAPES)
    assert code == 0 and "big values, largest first:" in out and "chunks of" in out and "candidates compiled" in out


def test_json_holds_the_plan_and_its_decisions_are_read_back(exla_json):
    code, (row,) = exla_json("plan", "kernels:smooth", *SMALL)
    kernels = sys.modules["kernels"]
    plan = exla.jit(kernels.smooth, memory_limit="96KiB").plan(*(jnp.ones(s) for s in ((400, 3), (300, 3), 300)))
    assert code == 0 and tuple(map(from_json, row["decisions"])) == plan.decisions != ()
    assert row["limit_bytes"] == 96 * 1024 >= row["compiled_bytes"] == plan.compiled_bytes
    assert row["function"] == "smooth" and row["arguments"] == SHAPES and row["target"] == "cpu"
    assert {t["what"] for t in row["tried"]} >= {t.what for t in plan.tried} and not row["untouched"]
    assert [v["fate"] for v in row["values"]] == [v.fate for v in plan.values]


def test_everything_of_a_plan_but_programs_is_data():
    plan = exla.jit(lambda x: x @ x).plan(jnp.ones((8, 8)))
    data = plan_data(plan)
    assert json.loads(json.dumps(data)) == data
    assert set(data) == set(plan.__dataclass_fields__) - {"compiled", "program"}
    assert data["plain"]["total"] == plan.plain.total and data["decisions"] == [to_json(d) for d in plan.decisions]


def test_pytrees_keywords_static_and_64_bits_are_planned(exla_json):
    words = ("--shapes", "(f64[4,3], {w: f64[3,5]}) bias=0.5", "--x64")
    code, (row,) = exla_json("plan", "kernels:tree", *words)
    assert code == 0 and row["arguments"] == "f64[4,3] f64[3,5] f64[]"
    code, (row,) = exla_json("plan", "kernels:choose", "--shapes", "f32[9] 'max' causal=True", "--static", "how,causal")
    assert code == 0 and row["arguments"] == "f32[9]"


def test_donated_arguments_are_counted_once(exla_json):
    plain, donated = (
        exla_json("plan", "kernels:twice", "--shapes", "f32[9000]", *words)[1][0]["compiled_bytes"]
        for words in ((), ("--donate", "x"))
    )
    assert plain - donated == 36000


def test_a_refusal_is_exit_code_1_with_its_numbers(exla_command, exla_json):
    words = ("kernels:smooth", "--shapes", SHAPES, "--memory-limit", "8KiB")
    code, out, err = exla_command("plan", *words)
    assert code == 1 and out == "" and err.startswith("exla: the program does not fit its memory limit of 8.0 KiB")
    code, (row,) = exla_json("explain", *words)
    assert code == 1 and row["error"]["kind"] == "MemoryLimitError" and row["error"]["limit_bytes"] == 8192
    assert row["error"]["smallest_peak_bytes"] > 8192 and row["error"]["holders"][0]["bytes"] > 0


def test_a_refusal_as_data_has_all_that_the_error_has():
    with pytest.raises(exla.MemoryLimitError) as refused:
        exla.jit(lambda x: x + 1, memory_limit="1KiB").plan(jnp.ones(4000))
    data = error_data(refused.value)
    assert json.loads(json.dumps(data)) == data and data["message"] == str(refused.value)
    assert len(data["holders"]) == len(refused.value.holders) > 0


FAILS = {
    "kernels:nonsense": (2, "kernels has no 'nonsense'"),
    "kernels.py:nonsense": (2, "kernels.py has no 'nonsense'"),
    "kernels:twice --shapes f32[3": (2, "at position 6"),
    "kernels:twice --shapes f32[3] --memory-limit 3parsecs": (2, "unknown unit 'parsecs'"),
    "kernels:twice --shapes f32[3] --search nonsense": (2, "valid values"),
    "kernels:twice --shapes f32[3] --nonsense": (2, "--nonsense"),
    "kernels:twice --shapes f32[3] --rules nonsense": (2, "nonsense"),
    "kernels:twice --shapes f32[3] -- rest": (2, "only a script takes"),
    "kernels:smooth --shapes f32[3,4],f32[3,5],f32[3]": (1, "kernels.py:8 (smooth)"),
    "kernels:twice --shapes f32[3] --target gpu": (1, "the attached device, and none is"),
    "broken:f": (1, "broken.py:2 (<module>)"),
    "unreadable:f": (1, "unreadable.py, line 1"),
    "script.py --shapes f32[3]": (2, "--shapes is for a function"),
    "script.py --static how": (2, "--static is for a function"),
    "script.py --memory-limit 3parsecs": (2, "unknown unit"),
    "nowhere.py": (2, "no script 'nowhere.py'"),
    "quiet.py": (1, "planned nothing"),
    "graded.py": (1, "such as jax.grad, of which what fits with everything stored is left to jax.jit"),
}


@pytest.mark.parametrize("words", FAILS)
def test_errors_are_one_message_with_the_users_line_and_an_exit_code(words, folder, exla_command):
    (folder / "broken.py").write_text("import json\njson.loads('{')\n")
    (folder / "unreadable.py").write_text("def f(:\n")
    (folder / "quiet.py").write_text("print('nothing to plan')\n")
    (folder / "graded.py").write_text("import jax, kernels\njax.grad(lambda x: kernels.twice(x))(1.0)\n")
    (folder / "script.py").write_text("import kernels\n")
    code, _, err = exla_command("plan", *words.split(" "))
    assert code == FAILS[words][0] and FAILS[words][1] in err and "Traceback" not in err, err
    assert "exla" in err


def test_what_python_cannot_read_is_in_the_users_file(folder, exla_json):
    (folder / "unreadable.py").write_text("number = 3\ndef f(:\n")
    (folder / "importing.py").write_text("import unreadable\n")
    for words in (["unreadable:f"], ["unreadable.py:f"], ["importing:f"], ["importing.py"]):
        code, (row,) = exla_json("plan", *words)
        assert code == 1 and row["error"]["kind"] == "SyntaxError"
        assert row["error"]["source"] == f"{folder}/unreadable.py:2 (<module>)"


@pytest.mark.parametrize("how", ["--traceback", "EXLA_STRICT"])
def test_a_traceback_is_printed_where_it_is_asked_for(how, folder, exla_command, monkeypatch):
    (folder / "broken.py").write_text("raise ValueError('mine')\n")
    if how == "EXLA_STRICT":
        monkeypatch.setenv(how, "1")
    code, _, err = exla_command("plan", "broken:f", *([how] if how[0] == "-" else []))
    assert (
        code == 1
        and "Traceback" in err
        and err.endswith("exla: ValueError: mine\n  at " + f"{folder}/broken.py:1 (<module>)\n")
    )


def test_compile_keeps_the_plan_and_the_code(folder, exla_command):
    code, out, err = exla_command("compile", "kernels:smooth", *SMALL, "--out", "plan.json", "--hlo", "smooth.hlo")
    assert code == 0 and "compiled" in out and "saved plan.json" in err
    kernels = sys.modules["kernels"]
    arguments = [jnp.ones(s) for s in ((400, 3), (300, 3), 300)]
    loaded = exla.load("plan.json", kernels.smooth, arguments)
    saved = json.loads((folder / "plan.json").read_text())
    assert loaded.plan.decisions == tuple(map(from_json, saved["decisions"]))
    assert hlo_hash((folder / "smooth.hlo").read_text()) == saved["hlo_hash"] == hlo_hash(loaded.as_text())


def test_compile_keeps_the_executable_where_asked_and_names_it(folder, exla_command, exla_json):
    command = ("compile", "kernels:smooth", *SMALL, "--executable")
    code, _, err = exla_command(*command)
    assert code == 2 and "--out FILE" in err
    code, _, err = exla_command(*command, "--out", "plan.json")
    assert code == 0 and err == "exla: saved plan.json (plan)\nexla: saved plan.json.executable (executable)\n"
    assert (folder / "plan.json.executable").is_file()
    code, (row,) = exla_json(*command, "--out", "plan.json", "--hlo", "code.hlo")
    files = {"hlo": "code.hlo", "plan": "plan.json", "executable": "plan.json.executable"}
    assert code == 0 and row["files"] == files and row["function"] == "smooth"
    arguments = [jnp.ones(s) for s in ((400, 3), (300, 3), 300)]
    loaded = exla.load("plan.json", sys.modules["kernels"].smooth, arguments, executable=True)
    assert loaded.plan.source == "executable"


def test_compile_looks_for_the_folder_first(exla_command):
    code, _, err = exla_command("compile", "nonsense:f", "--out", "nowhere/plan.json")
    assert code == 2 and "no folder 'nowhere'" in err


SCRIPT = """
import sys
import jax, jax.numpy as jnp
from kernels import capped, twice

print("arguments", sys.argv[1:], __name__)
capped(jnp.ones((400, 3)), jnp.ones((300, 3)), jnp.ones(300))
capped(jnp.ones((400, 3)), jnp.ones((300, 3)), jnp.ones(300))
twice(jnp.ones(7))
if "fail" in sys.argv:
    raise ValueError("on purpose")
if "leave" in sys.argv:
    sys.exit(3)
"""


@pytest.fixture
def script(folder):
    (folder / "script.py").write_text(SCRIPT)
    return "script.py"


def test_a_script_is_run_and_every_signature_is_reported_once_in_order(script, exla_command):
    before = list(sys.argv)
    code, out, err = exla_command("explain", script, "--", "--epochs", "3")
    assert code == 0 and err == "" and sys.argv == before
    assert out.startswith("arguments ['--epochs', '3'] __main__\n")
    assert out.index(f"1. smooth: {SHAPES}\n") < out.index("2. twice: f32[7]\n") and "\n3. " not in out


@pytest.mark.parametrize("word, said", [("fail", "ValueError: on purpose"), ("leave", "ended itself: 3")])
def test_a_script_that_ends_badly_is_reported_first(word, said, script, exla_command):
    code, out, err = exla_command("plan", script, "--", word)
    assert code == 1 and "2. twice" in out and said in err
    assert ("script.py:11 (<module>)" in err) == (word == "fail")


def test_json_of_a_script_is_not_mixed_with_what_it_prints(script, exla_json):
    code, rows = exla_json("plan", script, "--", "fail")
    assert code == 1 and [r.get("function") for r in rows] == ["smooth", "twice", None]
    assert rows[0]["limit_bytes"] == 96 * 1024 and rows[2]["error"]["source"].endswith("script.py:11 (<module>)")


def test_flags_are_a_scripts_defaults_and_are_gone_afterwards(script, exla_json):
    code, rows = exla_json("plan", script, "--memory-limit", "1MiB")
    assert code == 0 and [r["limit_bytes"] for r in rows] == [96 * 1024, 1 << 20]
    assert "EXLA_MEMORY_LIMIT" not in os.environ


def test_compile_of_a_script_numbers_the_files(script, folder, exla_command):
    code, _, err = exla_command("compile", script, "--out", "plan.json", "--hlo", "code.hlo")
    assert code == 0 and "saved plan-1.json" in err and "saved code-2.hlo (hlo)" in err
    assert {p.name for p in folder.iterdir()} >= {"plan-1.json", "plan-2.json", "code-1.hlo", "code-2.hlo"}
    assert exla.load("plan-2.json", sys.modules["kernels"].twice, [jnp.ones(7)]).plan.untouched


def test_what_transformations_and_threads_plan_is_heard_and_later_plans_are_not():
    import jax

    heard = []
    f = exla.jit(lambda x: jnp.sin(x) * x, memory_limit="1MiB")
    with observing(heard.append):
        thread = threading.Thread(target=lambda: f(jnp.ones(5)))
        thread.start()
        thread.join()
        jax.jit(lambda x: f(x) + 1)(jnp.ones(6))
    f(jnp.ones(8))
    assert [(m.arguments, m.derived) for m in heard] == [("f32[5]", False), ("f32[6]", True)]


def test_a_process_of_its_own_gives_the_same(folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "exla.cli", "plan", "kernels:twice", "--shapes", "f32[3]", "--json"]
    child = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert child.returncode == 0 and json.loads(child.stdout)["function"] == "twice", child.stderr[-2000:]
