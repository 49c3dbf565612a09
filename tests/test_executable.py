"""Executables beside plans: they run in another process without a compiler, where they are of that very program."""

import functools
import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.executable import file_of
from tests.test_api import SMALL, expected, kernel_product, points

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def saved(tmp_path):
    exla.save(exla.compile(kernel_product, points(), memory_limit=SMALL), tmp_path / "plan.json", executable=True)
    return tmp_path / "plan.json"


def loaded_with(saved, function=kernel_product, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return exla.load(saved, function, points(), executable=True, **options)


def refused(saved, said, function=kernel_product, **options):
    with pytest.warns(exla.ExlaWarning, match=said):
        found = exla.load(saved, function, points(), executable=True, **options)
    assert found.plan.source == "plan"
    np.testing.assert_allclose(found(*points()), expected(*points()), rtol=1e-5, atol=1e-5)


LOAD = """
import sys
import jax
import numpy as np
import exla
from exla.targets.hlo_text import hlo_hash
from tests.test_api import expected, kernel_product, points

counts = dict.fromkeys(("hits", "misses"), 0)

def count(event, **_):
    counts[event.rpartition("cache_")[2]] = counts.get(event.rpartition("cache_")[2], 0) + 1

jax.monitoring.register_event_listener(count)
loaded = exla.load(sys.argv[1], kernel_product, points(), executable=True)
np.testing.assert_allclose(loaded(*points()), expected(*points()), rtol=1e-5, atol=1e-5)
print(loaded.plan.source, counts["hits"], counts["misses"], loaded.plan.compiled_bytes, hlo_hash(loaded.as_text()))
"""


def test_another_process_runs_what_was_compiled_and_counts_the_same(saved):
    environment = {**os.environ, "EXLA_RECORDS": "off"}
    command = [sys.executable, "-W", "error::exla.ExlaWarning", "-c", LOAD, str(saved)]
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr[-2000:]
    plan = json.loads(saved.read_text())
    source, hits, misses, counted, same = child.stdout.split()
    assert (source, int(hits), int(misses)) == ("executable", 1, 0)
    assert (int(counted), same) == (plan["compiled_bytes"], plan["hlo_hash"])


def test_an_untouched_program_is_kept_too(tmp_path):
    exla.save(exla.compile(kernel_product, points(), memory_limit="1GiB"), tmp_path / "plan.json", executable=True)
    loaded = loaded_with(tmp_path / "plan.json")
    assert loaded.plan.untouched and loaded.plan.source == "executable"
    plain = jax.jit(lambda *arguments: kernel_product(*arguments))
    np.testing.assert_array_equal(loaded(*points()), plain(*points()))


def test_only_who_asks_for_it_runs_it(saved):
    file_of(saved).write_bytes(b"anything")  # not even read
    loaded = exla.load(saved, kernel_product, points())
    assert loaded.plan.source == "plan"


def test_a_plan_with_an_executable_explains_itself(saved):
    assert "this was loaded from a plan with its executable" in str(loaded_with(saved).plan)


def test_an_executable_obeys_the_limit_of_the_one_who_loads(saved):
    with pytest.raises(exla.MemoryLimitError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exla.load(saved, kernel_product, points(), memory_limit="8KiB", executable=True)
    assert loaded_with(saved, memory_limit="1GiB").plan.source == "executable"


def _rewritten(saved, **changes):
    saved.write_text(json.dumps({**json.loads(saved.read_text()), **changes}))


def test_what_is_torn_missing_or_of_another_machine_is_compiled_anew_with_the_reason(saved):
    file, text = file_of(saved), saved.read_text()
    whole, origin = file.read_bytes(), json.loads(text)["origin"]
    file.write_bytes(whole[: len(whole) // 2])
    refused(saved, "not whole, or that of another plan")
    file.unlink()
    refused(saved, "No such file")
    file.write_bytes(whole)
    for part in ("device", "jaxlib", "xla_flags", "exla"):
        _rewritten(saved, origin={**origin, part: "another"})
        refused(saved, f"{part} is 'another' there")
    for nothing in (None, 7, {"key": "x"}):
        _rewritten(saved, origin=origin, executable=nothing)
        refused(saved, "saved without; exla.save")
    saved.write_text(text)
    assert loaded_with(saved).plan.source == "executable"


def test_bytes_that_are_no_executable_are_compiled_anew(saved):
    file_of(saved).write_bytes(b"junk")
    row = json.loads(saved.read_text())
    _rewritten(saved, executable={**row["executable"], "sha256": hashlib.sha256(b"junk").hexdigest()})
    with warnings.catch_warnings():  # JAX warns too
        warnings.simplefilter("ignore", UserWarning)
        refused(saved, "JAX lowers this function to another program")


def _scaled(factor, x):
    return x * factor


def test_a_function_with_another_constant_is_another_program(tmp_path):
    """Its equations are the same, and the constant is in the executable."""
    x = np.arange(8, dtype=np.float32)
    two, three = (functools.partial(_scaled, np.full(8, n, np.float32)) for n in (2, 3))
    exla.save(exla.compile(two, (x,), memory_limit="1MiB"), tmp_path / "plan.json", executable=True)
    with pytest.warns(exla.ExlaWarning, match="JAX lowers this function to another program"):
        loaded = exla.load(tmp_path / "plan.json", three, (x,), executable=True)
    np.testing.assert_array_equal(loaded(x), 3 * x)


def test_a_function_that_calls_back_is_kept_by_newer_jax_and_refused_by_older(tmp_path):
    heard = []

    def noisy(x):
        jax.debug.callback(lambda x: heard.append(float(x.sum())), x)
        return x + 1

    x, path = jnp.ones(3), tmp_path / "plan.json"
    compiled = exla.compile(noisy, (x,), memory_limit="1MiB")
    try:
        exla.save(compiled, path, executable=True)
    except exla.ExlaError as error:
        assert "calls back into Python" in str(error) and not list(tmp_path.glob("plan*"))
    else:
        loaded = exla.load(path, noisy, (x,), executable=True)
        np.testing.assert_array_equal(loaded(x), x + 1)
        jax.effects_barrier()
        assert heard == [3.0]


def test_jaxs_own_cache_is_what_it_was_afterwards(saved):
    from jax._src import compilation_cache, config

    assert compilation_cache._cache is None or "exla" not in type(compilation_cache._cache).__module__
    assert config.persistent_cache_min_compile_time_secs.value == 1.0
