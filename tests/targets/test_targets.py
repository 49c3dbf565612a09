"""Every target, by its registry: what it says of itself, and that a limit is never more than the device has."""

import json
import re
import subprocess
import sys
from dataclasses import asdict, replace

import jax
import pytest

import exla
from exla.cli import main
from exla.errors import ExlaError
from exla.options import Options
from exla.search.driver import limit_of
from exla.targets import accelerator
from exla.targets.accelerator import Accelerator
from exla.targets.base import TARGETS, CompiledBytes, find_target
from exla.targets.facts import Facts, sheet_of, sheets
from exla.targets.gpu import describe
from exla.targets.machine import Machine

NAMED = [name for name in TARGETS if ":" in name]
GENERIC = ("gpu", "tpu")


def test_every_target_that_users_were_promised_is_there():
    cards = ("v100", "a100-40", "a100-80", "l4", "h100", "h200", "b200")
    generations = ("v4", "v5e", "v5p", "v6e")
    assert set(TARGETS) == {"cpu", *GENERIC, *(f"gpu:{c}" for c in cards), *(f"tpu:{g}" for g in generations)}


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in GENERIC])
def test_every_target_says_what_it_has(name):
    target = TARGETS.get(name)
    assert target.name == name and target.usable_bytes() > 1 << 30
    machine = target.machine()
    assert all(value is None or value >= 0 for value in asdict(machine).values()) and machine.flops > machine.elements
    assert machine.bytes_per_s < machine.cached_bytes_per_s and machine.cache_bytes >= 1 << 19
    if name == "cpu" or target.install() is None:
        assert {"target", "device", "jax", "jaxlib", "xla_flags"} <= set(target.fingerprint())
        assert target.fingerprint() == target.fingerprint()


@pytest.mark.parametrize("name", ["cpu", *NAMED])
def test_no_limit_is_more_than_the_device_has(name):
    target = TARGETS.get(name)
    assert limit_of(Options(memory_limit=1 << 50), target) <= target.usable_bytes() + (1 << 30)  # a CPU's may change
    assert limit_of(Options(memory_limit=12345), target) == 12345


def test_a_refusal_for_what_the_device_has_is_not_for_ever(monkeypatch):
    f = exla.jit(lambda x: jax.numpy.sort(x * 2), memory_limit="1GiB")
    with monkeypatch.context() as small:
        small.setattr(type(TARGETS.get("cpu")), "usable_bytes", lambda self: 100)
        with pytest.raises(exla.MemoryLimitError, match="100 bytes"):
            f.plan(jax.ShapeDtypeStruct((1000,), "float32"))
    assert f.plan(jax.ShapeDtypeStruct((1000,), "float32")).untouched


def test_the_default_target_is_that_of_the_default_device():
    assert find_target(None).name == {"cuda": "gpu"}.get(jax.default_backend(), jax.default_backend())


def test_a_data_sheet_is_checked_when_it_is_read():
    (sheet,) = [s for s in sheets("gpu") if s.name == "gpu:h200"]
    row = json.loads(json.dumps(asdict(sheet)))
    assert Facts.read(json.dumps(row), "a sheet") == sheet
    for wrong in (
        {**row, "memory_bytes": "80GB"},
        {**row, "memory_bytes": 0},
        {**row, "bytes_per_s": True},
        {**row, "kinds": "NVIDIA"},
        {**row, "colour": "green"},
        {k: v for k, v in row.items() if k != "sources"},
        [row],
    ):
        with pytest.raises(ValueError, match="a sheet is no data sheet"):
            Facts.read(json.dumps(wrong), "a sheet")
    assert all(s.sources for platform in ("gpu", "tpu") for s in sheets(platform))


def test_an_attached_device_is_known_by_the_longest_beginning_of_its_kind():
    everything = [*sheets("gpu"), *sheets("tpu")]
    known = {
        "TPU v5 lite": "tpu:v5e",
        "TPU v5": "tpu:v5p",
        "TPU v5p": "tpu:v5p",
        "TPU v6 lite": "tpu:v6e",
        "TPU v4": "tpu:v4",
        "NVIDIA H200": "gpu:h200",
        "NVIDIA H100 80GB HBM3": "gpu:h100",
        "NVIDIA A100-SXM4-80GB": "gpu:a100-80",
        "NVIDIA A100-SXM4-40GB": "gpu:a100-40",
        "Tesla V100-SXM2-16GB": "gpu:v100",
        "NVIDIA L4": "gpu:l4",
        "NVIDIA B200": "gpu:b200",
    }
    for kind, name in known.items():
        assert sheet_of(kind, everything).name == name
    assert sheet_of("TPU v9", [s for s in everything if s.name != "tpu:v5p"]) is None


class FakeDevice:
    platform = "gpu"
    device_kind = "NVIDIA H200"

    def memory_stats(self):
        return {"bytes_limit": 123 << 30}


def test_an_attached_device_is_used_and_says_what_it_has(monkeypatch):
    device = FakeDevice()
    monkeypatch.setattr(accelerator, "_attached", lambda platform: [device] if platform == "cuda" else [])
    for name in ("gpu", "gpu:h200"):
        target = TARGETS.get(name)
        assert target.attached() and target.device() is device and target.usable_bytes() == 123 << 30
        assert target.facts.name == "gpu:h200" and target.fingerprint()["device"] == "NVIDIA H200"
    assert not TARGETS.get("gpu:a100-80").attached() and not TARGETS.get("tpu:v5e").attached()
    device.device_kind = "NVIDIA Something New"
    unknown = TARGETS.get("gpu")
    assert unknown.facts.name == "gpu" and unknown.facts.kinds == ("NVIDIA Something New",)
    assert unknown.facts.memory_bytes == unknown.usable_bytes() == 123 << 30 and unknown.machine().flops > 0


@pytest.mark.parametrize(
    ("trace", "is_compiled"), [("gpu/autotuning/redzone_buffers.cc:107", True), ("service/gpu/buffers.cc:3", False)]
)
def test_what_the_autotuner_has_no_room_for_is_compiled_without_it(trace, is_compiled, monkeypatch):
    """As on an H100 that other processes had filled."""
    asked = []

    class Lowered:
        def compile(self, compiler_options):
            asked.append(compiler_options)
            if (compiler_options or {}).get("xla_gpu_autotune_level") != "0":
                raise jax.errors.JaxRuntimeError(
                    "Autotuning failed for fusion. Status: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
                    f"16.08MiB with allocator GPU_0_bfc on device 0.\nexternal/xla+/xla/service/{trace}"
                )
            return "compiled"

    monkeypatch.setattr(accelerator, "_attached", lambda platform: [FakeDevice()] if platform == "cuda" else [])
    if is_compiled:
        assert TARGETS.get("gpu").finish(Lowered(), {"of": "mine"}) == "compiled"
        assert asked == [{"of": "mine"}, {"xla_gpu_autotune_level": "0", "of": "mine"}]
        with pytest.raises(jax.errors.JaxRuntimeError, match="redzone"):
            TARGETS.get("gpu").finish(Lowered(), {"xla_gpu_autotune_level": "4"})
    else:
        with pytest.raises(jax.errors.JaxRuntimeError, match="buffers"):
            TARGETS.get("gpu").finish(Lowered(), {})


def test_without_the_device_a_gpu_offers_what_jax_takes_of_it(monkeypatch):
    target = TARGETS.get("gpu:a100-40")
    monkeypatch.setattr(accelerator, "_attached", lambda platform: [])
    assert target.usable_bytes() == int(0.75 * 42331013120)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.5")
    assert target.usable_bytes() == int(0.5 * 42331013120)


@pytest.mark.parametrize(
    ("said", "needed"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (149.08G) "
            "exceeds available HBM (15.75G).",
            int(149.08 * 2**30),
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 38.02G "
            "of 15.75G hbm. Exceeded hbm capacity by 22.27G.",
            int(38.02 * 2**30),
        ),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 1024 bytes.", 1024),
        ("INVALID_ARGUMENT: used 3G of something", None),
    ],
)
def test_what_a_compiler_says_of_memory_is_read(said, needed):
    assert TARGETS.get("tpu:v5e").needed_bytes(RuntimeError(said)) == needed


def test_a_refusal_without_an_amount_is_more_than_the_device_has():
    target = TARGETS.get("tpu:v5e")
    assert target.needed_bytes(RuntimeError("RESOURCE_EXHAUSTED: no")) == target.usable_bytes() + 1


def test_code_counts_where_it_lies_in_the_devices_memory():
    assert CompiledBytes(arguments=10, outputs=8, temporaries=3, aliased=8, unaccounted=0, code=5).total == 18


def test_a_description_of_a_card_says_what_its_sheet_says():
    (sheet,) = [s for s in sheets("gpu") if s.name == "gpu:h200"]
    text = describe(sheet)
    for part in ("core_count: 132", "l2_cache_size: 52428800", "device_memory_size: 151397597184", "major: 9 minor: 0"):
        assert part in text
    smaller = describe(replace(sheet, compiler={**sheet.compiler, "multiprocessors": 7}))
    assert "core_count: 7" in smaller


def test_what_is_neither_attached_nor_installed_says_what_to_install(monkeypatch):
    monkeypatch.setattr(accelerator, "_attached", lambda platform: [])
    nothing = replace(TARGETS.get("tpu:v5e").compiler, installed=lambda facts: False)
    target = Accelerator("tpu:v5e", "tpu", nothing, next(s for s in sheets("tpu") if s.name == "tpu:v5e"), ())
    with pytest.raises(ExlaError, match=re.escape('pip install "exla[compilers]"')):
        target.device()
    with pytest.raises(ExlaError, match="gpu:a100-40.*gpu:h200"):
        TARGETS.get("gpu").device()


def test_a_machine_of_a_sheet_has_whole_tiles_and_no_window():
    machine = TARGETS.get("tpu:v6e").machine()
    assert machine.lanes == 128 == machine.matrix_tile and machine.longest_fused_reduction is None
    assert Machine().lanes == 8 and Machine().longest_fused_reduction == 32


def test_the_command_lists_them_all(capsys):
    assert main(["targets", "--json"]) == 0
    rows = {row["target"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert set(rows) == set(TARGETS)
    assert rows["cpu"]["attached"] and rows["gpu:h200"]["usable_bytes"] > 100e9
    assert rows["tpu:v5e"]["bytes_per_s"] == 819e9
    assert rows["tpu:v4"]["part"] and rows["tpu:v5e"]["part"] is None is rows["cpu"]["memory_bytes"]
    assert rows["gpu:h200"]["memory_bytes"] > rows["gpu:h200"]["usable_bytes"]


@pytest.mark.parametrize(("share", "said"), [("", "75%"), ("0.9", "90%"), ("1", "")])
def test_the_list_says_what_its_numbers_are_of(share, said, capsys, monkeypatch):
    monkeypatch.setattr(accelerator, "_attached", lambda platform: [])
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", share)
    assert main(["targets"]) == 0
    table, _, below = capsys.readouterr().out.partition("memory: what a program may use")
    assert "tpu:v6e" in table and "tpu:v4: one of a chip's two cores" in below and "tpu:v5e" not in below
    assert f"of a GPU the {said} of it that JAX's allocator takes" in below if said else "of a GPU" not in below


def test_the_fingerprint_is_the_same_in_another_process():
    code = "from exla.targets.base import TARGETS; print(dict(TARGETS.get('cpu').fingerprint()))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert other.stdout.strip() == str(dict(TARGETS.get("cpu").fingerprint()))


def test_nothing_runs_on_what_is_not_attached(monkeypatch):
    monkeypatch.setattr(accelerator, "_attached", lambda platform: [])
    with pytest.raises(ExlaError, match="not attached, so that nothing can run"):
        exla.jit(lambda x: x, target="gpu:h200")(1.0)
    with pytest.raises(ExlaError, match="is the attached device, and none is; to compile without: gpu:a100-40"):
        exla.jit(lambda x: x, target="gpu")(1.0)


@pytest.mark.parametrize(("name", "times"), [("tpu:v5e", 1.4), ("tpu:v6e", 1.2), ("gpu:h200", 1.0), ("cpu", 1.0)])
def test_instructions_of_tpus_have_room_for_so_much(name, times):
    machine = TARGETS.get(name).machine()
    assert machine.crowding(32 << 20) == pytest.approx(times) and machine.crowding(1 << 20) == 1
