"""What the prediction knows of how a CPU's compiler adds numbers up, and what it starts as kernels."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

import exla
from exla.ir.program import canonical
from exla.passes.decisions import Split
from exla.search.cost import predict_s, predict_with_memory_s, projected
from exla.targets.base import find_target
from exla.targets.machine import Machine


def seconds(*shape):
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    return predict_s(canonical(jax.make_jaxpr(lambda x: jnp.sum(jnp.square(x), axis=-1))(x), "cpu"), Machine())


@pytest.mark.parametrize(("length", "is_faster"), [(3, False), (8, False), (16, True), (32, True), (64, False)])
def test_eight_sums_of_some_length_are_added_as_vectors(length, is_faster):
    ratio = seconds(100_000, 8, length) / seconds(50_000, 16, length)
    assert ratio == pytest.approx(Machine().one_vector if is_faster else 1.0, rel=0.02)


@pytest.mark.parametrize(("length", "is_faster"), [(32, False), (8 * 97, True), (997, False)])
def test_a_reduction_in_blocks_has_a_price_of_its_own(length, is_faster):
    """Short ones are not written in blocks, nor are those of a prime length."""
    program = canonical(jax.make_jaxpr(lambda x: jnp.sum(x + 1, axis=-1))(jnp.ones((100, length))), "cpu")
    chained, blocked = (predict_s(program, Machine(blocks=blocks)) for blocks in (False, True))
    assert (blocked < chained) == is_faster and blocked <= chained


def predicted(fn, *shapes, machine=None):
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    return predict_s(canonical(jax.make_jaxpr(fn)(*arguments), "cpu"), machine or Machine())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32])
def test_cpus_select_from_float32_alone_and_sort_the_rest(dtype):
    def top(x):
        return jax.lax.top_k(x, 5)

    def ordered(x):
        return jnp.sort(x, axis=1)

    shape = (500, 2000)
    assert predicted(top, (shape, jnp.float32)) < predicted(ordered, (shape, jnp.float32)) / 5
    assert predicted(top, (shape, dtype)) >= predicted(ordered, (shape, dtype)) / 2
    gpu = Machine(select_row_s=0.0, threads=0)
    assert predicted(top, (shape, dtype), machine=gpu) == predicted(top, (shape, jnp.float32), machine=gpu)


def test_a_gpu_idles_where_a_top_k_has_fewer_rows_than_it_has_multiprocessors():
    """Many chunks of few rows are no way to rank; merging more columns is."""
    gpu = find_target("gpu:h100").machine()

    def top(x):
        return jax.lax.top_k(x, 5)

    few, many = (predicted(top, ((rows, 100_000), jnp.float32), machine=gpu) for rows in (4, 132))
    assert few == pytest.approx(many, rel=0.2)
    assert predicted(top, ((1320, 100_000), jnp.float32), machine=gpu) > 5 * many


def test_short_reductions_are_slow_on_gpus_alone():
    """So a product that ranks is worth its rows where the distances are sums of few squares."""

    def squares(x):
        return jnp.sum(x, axis=2)

    def shares(machine):
        shapes = ((4000, 4000, 16), (500, 500, 1024))
        short, long = (predicted(squares, (shape, jnp.float32), machine=machine) for shape in shapes)
        return short / long

    assert shares(find_target("gpu:h100").machine()) > 10 > 3 > shares(find_target("tpu:v5e").machine())


def test_a_gather_costs_what_it_takes_and_not_its_table():
    small, large = (
        predicted(lambda t, i: t[i], ((rows, 64), jnp.float32), ((1000,), jnp.int32)) for rows in (100, 1_000_000)
    )
    assert large == small


def test_products_and_sums_of_one_number_start_no_kernel():
    def product(x, y):
        return jnp.einsum("bk,bkd->bd", x, y)

    arguments = ((500, 1), jnp.float32), ((500, 1, 64), jnp.float32)
    assert predicted(product, *arguments) < Machine().kernel_s
    assert predicted(lambda x: jnp.sum(x, axis=1), ((500, 1, 64), jnp.float32)) < Machine().kernel_s
    assert predicted(lambda x: jnp.sum(x, axis=1), ((500, 2, 64), jnp.float32)) > Machine().kernel_s


def test_small_trips_run_on_one_core_and_a_state_in_the_cores_own_caches_is_near():
    def bags(table, indices, weights):
        return jnp.einsum("bk,bkd->bd", weights, table[indices])

    shapes = ((500, 64), jnp.float32), ((400, 64), jnp.int32), ((400, 64), jnp.float32)
    space = exla.jit(bags, memory_limit="800KiB", records="off").space(
        *(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes)
    )
    space.ratio, space.depth = 8, 1
    ones = next(c for c in space.all() if c.decisions[-1].axis == 1 and c.decisions[-1].chunk == 1)
    machine = space.machine
    all_cores = dataclasses.replace(machine, one_core=math.inf)
    far = dataclasses.replace(machine, near_bytes=0)
    assert predict_s(ones.program, machine) < 64 * machine.trip_s < predict_s(ones.program, all_cores)
    assert predict_s(ones.program, machine) < predict_s(ones.program, far)


def test_a_product_of_few_rows_leaves_multiprocessors_idle():
    """A kernel's product in chunks of 512 rows took an H100 four times as long as in chunks of 384 columns."""
    gpu = find_target("gpu:h100").machine()

    def product(rows, depth):
        return predicted(jnp.matmul, ((rows, depth), jnp.float32), ((depth, 16), jnp.float32), machine=gpu)

    few, many = product(128, 64) - gpu.kernel_s, product(128 * 132, 64) - gpu.kernel_s
    assert few == pytest.approx(many, rel=0.1)  # one multiprocessor's, however many have one
    assert product(128 * 132 * 2, 64) - gpu.kernel_s > 1.9 * many


def test_rows_that_stay_beside_a_multiprocessor_are_read_faster():
    """Sinkhorn's half-step between 8,632 points took an H100 1.32 ms whole, and 0.78 in chunks of 1,079 columns."""
    gpu = find_target("gpu:h100").machine()

    def rows_of(width, axis=1):
        def squares(x, y):
            return jnp.sum(jnp.max(jnp.square(x[:, None] - y[None]), axis=2), axis=axis)

        seconds = predicted(squares, ((4000, 8), jnp.float32), ((width, 8), jnp.float32), machine=gpu)
        return (seconds - 2 * gpu.kernel_s) / width

    assert rows_of(20_000) > 2 * rows_of(2_000)
    assert rows_of(20_000, axis=0) < rows_of(20_000) / 1.5  # what columns are summed of is read along them


def test_sums_of_few_columns_leave_multiprocessors_idle():
    gpu = find_target("gpu:h100").machine()

    def of_columns(count):
        seconds = predicted(lambda x: jnp.sum(jnp.exp(x), axis=0), ((10_000, count), jnp.float32), machine=gpu)
        return (seconds - gpu.kernel_s) / count

    assert of_columns(64) > 4 * of_columns(132 * 32) == pytest.approx(4 * of_columns(132 * 64), rel=0.01)


@pytest.mark.parametrize("target", ["cpu", "gpu:h100", "tpu:v5e"])
@pytest.mark.parametrize(("groups", "by_batch"), [(1, False), (4, False), (4, True)])
def test_a_convolution_takes_as_long_as_the_products_of_its_windows_with_its_kernel(target, groups, by_batch):
    """A network with batch normalisation computed its convolutions again for each sum, as if they took no time."""
    images, places, inputs, outputs = 8, 32, 256, 512
    machine = find_target(target).machine()

    def convolution(x, w):
        name = "batch_group_count" if by_batch else "feature_group_count"
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, **{name: groups})

    def products(x, w):
        return jnp.einsum("gpd,gdo->gpo", x, w)

    left = (groups * images if by_batch else images, places, places, inputs)
    depth = inputs if by_batch else inputs // groups
    one = predicted(convolution, (left, jnp.float32), ((3, 3, depth, outputs), jnp.float32), machine=machine)
    windows = (groups, images * places * places, 9 * depth)
    other = predicted(
        products, (windows, jnp.float32), ((groups, 9 * depth, outputs // groups), jnp.float32), machine=machine
    )
    least = 2 * images * places**2 * 9 * depth * outputs / machine.flops
    assert least <= one < 1.2 * other  # which reads each place nine times


@pytest.mark.parametrize(("rows", "is_new"), [(1000, False), (1050, True)])
def test_memory_that_the_allocator_keeps_is_not_handed_out_anew(rows, is_new):
    """A matrix that is sorted along its columns, beside a result of 64 MiB, which is another allocation."""
    x, y = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, 4096), (4096, 4096)))
    program = canonical(jax.make_jaxpr(lambda x, y: (jnp.sort(x + 1, 0)[7], y + 1))(x, y), "cpu")
    machine = Machine(kept_bytes=32 << 20)
    peak = projected(program, machine)
    taken = peak.temporary_bytes - peak.outputs_bytes
    assert taken == pytest.approx(2 * rows * 4096 * 4, rel=0.01)
    handed_out_s = predict_with_memory_s(program, peak, machine) - predict_s(program, machine)
    expected_s = taken / machine.first_touch_bytes_per_s if is_new else 0
    assert handed_out_s == pytest.approx(expected_s, rel=0.01)


def test_complex_numbers_are_divided_in_vectors_but_where_a_short_sum_reads_them():
    """A GPU's threads branch each for itself."""

    def summed(length, machine=None):
        def fn(x, y):
            return jnp.sum(x / y, axis=1)

        shape = (100_000 // length, length, 10)
        return predicted(fn, (shape, jnp.complex64), (shape, jnp.complex64), machine=machine)

    assert summed(20) > 2 * summed(1000)
    gpu = find_target("gpu:h100").machine()
    assert summed(20, gpu) == pytest.approx(summed(1000, gpu), rel=0.2)


def test_a_split_leaves_short_sums_of_complex_numbers_to_vectors():
    """Deflections of light by masses: cut along the masses, sums become short, and one number is divided at a time."""

    def deflection(z, masses, at):
        return jnp.sum(masses / jnp.conj(z[:, None] - at), axis=1)

    arguments = (jax.ShapeDtypeStruct((4000,), jnp.complex64), *[jax.ShapeDtypeStruct((400,), jnp.complex64)] * 2)
    plan = exla.jit(deflection, memory_limit="1MiB").plan(*arguments)
    assert [d.axis for d in plan.decisions if isinstance(d, Split)] == [0]
