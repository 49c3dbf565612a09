"""The CPU target: an honest count, a limit that the machine has, and a fingerprint that stays."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from benchmarks import isolate
from exla.ir.memory import Storing, project
from exla.ir.program import canonical
from exla.passes.decisions import CompileOption
from exla.scratch import product_bytes, sort_bytes
from exla.targets import cpu
from exla.targets.base import TARGETS, CompiledBytes
from exla.targets.cpu_scratch import scratch_bytes

HLO = """HloModule jit_f, is_scheduled=true

%inner.1 (p.0: f32[100,8], p.1: f32[50,8]) -> f32[100,50] {
  %p.0 = f32[100,8]{1,0} parameter(0)
  %p.1 = f32[50,8]{1,0} parameter(1)
  ROOT %dot.1 = f32[100,50]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}

%small.2 (p.2: bf16[10]) -> (bf16[10], pred[4]) {
  %p.2 = bf16[10]{0} parameter(0)
  ROOT %t = (bf16[10]{0}, pred[4]{0}) tuple(%p.2, %p.2)
}

ENTRY %main (a: f32[100,8], b: f32[50,8]) -> f32[100,50] {
  %a = f32[100,8]{1,0} parameter(0)
  %b = f32[50,8]{1,0} parameter(1)
  %f2 = (bf16[10]{0}, pred[4]{0}) fusion(%a), kind=kCustom, calls=%small.2, backend_config={"kind":"__ynn_fusion"}
  ROOT %f1 = f32[100,50]{1,0} fusion(%a, %b), kind=kCustom, calls=%inner.1, backend_config={"kind":"__ynn_fusion"}
}
"""


def test_a_library_fusion_is_counted_as_all_of_its_values_twice_and_a_lone_product_as_its_operands():
    assert scratch_bytes(HLO, threads=1) == 4 * (100 * 8 + 50 * 8)
    not_alone = HLO.replace("  ROOT %dot.1", "  %e = f32[100,8]{1,0} exponential(%p.0)\n  ROOT %dot.1")
    assert scratch_bytes(not_alone, threads=1) == 2 * 4 * (2 * 100 * 8 + 50 * 8 + 100 * 50)
    assert scratch_bytes(HLO.replace("__ynn_fusion", "__other").replace(" dot(", " add("), threads=2) == 0


IN_A_LOOP = """HloModule jit_f, is_scheduled=true

%fused (p.0: f32[64,64], p.1: f32[64,64]) -> f32[64,64] {
  %p.0 = f32[64,64]{1,0} parameter(0)
  %p.1 = f32[64,64]{1,0} parameter(1)
  ROOT %dot.0 = f32[64,64]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (s: (f32[64,64], f32[9,1000])) -> (f32[64,64], f32[9,1000]) {
  %s = (f32[64,64]{1,0}, f32[9,1000]{1,0}) parameter(0)
  %a = f32[64,64]{1,0} get-tuple-element(%s), index=0
  %b = f32[9,1000]{1,0} get-tuple-element(%s), index=1
  %f = f32[64,64]{1,0} fusion(%a, %a), kind=kLoop, calls=%fused, metadata={op_name="a dot(b) sort(c)"}
  %c = f32[9,1000]{1,0} sort(%b), dimensions={1}, is_stable=true, to_apply=%less
  ROOT %t = (f32[64,64]{1,0}, f32[9,1000]{1,0}) tuple(%f, %c)
}

ENTRY %main (x: (f32[64,64], f32[9,1000])) -> (f32[64,64], f32[9,1000]) {
  %x = (f32[64,64]{1,0}, f32[9,1000]{1,0}) parameter(0)
  ROOT %w = (f32[64,64]{1,0}, f32[9,1000]{1,0}) while(%x), condition=%less, body=%body
}
"""


def test_what_a_loop_calls_is_counted_and_what_is_fused_is_not():
    sorting = sort_bytes(length=1000, operands=1)
    assert sorting > 0 and scratch_bytes(IN_A_LOOP, threads=1) == sorting
    assert scratch_bytes(IN_A_LOOP.replace(" sort(%b)", " negate(%b)"), threads=1) == 0
    called = IN_A_LOOP.replace("fusion(%a, %a), kind=kLoop, calls=%fused", "dot(%a, %a), lhs_contracting_dims={1}")
    product = product_bytes(batch=1, rows=64, columns=64, depth=64, item_bytes=4, threads=1)
    assert scratch_bytes(called, threads=1) == max(product, sorting)


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_that_is_only_read_transposed_is_projected_as_xla_multiplies_it(turned):
    """The other way round, so that it packs the long side."""

    def product(a, b):
        made = jax.lax.dot_general(a, b, (((0,), (0,)), ((), ())), precision=jax.lax.Precision.HIGHEST)
        return jnp.sin(made.T if turned else made)

    structs = [jax.ShapeDtypeStruct(s, np.float32) for s in ((300, 900), (300, 8))]
    compiled = jax.jit(product, compiler_options=cpu.NO_YNN).lower(*structs).compile()
    storing = Storing(fused=True, threads=2)
    projected = project(canonical(jax.make_jaxpr(product)(*structs)), storing).library_bytes
    assert projected == scratch_bytes(compiled.as_text(), threads=2) > 0
    assert (projected > 4 * 900 * 300) == turned


@pytest.mark.parametrize("numbers", [((0,), (0,)), ((1,), (0,)), ((0,), (1,)), ((1,), (1,))], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_ynnpack_is_projected_to_multiply_where_xla_lets_it(numbers, turned):
    """Where the left matrix lies in rows; what is read transposed alone has the other one to its left."""

    def product(a, b):
        made = jax.lax.dot_general(jnp.sin(a), jnp.sin(b), (numbers, ((), ())))
        return jnp.sin(made.T if turned else made)

    shapes = [(200, 400) if axis == (0,) else (400, 200) for axis in numbers]
    structs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    compiled = jax.jit(product, compiler_options=cpu.YNN_PRODUCTS).lower(*structs).compile()
    storing = Storing(fused=True, threads=2, packs_once=True)
    is_ynn = "__ynn_fusion" in compiled.as_text()
    assert is_ynn == (numbers[turned] == (1,))
    projected = project(canonical(jax.make_jaxpr(product)(*structs)), storing).library_bytes
    assert projected == scratch_bytes(compiled.as_text(), threads=2)
    assert (projected == 2 * 4 * 400 * 200) == is_ynn


def distances(x, y, v):
    return jnp.sqrt(jnp.sum((x[:, None] - y[None]) ** 2, -1)) @ v


def test_the_count_of_a_program_that_leaves_memory_to_a_library_is_not_the_compilers_alone():
    structs = [jax.ShapeDtypeStruct(s, np.float32) for s in ((600, 3), (700, 3), (700,))]
    compiled = jax.jit(distances).lower(*structs).compile()
    counted = TARGETS.get("cpu").compiled_bytes(compiled)
    assert counted.arguments == 4 * (600 * 3 + 700 * 3 + 700) and counted.outputs == 4 * 600
    if "__ynn_fusion" in compiled.as_text():
        assert counted.total >= 4 * 600 * 700
    assert counted.total == counted.arguments + counted.outputs + counted.temporaries + counted.unaccounted


def grouped(x, k, groups):
    return jax.lax.conv_general_dilated(x, k, (1,) * (x.ndim - 2), "SAME", feature_group_count=groups)


def dilated(x, k):
    return jax.lax.conv_general_dilated(x, k, (1, 1), [(2, 1), (2, 1)], lhs_dilation=(2, 2))


SCRATCH = {
    "long dot": (lambda x, y: jnp.exp(x @ y).sum(), [(5000, 64), (64, 3125)]),
    "batched dot": (lambda x, y: x @ y, [(8, 64, 64), (8, 64, 8192)]),
    "wide dot": (lambda x, y: x @ y, [(256, 2304), (2304, 8192)]),
    "square dot": (lambda x, y: x @ y, [(2000, 2000), (2000, 2000)]),
    "argsort": (lambda x: jnp.argsort(x), [(2_000_000,)]),
    "sort": (lambda x: jnp.sort(x), [(4_000_000,)]),
    "fft": (lambda x: jnp.fft.fft(x), [(4_000_000,)]),
    "top_k": (lambda x: jax.lax.top_k(x, 10), [(5_000_000,)]),
    "convolution": (lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"), [(8, 32, 128, 128), (64, 32, 3, 3)]),
    "convolution of deep patches": (lambda x, k: grouped(x, k, 1), [(1, 32, 76, 76), (64, 32, 5, 5)]),
    "convolution of a dilated image": (dilated, [(16, 1, 32, 32), (128, 1, 3, 3)]),
    "convolution of a dilated image as large as the window": (dilated, [(8, 16, 64, 64), (12, 16, 128, 128)]),
    "convolution of each channel": (lambda x, k: grouped(x, k, 32), [(4, 32, 128, 128), (32, 1, 3, 3)]),
    "convolution of each channel in a loop": (
        lambda x, k: jax.lax.map(lambda image: grouped(image, k, 32), x),
        [(4, 1, 32, 128, 128), (32, 1, 3, 3)],
    ),
    "convolution in groups": (lambda x, k: grouped(x, k, 2), [(8, 32, 128, 128), (64, 16, 3, 3)]),
    "convolution of volumes": (lambda x, k: grouped(x, k, 1), [(8, 16, 32, 32, 32), (32, 16, 3, 3, 3)]),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.T + 1500 * jnp.eye(len(x))), [(1500, 1500)]),
}


SMALL = {
    "convolution of deep patches": [(1, 32, 9, 9), (64, 32, 5, 5)],
    "convolution of a dilated image": [(1, 1, 9, 9), (128, 1, 3, 3)],
    "convolution of a dilated image as large as the window": [(1, 1, 9, 9), (4, 1, 18, 18)],
}
"""What is run before, where it has to be smaller than 64 along an axis to leave something to grow by."""

PRODUCTS = ("long dot", "batched dot", "wide dot", "square dot", "convolution", "cholesky")
"""The others are compiled to the same program under both options."""
CASES = {"NO_YNN": tuple(SCRATCH), "YNN_PRODUCTS": PRODUCTS}


@pytest.mark.parametrize("option", CASES)
def test_no_process_grows_beyond_what_is_counted(option):
    """In a fresh process, for each kind of operation that a library runs."""
    calls = [{"name": name, "option": option} for name in CASES[option]]
    found = dict(zip(CASES[option], isolate.call_each(f"{__name__}:grow", calls), strict=True))
    beyond = {n: f for n, f in found.items() if f["growth_bytes"] > f["counted_bytes"] + 8 * isolate.MIB}
    assert not beyond


def grow(name, option):
    """Growth of this process while one program runs, and what is counted for its outputs, temporaries and scratch."""
    fn, shapes = SCRATCH[name]
    options = getattr(cpu, option)

    def drawn(shapes):
        return [jax.device_put(np.random.default_rng(0).standard_normal(s, dtype=np.float32)) for s in shapes]

    # The library's code and its threads' stacks are no scratch: 9 MiB of a process that convolves for the first time.
    small = drawn(SMALL.get(name, [tuple(min(d, 64) for d in s) for s in shapes]))
    jax.block_until_ready(jax.jit(fn).lower(*small).compile(compiler_options=dict(options))(*small))
    args = drawn(shapes)
    compiled = jax.jit(fn).lower(*args).compile(compiler_options=dict(options))
    counted = TARGETS.get("cpu").compiled_bytes(compiled)
    jax.block_until_ready(args)
    _, grown = isolate.growth(lambda: compiled(*args))
    return {
        "growth_bytes": grown.growth_bytes,
        "counted_bytes": counted.total - counted.arguments,
        "unaccounted_bytes": counted.unaccounted,
    }


def test_split_programs_are_compiled_without_such_fusions():
    import exla

    structs = [jax.ShapeDtypeStruct(s, np.float32) for s in ((600, 3), (700, 3), (700,))]
    plan = exla.jit(distances, memory_limit="200KiB").plan(*structs)
    assert "__ynn_fusion" not in plan.compiled.as_text()


def test_aliased_bytes_are_counted_once():
    assert CompiledBytes(arguments=10, outputs=8, temporaries=3, aliased=8, unaccounted=1).total == 14


def test_the_limit_is_the_least_of_the_machine_and_its_control_groups(monkeypatch):
    target = TARGETS.get("cpu")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < target.usable_bytes() <= memory
    monkeypatch.setattr(cpu, "cgroup_bytes", lambda: [7_000_000, 9_000_000])
    assert target.usable_bytes() == 7_000_000
    monkeypatch.setattr(cpu, "cgroup_bytes", lambda: [])
    monkeypatch.setattr(cpu, "available_bytes", lambda: 5_000_000)
    assert target.usable_bytes() == 5_000_000


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_leaves_its_limit_less_what_is_used_but_for_the_page_cache(tmp_path, monkeypatch, version):
    root = tmp_path / ("memory" if version == 1 else "")
    group = root / "batch" / "job"
    group.mkdir(parents=True)
    limit, used = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    )
    (group / limit).write_text("1000\n")
    (group / used).write_text("600\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 100\n")
    (group.parent / limit).write_text("max\n" if version == 2 else "10000\n")
    (group.parent / used).write_text("700\n")
    (group.parent / "memory.stat").write_text("inactive_file 0\n")
    groups = tmp_path / "cgroup"
    groups.write_text("4:memory:/batch/job\n" if version == 1 else "0::/batch/job\n")
    monkeypatch.setattr(cpu, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(cpu, "CGROUP_FILE", groups)
    assert min(cpu.cgroup_bytes()) == 500


def exponential(x, y, v):
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, -1)) @ v


def polynomial(x, y, v):
    return jnp.square(1 + jnp.sum((x[:, None] - y[None]) ** 2, -1)) @ v


def sines(x, y, v):
    distances = jnp.sum((x[:, None] - y[None]) ** 2, -1)
    return (jnp.exp(-distances) * jnp.sin(distances) * jnp.cos(distances)) @ v


@pytest.mark.parametrize(
    ("fn", "flags", "numerics", "expected"),
    [
        (exponential, "fma avx2 avx512f avx512dq", "reassociate", "512"),
        (exponential, "fma avx2", "reassociate", None),
        (exponential, "fma avx2 avx512f avx512dq", "exact", None),
        (polynomial, "fma avx2 avx512f avx512dq", "reassociate", None),
        (sines, "fma avx2 avx512f avx512dq", "reassociate", None),
    ],
)
def test_wide_vectors_are_asked_for_where_they_pay(monkeypatch, tmp_path, fn, flags, numerics, expected):
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nvendor_id\t: some\nflags\t\t: fpu {flags}\nbugs\t\t: avx512f\n\n" * 2)
    monkeypatch.setattr(cpu, "CPU_INFO", info)
    cpu.has_wide_vectors.cache_clear()
    structs = [jax.ShapeDtypeStruct(s, np.float32) for s in ((2000, 8), (2000, 8), (2000,))]
    try:
        plan = exla.jit(fn, memory_limit="2MiB", numerics=numerics).plan(*structs)
    finally:
        monkeypatch.undo()
        cpu.has_wide_vectors.cache_clear()
    options = {d.name: d.value for d in plan.decisions if isinstance(d, CompileOption)}
    assert options.get("xla_cpu_prefer_vector_width") == expected and cpu.YNN_OPTION in options


def test_a_plan_for_wide_vectors_is_replayed_where_there_are_none(monkeypatch, tmp_path):
    structs = [jax.ShapeDtypeStruct(s, np.float32) for s in ((2000, 8), (2000, 8), (2000,))]
    monkeypatch.setattr(cpu, "has_wide_vectors", lambda: True)
    exla.save(exla.compile(exponential, structs, memory_limit="2MiB"), tmp_path / "plan.json")
    monkeypatch.setattr(cpu, "has_wide_vectors", lambda: False)
    loaded = exla.load(tmp_path / "plan.json", exponential, structs)
    assert CompileOption(name="xla_cpu_prefer_vector_width", value="512") in loaded.plan.decisions


def test_no_vectors_are_known_where_the_system_does_not_say(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "CPU_INFO", tmp_path / "none")
    assert cpu.has_wide_vectors.__wrapped__() is False


@pytest.mark.parametrize(
    ("said", "is_fast"), [("[always] madvise never", True), ("always [madvise] never", False), (None, False)]
)
def test_huge_pages_are_handed_out_faster(monkeypatch, tmp_path, said, is_fast):
    if said is not None:
        (tmp_path / "enabled").write_text(said)
    monkeypatch.setattr(cpu, "HUGE_PAGES", tmp_path / "enabled")
    cpu.has_huge_pages.cache_clear()
    machine = cpu.Cpu().machine()
    cpu.has_huge_pages.cache_clear()
    assert machine.first_touch_bytes_per_s == (cpu.HUGE_PAGES_BYTES_PER_S if is_fast else cpu.SMALL_PAGES_BYTES_PER_S)
    assert machine.touching_s(machine.kept_bytes) == 0 < machine.touching_s(machine.kept_bytes + 1)
