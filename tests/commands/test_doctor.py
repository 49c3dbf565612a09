"""`exla doctor`: each check on machines that are well and on machines that are not."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib

import filelock
import pytest
from packaging.requirements import Requirement

from exla.commands import doctor
from exla.doctor import devices, environment, examine, installed, machine
from exla.doctor.finding import NOTE, OK, PROBLEM, Finding
from exla.doctor.records import tuning_records
from exla.search.records import RecordStore


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in environment.CHANGES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("JAX_DISABLE_JIT", raising=False)


def by_name(findings):
    return {f.name: f for f in findings}


@pytest.mark.parametrize(
    "variable, value, status, said",
    [
        ("EXLA_MEMORY_LIMIT", "512MiB", OK, "512MiB"),
        ("EXLA_MEMORY_LIMT", "512MiB", PROBLEM, "did you mean EXLA_MEMORY_LIMIT?"),
        ("EXLA_MEMORY_LIMIT", "512Mib", OK, "512Mib"),
        ("EXLA_MEMORY_LIMIT", "much", PROBLEM, "is not a size"),
        ("EXLA_SEARCH", "heuristics", PROBLEM, "did you mean 'heuristic'?"),
        ("EXLA_TARGET", "tpu:v5", PROBLEM, "did you mean 'tpu:v5"),
        ("EXLA_RULES", "softmax_by_hand", OK, "softmax_by_hand"),
        ("EXLA_WEIGHTS", "nowhere", PROBLEM, "nowhere: no folder with weights"),
        ("EXLA_RULES", "softmax", PROBLEM, "no replace rule named 'softmax'"),
        ("EXLA_RECORDS_DIR", "anywhere", OK, "anywhere"),
    ],
)
def test_variables_of_exla_are_looked_at_one_by_one(variable, value, status, said, monkeypatch):
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("EXLA_NUMERICS", "wrong")  # one that is wrong hides no other
    found = by_name(environment.exla_variables())
    assert found[variable].status == status and said in found[variable].found
    assert found["EXLA_NUMERICS"].status == PROBLEM and "unset EXLA_NUMERICS" in found["EXLA_NUMERICS"].next_step


def test_variables_that_change_jax_are_notes_and_no_jit_is_a_problem(monkeypatch):
    assert environment.other_variables() == []
    for name in environment.CHANGES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("JAX_DISABLE_JIT", "true")
    found = by_name(environment.other_variables())
    assert all(found[name].status == NOTE and found[name].found.startswith("1: ") for name in environment.CHANGES)
    assert found["JAX_DISABLE_JIT"].status == PROBLEM
    monkeypatch.setenv("JAX_DISABLE_JIT", "0")
    assert "JAX_DISABLE_JIT" not in by_name(environment.other_variables())


def test_every_extra_of_the_distribution_is_explained():
    project = tomllib.loads(installed.PYPROJECT.read_text())["project"]
    assert set(installed.EXTRAS) == set(project["optional-dependencies"])
    assert [f.name for f in installed.extras()] == [f"extra {name}" for name in project["optional-dependencies"]]


def test_what_is_installed_here_fits():
    found = by_name([*installed.versions(), *installed.requirements()])
    assert {f.status for f in found.values()} == {OK} and "jaxlib" in found["JAX"].found


@pytest.fixture
def declares(tmp_path, monkeypatch):
    """Let exla declare other requirements."""

    def declare(dependencies=(), python=">=3.11", **extras):
        optional = "".join(f"{name} = {json.dumps(needed)}\n" for name, needed in extras.items())
        (tmp_path / "pyproject.toml").write_text(
            f'[project]\nname = "exla"\nrequires-python = "{python}"\ndependencies = {json.dumps([*dependencies])}\n'
            f"[project.optional-dependencies]\n{optional}"
        )
        monkeypatch.setattr(installed, "PYPROJECT", tmp_path / "pyproject.toml")

    return declare


def test_a_requirement_that_is_missing_or_does_not_fit_is_a_problem(declares):
    declares(["jax>=99", "numpy", "no-such-package>=2"])
    (found,) = installed.requirements()
    assert found.status == PROBLEM and "no-such-package>=2 is not installed" in found.found
    assert f"jax {importlib.metadata.version('jax')} is installed, and >=99 is needed" in found.found
    assert found.next_step == 'pip install --upgrade "jax>=99" "no-such-package>=2"'


def test_an_unsupported_python_is_a_problem(declares):
    declares(python=">=3.99")
    assert by_name(installed.versions())["Python"].status == PROBLEM


def test_an_extra_that_is_missing_is_a_note_and_one_that_does_not_fit_a_problem(declares):
    declares(absent=["no-such-package"], unfit=["numpy>=99"], there=["numpy"], deeper=["pytest[dev]", "numpy"])
    found = by_name(installed.extras())
    assert found["extra absent"].status == NOTE and found["extra absent"].next_step == 'pip install "exla[absent]"'
    assert found["extra unfit"].status == PROBLEM and ">=99 is needed" in found["extra unfit"].found
    assert found["extra there"].status == OK


def test_extras_of_requirements_are_followed(monkeypatch):
    texts = {"jax": ["jaxlib", "plugin-of-jax>=2; extra == 'tpu'", "unasked; extra == 'cuda'"]}
    monkeypatch.setattr(installed, "_requires", lambda name: texts.get(name, ()))
    absent, unfit = installed._amiss([Requirement("jax[tpu]")])
    assert [str(r) for r in absent] == ["plugin-of-jax>=2"] and unfit == []


def test_an_installed_distribution_is_read_where_there_is_no_source(tmp_path, monkeypatch):
    folder = tmp_path / "exla-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: exla\nVersion: 9.9\nRequires-Python: >=3.11\nProvides-Extra: more\n"
        'Requires-Dist: numpy\nRequires-Dist: no-such-package; extra == "more"\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "somebody-elses"\n')
    monkeypatch.setattr(installed, "PYPROJECT", tmp_path / "pyproject.toml")
    assert installed.requirements()[0].status == OK
    (extra,) = installed.extras()
    assert extra.name == "extra more" and "no-such-package" in extra.found


def test_memory_and_cores_say_what_limits_them(monkeypatch):
    monkeypatch.setattr("exla.targets.cpu.available_bytes", lambda: 8 << 30)
    monkeypatch.setattr("exla.targets.cpu.cgroup_bytes", lambda: [3 << 30, 5 << 30])
    found = by_name(machine.memory())
    assert found["memory"].found.startswith("3,072.0 MiB") and found["control group"].status == NOTE
    monkeypatch.setattr("exla.targets.cpu.cgroup_bytes", list)
    assert list(by_name(machine.memory())) == ["memory"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert machine.cores()[0].status == NOTE and "1 of 4" in machine.cores()[0].found


def test_records_are_counted_and_what_is_none_is_told():
    assert "none yet" in tuning_records()[0].found
    store = RecordStore(None)
    store.directory.mkdir(parents=True)
    path = store.directory / "00.jsonl"
    path.write_bytes(b"no record\n{")
    found = by_name(tuning_records())
    assert found["records"].status == OK and str(store.directory) in found["records"].found
    assert "1 lines" in found["bad records"].found and "cut off" in found["bad records"].found
    with filelock.FileLock(f"{path}.lock"):
        assert "records lock" in by_name(tuning_records())
    assert "records lock" not in by_name(tuning_records())


@pytest.mark.parametrize("use, status", [("append", PROBLEM), ("off", NOTE)])
def test_a_folder_for_records_that_cannot_be_written_is_a_problem(use, status, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXLA_RECORDS_DIR", str(tmp_path / "file" / "records"))
    monkeypatch.setenv("EXLA_RECORDS", use)
    (found,) = tuning_records()
    assert found.status == status and "is no folder" in found.found


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no folder that takes no file of root's either")
def test_a_folder_is_tried_by_writing_a_file_as_root_may_do_all_by_its_permissions(tmp_path, monkeypatch):
    monkeypatch.setenv("EXLA_RECORDS_DIR", "/proc/records")
    (found,) = tuning_records()
    assert found.status == PROBLEM and "/proc/records cannot be written: no file can be made in /proc (" in found.found
    monkeypatch.setenv("EXLA_RECORDS_DIR", str(tmp_path / "deep" / "records"))
    assert tuning_records()[0].status == OK
    assert "deep" not in os.listdir(tmp_path) and not [n for n in os.listdir(tmp_path) if n.startswith(".exla-")]


@pytest.mark.parametrize(
    "code, why",
    [
        ("import time; time.sleep(60)", "no answer in 1 s"),
        ("import os; os.abort()", "the process died of signal 6"),
        ("raise ImportError('undefined symbol')", "ImportError: undefined symbol"),
        ("import sys; sys.exit(3)", "exit code 3"),
    ],
)
def test_what_hangs_or_crashes_takes_no_doctor_down(code, why):
    assert devices.attempt(code, environment={}, timeout_s=1 if "sleep" in code else 30) == (None, why)


def test_what_answers_is_read_after_what_it_prints():
    found, why = devices.attempt("import sys; print('noise'); print([sys.argv[1]].__len__())", "x", environment={})
    assert (found, why) == (1, "")


def test_the_default_device_computes():
    found = by_name(devices.default_device())
    assert found["default device"].found == "cpu (cpu)" and "off" in found["x64"].found


@pytest.mark.parametrize("answer, status", [(({"bytes": 9}, ""), OK), ((None, "no answer in 120 s"), PROBLEM)])
def test_compilers_are_tried_where_they_are_installed(answer, status, monkeypatch):
    asked = {}
    monkeypatch.setattr("exla.targets.accelerator.Accelerator.install", lambda self: None)
    monkeypatch.setattr(
        devices, "attempt", lambda code, target, environment: asked.update({target: environment}) or answer
    )
    found = devices.compilers()
    assert [f.status for f in found] == [status] * 2 and answer[1] in found[0].found
    assert set(asked) == set(devices.COMPILERS) and not [k for k in asked["tpu:v5e"] if k.startswith("EXLA_")]


def test_compilers_that_are_not_installed_are_a_note(monkeypatch):
    monkeypatch.setattr("exla.targets.accelerator.Accelerator.install", lambda self: '"exla[compilers]"')
    found = devices.compilers()
    assert {(f.status, f.next_step) for f in found} == {(NOTE, 'pip install "exla[compilers]"')}


def test_a_check_that_fails_is_a_finding_and_the_others_go_on():
    def broken_check():
        yield Finding(name="before", status=OK, found="")
        raise ImportError("no such symbol")

    before, failed, after = examine.examine([broken_check, lambda: [Finding(name="after", status=OK, found="")]])
    assert failed.status == PROBLEM and failed.name == "broken check" and "no such symbol" in failed.found
    assert (before.name, after.name) == ("before", "after")


@pytest.fixture
def checks(monkeypatch):
    """All checks but those that start processes."""
    quick = [c for c in examine.CHECKS if c.__module__ != devices.__name__]
    assert len(quick) == len(examine.CHECKS) - 2
    monkeypatch.setattr(doctor, "examine", lambda: examine.examine(quick))


@pytest.mark.usefixtures("checks")
def test_exit_code_0_where_all_is_well_and_1_with_a_bad_variable(exla_command, exla_json, monkeypatch):
    code, out, _ = exla_command("doctor")
    assert code == 0 and "PROBLEM" not in out and "0 problem" in out
    monkeypatch.setenv("EXLA_SEARCH", "[bold]wrong")
    code, out, _ = exla_command("doctor")
    assert code == 1 and "PROBLEM  EXLA_SEARCH" in out and "[bold]wrong" in out and "-> correct it" in out
    code, (found,) = exla_json("doctor")
    assert code == 1 and not found["ok"]
    assert [f["name"] for f in found["findings"] if f["status"] == PROBLEM] == ["EXLA_SEARCH"]
    assert all(set(f) == {"name", "status", "found", "next_step"} for f in found["findings"])


def test_a_broken_jax_is_told_and_does_not_end_the_doctor(folder):
    (folder / "jax.py").write_text("raise ImportError('jaxlib is too old')\n")
    path = os.pathsep.join([str(folder), *(p for p in sys.path if p)])
    command = [sys.executable, "-m", "exla.cli", "doctor", "--json"]
    child = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    found = by_name([Finding(**f) for f in json.loads(child.stdout)["findings"]])
    assert child.returncode == 1 and found["default device"].found.endswith("ImportError: jaxlib is too old")
    assert found["versions"].status == PROBLEM and found["requirements"].status == OK


@pytest.mark.parametrize(
    ("name", "said"),
    [("cpu.npz", "cpu.npz"), ("my_model.npz", "no target is called my_model; there are .*tpu-v5e")],
)
def test_weights_that_are_not_used_are_a_problem(tmp_path, monkeypatch, name, said):
    (tmp_path / name).write_text("no weights")
    monkeypatch.setenv("EXLA_WEIGHTS", str(tmp_path))
    found = by_name(environment.exla_variables())["EXLA_WEIGHTS"]
    assert found.status == PROBLEM and re.search(said, found.found)
