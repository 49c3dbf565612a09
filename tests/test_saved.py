"""Plans on disk: they replay to the same code and values elsewhere, and nothing else does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.saved import read_plan
from exla.targets.hlo_text import hlo_hash
from tests.test_api import SMALL, expected, kernel_product, points

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def saved(tmp_path):
    compiled = exla.compile(kernel_product, points(), memory_limit=SMALL)
    exla.save(compiled, tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_a_loaded_plan_gives_the_values_and_the_code_of_the_saved_one(saved):
    loaded = exla.load(saved, kernel_product, points())
    assert loaded.plan.decisions == read_plan(saved).decisions and loaded.plan.source == "plan"
    assert hlo_hash(loaded.as_text()) == read_plan(saved).hlo_hash
    assert len(loaded.plan.tried) == 1  # nothing was searched
    assert re.fullmatch(r"<exla.Compiled for cpu: \d decisions, \S+ KiB of at most 96.0 KiB>", repr(loaded))
    assert "jax.jit    not compiled: this was loaded from a plan" in str(loaded.plan)
    np.testing.assert_allclose(loaded(*points()), expected(*points()), rtol=1e-5, atol=1e-5)


def test_another_process_compiles_the_same_code(saved):
    code = (
        "import sys, exla; from exla.targets.hlo_text import hlo_hash\n"
        "from tests.test_api import kernel_product, points\n"
        "print(hlo_hash(exla.load(sys.argv[1], kernel_product, points()).as_text()))"
    )
    environment = {**os.environ, "EXLA_RECORDS": "off"}
    command = [sys.executable, "-c", code, str(saved)]
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert child.stdout.strip() == read_plan(saved).hlo_hash, child.stderr[-2000:]


def test_an_untouched_program_is_saved_as_one(tmp_path):
    compiled = exla.compile(kernel_product, points(), memory_limit="1GiB")
    exla.save(compiled, tmp_path / "plan.json")
    loaded = exla.load(tmp_path / "plan.json", kernel_product, points())
    assert loaded.plan.untouched and "as jax.jit compiles it" in repr(loaded)
    plain = jax.jit(lambda *args: kernel_product(*args))  # no other test has compiled it, under options of its own
    np.testing.assert_array_equal(loaded(*points()), plain(*points()))


def test_a_plan_of_another_program_or_other_arguments_is_refused(saved):
    x, y, v = points()
    with pytest.raises(exla.PlanError, match="another program: its equations"):
        exla.load(saved, lambda x, y, v: kernel_product(x, y, v) + 1, (x, y, v))
    with pytest.raises(exla.PlanError, match="other arguments"):
        exla.load(saved, kernel_product, (x, y[:-1], v[:-1]))


X, Y = np.ones(3, "float32"), np.ones(3, "bfloat16")
F, N, WEAK = np.float32(1), np.int32(1), "float32[] (weakly typed, as Python numbers are)"
OTHERS = {
    "one": ((X, F), (np.ones(4, "float32"), F), "argument 0 is float32[3] there, float32[4] here;"),
    "a type": ((X, F), (X, N), "argument 1 is float32[] there, int32[] here; plan anew"),
    "weak here": ((Y, F), (Y, 0.5), f"argument 1 is float32[] there, {WEAK} here;"),
    "weak there": ((Y, 0.5), (Y, F), f"argument 1 is {WEAK} there, float32[] here;"),
    "two": (
        (X, F),
        (X[:2], N),
        "argument 0 is float32[3] there, float32[2] here; argument 1 is float32[] there, int32",
    ),
    "how many": (([X, X], F), ([X], F), "float32[3] float32[3] float32[] donated () there, float32[3] float32[] donat"),
    "many": (([X] * 5, F), ([X[:2]] * 5, F), "argument 2 is float32[3] there, float32[2] here; and 2 more;"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_plan_of_other_arguments_names_those_that_differ(case, tmp_path):
    table = np.arange(3.0, dtype="float32")  # a constant of the program

    def scaled(values, scale):
        return jax.tree.map(lambda x: x * scale + table[0], values)

    made_for, given, said = OTHERS[case]
    exla.save(exla.compile(scaled, made_for, search="off"), tmp_path / "plan.json")
    with pytest.raises(exla.PlanError, match="was made for other arguments: ") as refused:
        exla.load(tmp_path / "plan.json", scaled, given)
    assert said in str(refused.value)
    assert exla.load(tmp_path / "plan.json", scaled, made_for).plan.untouched


def test_a_plan_that_does_not_say_which_arguments_are_weak_is_of_another_program(tmp_path):
    path = tmp_path / "plan.json"
    exla.save(exla.compile(lambda x, y: x * y, (Y, F), search="off"), path)
    row = json.loads(path.read_text())
    del row["weak_types"]  # as version 0.1.0 wrote it
    path.write_text(json.dumps(row))
    with pytest.raises(exla.PlanError, match="another program"):
        exla.load(path, lambda x, y: x * y, (Y, 0.5))
    assert exla.load(path, lambda x, y: x * y, (Y, F)).plan.untouched


def test_weak_types_that_change_no_equation_are_no_reason_to_refuse(tmp_path):
    exla.save(exla.compile(lambda x: x * 2, (F,), search="off"), tmp_path / "plan.json")
    assert exla.load(tmp_path / "plan.json", lambda x: x * 2, (0.5,)).plan.untouched


def test_a_plan_is_counted_again_under_the_limit_of_the_one_who_loads(saved):
    with pytest.raises(exla.MemoryLimitError) as caught:
        exla.load(saved, kernel_product, points(), memory_limit="8KiB")
    assert "planned for another limit" in "".join(caught.value.__notes__)
    assert caught.value.holders[0].bytes <= caught.value.smallest_peak_bytes, "what holds the peak of the saved plan"
    assert exla.load(saved, kernel_product, points(), memory_limit="1GiB").plan.limit_bytes == 1 << 30


def broken(text):
    row = json.loads(text)
    yield "torn", text[: len(text) // 2], "cannot be read"
    yield "binary", "\x80\x04K\x01.", "cannot be read|no plan"
    yield "a list", "[]", "no plan of format 1"
    yield "deep", "[" * 100_000, "cannot be read"
    yield "format", json.dumps({**row, "exla_plan": 99}), "its format: 99"
    yield "no decisions", json.dumps({k: v for k, v in row.items() if k != "decisions"}), "incomplete"
    yield "options", json.dumps({**row, "options": {}}), "incomplete"
    yield "decision", json.dumps({**row, "decisions": [{"kind": "Explode"}]}), "no decision"
    dump = {"kind": "CompileOption", "name": "xla_dump_to", "value": "somewhere"}
    yield "option", json.dumps({**row, "decisions": [*row["decisions"], dump]}), "xla_dump_to"
    yield "no text", json.dumps({**row, "decisions": [{**dump, "value": None}]}), "value=None is no str"
    split = next(d for d in row["decisions"] if d["kind"] == "Split")
    yield "axis", json.dumps({**row, "decisions": [{**split, "axis": 77}]}), "does not apply"
    for name, value in (("axis", "x"), ("chunk", None), ("chunk", True), ("result", 1.5)):
        yield f"{name} of another type", json.dumps({**row, "decisions": [{**split, name: value}]}), "no decision"


def test_what_is_no_plan_gets_an_error_that_says_so(saved, tmp_path):
    with pytest.raises(exla.PlanError, match="cannot be read"):
        exla.load(tmp_path / "none.json", kernel_product, points())
    for name, text, said in list(broken(saved.read_text())):
        saved.write_text(text)
        with pytest.raises(exla.PlanError, match=said):
            exla.load(saved, kernel_product, points())
            pytest.fail(name)


def test_what_cannot_be_saved_is_an_error_that_says_what_can(tmp_path):
    f = exla.jit(kernel_product, memory_limit=SMALL)
    for wrong in (f, f.plan(*points()), "plan.json"):
        with pytest.raises(TypeError, match=f"returned, not {type(wrong).__name__}"):
            exla.save(wrong, tmp_path / "plan.json")
    with pytest.raises(FileNotFoundError, match="no folder .*nowhere"):
        exla.save(f.lower(*points()).compile(), tmp_path / "nowhere" / "plan.json")
    assert not list(tmp_path.glob("*.json*"))
    with pytest.raises(TypeError, match="as a tuple or list, not"):
        exla.compile(jnp.sin, points()[0])


def test_a_replayed_plan_explains_itself_as_the_first_one_does(saved):
    first = exla.compile(kernel_product, points(), memory_limit=SMALL, records="off").plan
    loaded = exla.load(saved, kernel_product, points()).plan
    assert loaded.words == first.words and any("of them)" in words for words in loaded.words)
    assert [v.fate for v in loaded.values] == [v.fate for v in first.values]


def test_saving_over_a_plan_leaves_a_whole_one(saved):
    exla.save(exla.compile(jnp.sin, (np.ones(3, np.float32),), memory_limit="1MiB"), saved)
    assert read_plan(saved).decisions == () and [f.name for f in saved.parent.iterdir() if "plan" in f.name] == [
        "plan.json"
    ]


def test_every_option_of_exla_may_differ_from_the_plans(saved):
    loaded = exla.load(saved, kernel_product, points(), verify="compile", tensor_split_size="1GiB", search="heuristic")
    assert loaded.plan.decisions == read_plan(saved).decisions


STEP = """
import sys
import jax
import exla
from tests.test_api import SMALL, kernel_product, points

counts = dict.fromkeys(("hits", "misses"), 0)

def count(event, **_):
    name = event.rpartition("cache_")[2]
    counts[name] = counts.get(name, 0) + 1

jax.monitoring.register_event_listener(count)
if sys.argv[1] == "save":
    exla.save(exla.compile(kernel_product, points(), memory_limit=SMALL), sys.argv[2])
else:
    exla.load(sys.argv[2], kernel_product, points())
print(counts["hits"], counts["misses"])
"""


def test_a_loaded_plan_takes_its_executable_from_jaxs_cache(tmp_path):
    environment = {
        **os.environ,
        "EXLA_RECORDS": "off",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    said = []
    for step in ("save", "load"):
        child = subprocess.run(
            [sys.executable, "-c", STEP, step, str(tmp_path / "plan.json")],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert child.returncode == 0, child.stderr[-2000:]
        said.append([int(n) for n in child.stdout.split()[-2:]])
    (_, missed), (hit, missed_again) = said
    assert missed > 0 and hit > 0 and missed_again == 0
