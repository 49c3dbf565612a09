"""Of a value that is read in one place, known when the program runs, that place alone is computed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.errors import ReplayMiss
from exla.ir.emit import emit
from exla.ir.memory import Held
from exla.ir.program import canonical
from exla.ir.scopes import numbered
from exla.passes.apart import is_apart
from exla.passes.decisions import Sink, to_json
from exla.passes.sink import apply_sink, enumerate_sinks
from exla.passes.unless import EXPANSIONS

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N = 40


def distances(x):
    return jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, axis=-1) + 1e-3)


def products(x):
    return jnp.exp(jnp.sin(x) @ jnp.cos(x).T / 8)


READS = {
    "a row": lambda k, i: k[i],
    "a column": lambda k, i: k[:, i],
    "one number": lambda k, i: k[i, N - 1 - i],
    "one number by its place in all": lambda k, i: k.ravel()[i * N + 3],
    "one number of another shape": lambda k, i: k.reshape(5, N, N // 5)[i % 5, i, i % 8],
    "one number of many axes": lambda k, i: k.reshape(2, 4, 5, 8, 5)[i % 2, 3, i % 5, -1, 2],
    "some rows": lambda k, i: jax.lax.dynamic_slice(k, (i, 0), (3, N)),
    "a corner": lambda k, i: jax.lax.dynamic_slice(k, (i, i), (3, 5)),
    "a row of what is transposed": lambda k, i: k.T[i],
    "a row that is known": lambda k, i: k[7] + i,
    "a corner that is known": lambda k, i: k[2:5, -3:] + i,
    "a number that is known": lambda k, i: k.ravel()[N + 2] + i,
    "chosen rows": lambda k, i: k[jnp.stack([i, 0 * i, 2 * i])],
    "chosen columns": lambda k, i: k[:, jnp.stack([i, 3 + i])],
    "chosen numbers": lambda k, i: k[jnp.arange(N) - i, (jnp.arange(N) * 7 + i) % (N + 3)],
    "chosen numbers of chosen rows": lambda k, i: k[jnp.ix_(jnp.arange(4) + i, 2 * jnp.arange(3) - i)],
    "numbers of each row": lambda k, i: jnp.take_along_axis(k, jnp.arange(N)[:, None] + i, axis=1),
    "numbers of each column": lambda k, i: jnp.take_along_axis(k, jnp.arange(N)[None] + i, axis=0),
    "numbers by their places in all": lambda k, i: jnp.take(k, jnp.stack([i, N + i, N * N - 1 - 2 * i])),
    "windows": lambda k, i: jax.vmap(lambda j: jax.lax.dynamic_slice(k, (j, i), (2, 3)))(jnp.arange(3) * i),
    "rows or what is given instead": lambda k, i: k.at[jnp.stack([i, -i])].get(mode="fill", fill_value=7.0),
    "rows or what is not a number": lambda k, i: jnp.take(k, jnp.stack([i, 3 * i]), axis=0, mode="fill"),
    "rows or the nearest ones": lambda k, i: k.at[jnp.stack([i, -i])].get(mode="clip"),
    "rows of a chosen row": lambda k, i: k[jnp.stack([i, 1 + i])][:, jnp.stack([2 * i, i])],
}


def sunk(fn, *args):
    """A program with every part computed where it is read, and how many there were."""
    program, count = numbered(canonical(jax.make_jaxpr(fn)(*args))), 0
    while True:
        big = [v for eqn in program.eqns for v in eqn.outvars if v.aval.size >= N * N]
        held = [Held(program=program, path=(), var=v, bytes=1 << 40) for v in big]
        sink = next(enumerate_sinks(held, small_bytes=8 * N * N // 5), None)
        if sink is None:
            return program, count
        program, count = apply_sink(program, sink), count + 1


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("matrix", [distances, products])
def test_a_part_is_computed_alone(x64, matrix, read):
    """Also from beyond the end and before the beginning, where a slice is moved inside."""

    def fn(x, i):
        return READS[read](matrix(x), i)

    x = np.random.default_rng(0).normal(size=(N, 6))
    program, count = sunk(fn, x, 3)
    assert count >= 1
    assert max(v.aval.size for eqn in program.eqns for v in eqn.outvars) < N * N
    run = jax.jit(emit(program, EXPANSIONS))
    for i in (0, 3, N - 1, N + 7, -2, -N - 5):
        np.testing.assert_allclose(run(x, i)[0], jax.jit(fn)(x, i), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint32])
def test_places_may_be_counted_in_any_integers(x64, dtype):
    """A place beyond what 32 bits hold is one beyond the end; an axis may be longer than 8 bits count."""

    def fn(x, i):
        return jax.lax.dynamic_slice(distances(x), (i, i), (1, 300))

    x = np.random.default_rng(0).normal(size=(300, 3))
    program, count = sunk(fn, x, dtype(3))
    assert count == 1
    for i in (0, 100, np.iinfo(dtype).max, np.iinfo(dtype).min):
        got = jax.jit(emit(program, EXPANSIONS))(x, dtype(i))[0]
        np.testing.assert_allclose(got, jax.jit(fn)(x, dtype(i)), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64, np.uint32])
@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_chosen_places_may_be_counted_in_any_integers(x64, mode, dtype):
    def fn(x, i):
        return distances(x).at[i, i[::-1]].get(mode=mode)

    x, last = np.random.default_rng(0).normal(size=(300, 3)), np.iinfo(dtype)
    places = np.array([0, 5, 127, last.max, last.min], dtype)
    program, count = sunk(fn, x, places)
    assert count == 1
    np.testing.assert_allclose(jax.jit(emit(program, EXPANSIONS))(x, places)[0], jax.jit(fn)(x, places), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.int16, np.uint8, np.bool_, np.complex64])
def test_what_is_nowhere_is_filled_as_in_the_whole(dtype):
    def fn(x, i):
        k = (x[:, None] + x[None]).astype(dtype)
        return k.at[i].get(mode="fill"), k.at[i, i].get(mode="fill")

    x, places = np.arange(N, dtype=np.float32), np.array([3, -N - 1, N, -1])
    program, count = sunk(fn, x, places)
    assert count == 2
    for got, expected in zip(jax.jit(emit(program, EXPANSIONS))(x, places), jax.jit(fn)(x, places), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_what_reads_all_of_it_still_does(x64):
    def fn(x):
        k = distances(x)
        return k[jnp.argmax(k.sum(axis=0))], k.sum(axis=0)

    x = np.random.default_rng(0).normal(size=(N, 6))
    program, count = sunk(fn, x)
    assert count == 1 and any(v.aval.shape == (N, N) for eqn in program.eqns for v in eqn.outvars)
    for got, expected in zip(jax.jit(emit(program, EXPANSIONS))(x), fn(x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: jnp.sort(distances(x), axis=0)[i],  # its rows need all of the matrix
        lambda x, i: jnp.cumsum(distances(x), axis=0)[i],
        lambda x, i: jax.lax.dynamic_slice(distances(x), (i, 0), (N - 1, N)),  # that is nearly all
    ],
    ids=["sorted", "summed up", "nearly all"],
)
def test_what_needs_all_of_it_stays(fn):
    assert sunk(fn, np.ones((N, 6), np.float32), 3)[1] == 0


def test_a_decision_about_what_cannot_be_computed_alone_is_a_miss():
    program = canonical(jax.make_jaxpr(lambda x, i: jnp.cumsum(distances(x), axis=0)[i])(np.ones((N, 6)), 3))
    position = next(i for i, e in enumerate(program.eqns) if e.primitive.name == "dynamic_slice")
    sink = Sink(path=(), site=program.site(position), operand=0, small_bytes=100)
    with pytest.raises(ReplayMiss, match="cannot be computed alone"):
        apply_sink(program, sink)


def farthest_points(x):
    """Each turn reads one row of all distances."""
    k = distances(x)

    def step(nearest, _):
        j = jnp.argmax(nearest)
        return jnp.minimum(nearest, k[j]), j

    return jax.lax.scan(step, jnp.full(len(x), 1e9, x.dtype), None, length=20)


def herding(x):
    """Reads columns in a loop, and all of it before."""
    k = distances(x)
    mean = k.mean(axis=1)

    def step(i, carry):
        total, chosen = carry
        j = jnp.argmax(mean - total / (i + 1))
        return total + k[:, j], chosen.at[i].set(j)

    return jax.lax.fori_loop(0, 20, step, (jnp.zeros(len(x), x.dtype), jnp.zeros(20, jnp.int32)))


def farthest_pair(x):
    k = distances(x)
    at = jnp.argmax(k)
    return at, k.ravel()[at]


def annealing(x):
    """A tour whose places are exchanged where that makes it shorter: of all distances eight on each turn."""
    k = distances(x)

    def step(tour, key):
        i, j = jax.random.randint(key, (2,), 1, len(x) - 1)
        other = tour.at[i].set(tour[j]).at[j].set(tour[i])

        def legs(t):
            return k[t[i - 1], t[i]] + k[t[i], t[i + 1]] + k[t[j - 1], t[j]] + k[t[j], t[j + 1]]

        before, after = legs(tour), legs(other)
        return jnp.where(after < before, other, tour), jnp.minimum(before, after)

    return jax.lax.scan(step, jnp.arange(len(x)), jax.random.split(jax.random.key(0), 50))


def outliers(x):
    """How much denser the neighbours of a point lie than the point."""
    squares = jnp.sum(x * x, axis=1)
    k = squares[:, None] + squares[None] - 2 * x @ x.T + 1
    nearest = jax.lax.top_k(-k, 6)[1][:, 1:]
    reach = jnp.maximum(jnp.take_along_axis(k, nearest, axis=1), k[jnp.arange(len(x)), nearest[:, -1]][nearest])
    density = 1 / reach.mean(axis=1)
    return nearest, density[nearest].mean(axis=1) / density


def landmarks(x):
    """Of the kernel of all points the columns of some, known and chosen ones."""
    k = products(x)
    chosen = jnp.argsort(x[:, 0])[:20]
    return k[:, chosen] @ jnp.linalg.solve(k[chosen][:, chosen] + jnp.eye(20), x[:20]), k[:20], k[3, -1]


@pytest.mark.parametrize("fn", [farthest_points, herding, farthest_pair, annealing, outliers, landmarks])
def test_greedy_choices_run_without_the_matrix(fn):
    x = np.random.default_rng(0).normal(size=(700, 3)).astype(np.float32)
    f = exla.jit(fn, memory_limit=x.nbytes + 4 * 700 * 700 // (24 if fn is outliers else 8))
    for got, expected in zip(f(x), jax.jit(fn)(x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert any(isinstance(d, Sink) for d in f.plan(x).decisions)


def above(x, y):
    """How many numbers of a row are above a chosen one of them, which is not above itself."""
    k = x @ y.T
    chosen = jnp.take_along_axis(k, jnp.argsort(y[:, 0])[: len(x), None], axis=1)
    return (k > chosen).sum(axis=1), (k - chosen < 0).sum(axis=1), jnp.sign(k - chosen).sum(axis=0)


def above_one(x, y):
    k = x @ y.T
    i = jnp.argmax(y[:, 0])
    return (k > k[i, i]).sum(axis=1), (k >= k[3, 5]).sum(axis=0)


def above_in_its_row(x, y):
    """Two parts of other shapes."""
    k = x @ y.T
    i = jnp.argmax(x[:, 0])
    return (k[i] > k[i, jnp.argsort(y[:, 1])[:40, None]]).sum(axis=1), (k[i] < k[i, i])


def from_the_least(x, y):
    k = x @ y.T
    chosen = k[jnp.arange(len(x)), jnp.argmin(k, axis=1)]
    return (jnp.isnan(jnp.sqrt(k - chosen[:, None])).sum(axis=1),)


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("fn", [above, above_one, above_in_its_row, from_the_least])
def test_what_is_compared_by_order_with_the_whole_is_no_part_of_its_own(fn, share):
    """The product of one row with one column has other last bits than the product of all."""
    x, y = (np.random.default_rng(k).normal(size=(600, 37)).astype(np.float32) for k in range(2))
    plain = jax.jit(fn).lower(x, y).compile()
    room = int(share * plain.memory_analysis().temp_size_in_bytes)
    f = exla.jit(fn, memory_limit=x.nbytes + y.nbytes + 2 * 4 * 600 + 2400 + room)
    try:
        results = f(x, y)
    except exla.MemoryLimitError:
        return
    for got, expected in zip(results, plain(x, y), strict=True):
        np.testing.assert_array_equal(got, expected)


SMOOTH = {
    "an activation": lambda k, m, s: jnp.tanh(s * (k - m)).sum(),
    "a hinge": lambda k, m, s: jax.nn.relu(k - m + s),
    "a square": lambda k, m, s: ((k - m) ** 2).sum(axis=0),
    "a ratio": lambda k, m, s: k / m,
    "the largest sum": lambda k, m, s: jnp.argmax(k.sum(axis=0) - m * s),
    "what a sum is below": lambda k, m, s: k.sum(axis=0) > m,
    "what is chosen by the whole": lambda k, m, s: m > jnp.argmax(k) + s,
}
JUMPS = {
    "order": lambda k, m, s: k > m,
    "order of what is scaled": lambda k, m, s: (k - m) * s >= 0,
    "equality with nothing": lambda k, m, s: (k - m == 0).sum(),
    "order after an activation": lambda k, m, s: jnp.exp((k - m) / 8) >= 1,
    "order of the least": lambda k, m, s: jnp.min(jnp.abs(k - m)) <= 0,
    "a conversion": lambda k, m, s: (k * 1e6).astype(jnp.int32) >= (m * 1e6).astype(jnp.int32),
    "a sign": lambda k, m, s: jnp.sign(k - m),
    "order of a sum of one": lambda k, m, s: k > m[None].sum(),
    "order of a product of one": lambda k, m, s: k > m[None, None] @ s[None, None],
    "order of what nothing is added to": lambda k, m, s: k > jnp.zeros(3).at[1].add(m)[1],
    "order of a running sum": lambda k, m, s: k > jnp.cumsum(jnp.stack([m, s]))[0],
    "bits": lambda k, m, s: jnp.signbit(k - m),
    "an inverse": lambda k, m, s: 1 / (k - m),
    "a root": lambda k, m, s: jnp.sqrt(k - m),
    "a remainder": lambda k, m, s: jnp.mod(k, m),
    "a sort": lambda k, m, s: jnp.argsort(jnp.where(k > s, k, m)),
    "bins": lambda k, m, s: jnp.digitize(k, jnp.stack([m, m + s])),
    "the gradient of a maximum": lambda k, m, s: jax.grad(lambda v: jnp.maximum(k + v, m).sum())(s),
    "a loop": lambda k, m, s: jax.lax.map(lambda row: (row >= 0).sum(), k - m),
    "the condition of a loop": lambda k, m, s: jax.lax.while_loop(lambda t: (t > k).any(), lambda t: t - 1, m),
}


@pytest.mark.parametrize("meeting", [*SMOOTH, *JUMPS])
def test_a_part_does_not_meet_the_whole_where_a_last_bit_decides(meeting):
    def fn(x, i, j, s):
        k = x @ (x + 1).T
        return (SMOOTH | JUMPS)[meeting](k, k[i, j], s)

    program, count = sunk(fn, np.ones((N, 6), np.float32), 3, 4, np.float32(1))
    assert count >= 1 and is_apart(program) == (meeting in SMOOTH)


@pytest.mark.parametrize(
    "fn",
    [
        lambda key, i: jax.random.uniform(key, (300, 300))[i, i],
        lambda key, i: jax.random.normal(key, (300, 300))[i].sum(axis=0),
    ],
)
def test_random_numbers_in_chosen_places_are_those_of_the_whole(fn):
    key, places = jax.random.key(0), np.array([3, 77, 210], np.int32)
    try:
        got = exla.jit(fn, memory_limit=60_000)(key, places)
    except exla.MemoryLimitError:
        return
    np.testing.assert_allclose(got, jax.jit(fn)(key, places), rtol=1e-6)


def test_a_plan_that_compares_a_part_with_the_whole_is_refused(tmp_path):
    """A file may say so; a search does not."""
    x, y = (np.random.default_rng(k).normal(size=(300, 37)).astype(np.float32) for k in range(2))
    program = canonical(jax.make_jaxpr(above_one)(x, y))
    reads = [i for i, e in enumerate(program.eqns) if e.primitive.name in ("slice", "dynamic_slice")]
    position = next(i for i in reads if program.eqns[i].invars[0].aval.shape == (300, 300))
    sink = Sink(path=(), site=program.site(position), operand=0, small_bytes=1000)
    assert apply_sink(program, sink) is not None
    path = tmp_path / "plan.json"
    exla.save(exla.compile(above_one, (x, y), memory_limit="1GiB"), path)
    saved = json.loads(path.read_text())
    path.write_text(json.dumps({**saved, "decisions": [to_json(sink)]}))
    with pytest.raises(exla.PlanError, match="alone a part that is compared"):
        exla.load(path, above_one, (x, y))


def discrepancy(x, y):
    """A mean discrepancy from the blocks of one matrix, whose width is of all of it."""
    z, n = jnp.concatenate([x, y]), len(x)
    squared = jnp.sum((z[:, None] - z[None]) ** 2, axis=-1)
    k = jnp.exp(-squared / jnp.mean(squared))
    return k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean(), k[:, :n].mean(1) - k[:, n:].mean(1)


def test_blocks_of_a_matrix_are_computed_alone():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 4)), rng.normal(size=(400, 4)) * 1.1
    small = [v.astype(np.float32) for v in (x, y)]
    found = exla.jit(discrepancy, memory_limit="400KiB", records="off")  # all blocks are of 2.56 MB together
    sinks = [d for d in found.plan(*small).decisions if isinstance(d, Sink)]
    assert len(sinks) == 5
    with jax.enable_x64(True):
        wants = jax.jit(discrepancy)(x, y)
    for got, want in zip(found(*small), wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("read", "count"), [(lambda k: (k[1:] - k[:-1]).sum(), 0), (lambda k: (k[:100] - k[100:]).sum(), 2)]
)
def test_blocks_are_offered_and_shifts_are_not(read, count):
    program = canonical(jax.make_jaxpr(lambda x: read(distances(x)))(np.ones((200, 3), np.float32)))
    matrix = next(e.outvars[0] for e in program.eqns if e.primitive.name == "sqrt")
    held = [Held(program=program, path=(), var=matrix, bytes=1 << 40)]
    assert len(list(enumerate_sinks(held, small_bytes=1, of_slices=True))) == count
    assert not list(enumerate_sinks(held, small_bytes=1))
