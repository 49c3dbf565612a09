"""The space: what is in it, and that walking it at random stays in it."""

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.call import read
from exla.datasets.profiling.zoo.programs import ZOO
from exla.ir.emit import emit
from exla.passes.decisions import CompileOption, Growth, Split
from exla.passes.split.chunks import grid, probe
from exla.passes.unless import EXPANSIONS
from exla.search import beam, driver
from exla.search.cost import projected
from exla.search.space import Goal, Space
from exla.search.strategy import STRATEGIES, starts
from exla.targets import cpu
from exla.targets.base import TARGETS, compile_for
from exla.targets.machine import Machine

POINTS = tuple(np.random.default_rng(k).standard_normal((60, 3), dtype=np.float32) for k in range(2))
ROOM = 4000


def farthest(x, y):
    return jnp.max(jnp.min(jnp.sum(jnp.abs(x[:, None] - y[None]), axis=-1), axis=1))


def kernel(x, y):
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)) @ y


def space_of(fn, *arguments, room=ROOM, **fields):
    program = read(jax.make_jaxpr(fn)(*arguments), "cpu")
    probe = Space(program=program, goal=Goal(bytes=1), machine=Machine())
    peak = probe.peak(program)
    goal = Goal(bytes=peak.arguments_bytes + peak.outputs_bytes + room)
    return Space(program=program, goal=goal, machine=TARGETS.get("cpu").machine(), **fields)


@pytest.fixture(scope="module")
def small():
    return space_of(farthest, *POINTS, ratio=32)


@pytest.fixture(scope="module")
def everything(small):
    return list(small.all())


def test_every_candidate_is_complete_and_gives_the_programs_values(small, everything):
    wants = farthest(*(p.astype(np.float64) for p in POINTS))
    assert len(everything) > 5 and len({c.all_decisions for c in everything}) == len(everything)
    for candidate in everything[:: len(everything) // 5]:
        assert candidate.peak.bytes <= small.goal.bytes
        got = jax.jit(emit(candidate.program, EXPANSIONS))(*candidate.program.consts, *POINTS)
        np.testing.assert_allclose(got[0], wants, rtol=1e-5)


def test_a_candidate_is_built_again_from_its_decisions(small, everything):
    for candidate in everything[::9]:
        again = small.build(candidate.all_decisions)
        assert again.all_decisions == candidate.all_decisions
        assert (again.peak.bytes, again.seconds) == (candidate.peak.bytes, candidate.seconds)


def test_the_walk_begins_with_the_largest_value_its_longest_axis_and_the_largest_chunks():
    space = space_of(lambda x: jnp.sum(jnp.sin(x[:, None] * x[None, :200])), np.ones(800, np.float32), room=9000)
    chunks = [c.splits[0] for c in space.all() if len(c.splits) == 1]
    first = [c for c in chunks if c.axis == chunks[0].axis and c.result == chunks[0].result]
    assert chunks[0].axis == 0 and [c.chunk for c in first[:3]] == sorted((c.chunk for c in first[:3]), reverse=True)


def test_a_small_space_is_counted_and_a_large_one_estimated(small, everything):
    exact = small.size(most=len(everything) + 1)
    assert exact.exact and exact.candidates == len(everything)
    guess = small.size(most=10, walks=200)
    assert not guess.exact and len(everything) / 2 < guess.candidates < len(everything) * 2


def test_samples_reach_what_the_walk_reaches_and_nothing_else(small, everything):
    generator = random.Random(0)
    drawn = [small.sample(generator).all_decisions for _ in range(30)]
    assert set(drawn) <= {c.all_decisions for c in everything} and len(set(drawn)) > 8
    again = random.Random(0)
    assert drawn[:5] == [small.sample(again).all_decisions for _ in range(5)]


def test_mutations_and_crossings_are_complete_candidates_and_differ_from_their_parents():
    space = space_of(farthest, *POINTS, option_sets=({"a": "1"}, {"a": ""}), room=9000)
    generator = random.Random(1)
    parent, other = space.sample(generator), space.sample(generator)
    children = [space.mutate(parent, generator) for _ in range(16)]
    assert all(c is not None and space.is_met(c) and c.all_decisions != parent.all_decisions for c in children)
    assert len({c.all_decisions for c in children}) > 4 and len({c.options for c in children}) == 2
    assert len({tuple(s.chunk for s in c.splits) for c in children}) > 1
    crossed = [c for _ in range(10) if (c := space.cross(parent, other, generator)) is not None]
    assert all(map(space.is_met, crossed))


def test_what_is_barred_is_offered_no_more():
    space = space_of(farthest, *POINTS)
    first = next(c for c in space.all() if len(c.splits) == 1)
    space.bar(first)
    axes = [(s.growth, s.site, s.axis) for c in space.all() for s in c.splits]
    barred = first.splits[0]
    assert axes and (barred.growth, barred.site, barred.axis) not in axes
    generator = random.Random(0)
    assert space.mutate(first, generator) is None or barred.axis not in [
        s.axis for s in space.mutate(first, generator).splits if s.site == barred.site and s.growth == barred.growth
    ]


def test_a_program_that_cannot_be_split_has_an_empty_space():
    space = space_of(jnp.linalg.cholesky, np.eye(50, dtype=np.float32), room=100)
    assert list(space.all()) == [] and space.size().candidates == 0 and space.size().exact
    assert space.sample(random.Random(0)) is None


def test_exact_numerics_offer_no_split_that_moves_a_bit():
    exact = space_of(kernel, *POINTS, exact=True, room=6000)
    assert all(s.growth.exact and not s.growth.online for c in exact.all() for s in c.splits)


@pytest.mark.parametrize(("size", "least"), [(1000, 1), (7, 1), (2, 1), (1, 1), (97, 5), (4096, 128)])
def test_the_grid_of_chunks_is_within_the_factor_and_spread_over_it(size, least):
    chunks = grid(size, least)
    assert chunks == sorted(set(chunks)) and all(least <= c < size for c in chunks)
    assert (chunks[0] == least if least < size else not chunks) and all(
        b <= 4 * a + 8 for a, b in itertools.pairwise(chunks)
    )


def test_splits_of_a_candidate_are_its_split_decisions(small):
    candidate = next(iter(small.all()))
    assert candidate.splits == tuple(d for d in candidate.decisions if isinstance(d, Split)) != ()
    assert str(candidate.splits[0]) in str(candidate)


def test_the_beam_makes_no_more_splits_one_after_another_than_it_is_told():
    made = space_of(farthest, *POINTS, room=800)  # a row of 60 distances takes more, beside their coordinates
    few = made.ranked(made.root, most_splits=1)
    assert {len(c.splits) for c in few} == {1} and not any(map(made.is_met, few))
    assert made.is_met(made.ranked(made.root)[0])


class MadeUp:
    """A search of candidates with names, of which nothing is known but what they lead to; no bytes are the goal."""

    def __init__(self, root, machine):
        self.root, self.machine = root, machine
        self.leads_to, self.expanded, self.asked_again = {}, [], []

    def candidate(self, name, seconds, over, *leads_to):
        seed = SimpleNamespace(decision=SimpleNamespace(growth=Growth(small_bytes=1), path=((0, 0),)))
        peak, named = replace(self.root.peak, bytes=over), (CompileOption(name=name, value=""),)
        made = replace(self.root, seconds=seconds, peak=peak, seeds=(seed,), options=named)
        self.leads_to[name] = leads_to
        return made

    def expand(self, space, parent, goal):
        (option,) = parent.options
        self.expanded.append(option.name)
        return ((p, beam.Going.BY_TIME) for p in self.leads_to[option.name])

    def checkpointed(self, start, goal):
        self.asked_again.append(start)
        return ()

    sunk = staticmethod(lambda start, goal: ())
    is_steady = staticmethod(lambda candidate: True)
    is_met = staticmethod(lambda candidate, goal: candidate.peak.bytes == 0)
    with_less = staticmethod(lambda candidate, goal: candidate)
    both = staticmethod(lambda candidate, goal: (candidate,))


@pytest.fixture
def made_up(small, monkeypatch):
    made = MadeUp(small.root, small.machine)
    monkeypatch.setattr(beam, "_expand", made.expand)
    return made


@pytest.mark.parametrize(
    ("seconds", "then", "first"), [(0.9, 0.5, 0.9), (1.9, 0.5, 1.9), (2.1, 0.5, 0.5), (2.1, 3.0, 2.1), (2.1, None, 2.1)]
)
def test_one_more_split_is_tried_where_what_is_within_the_goal_takes_long(seconds, then, first, small, made_up):
    """A start that is predicted to take a second, of which one split is within the goal and another is not yet.

    Where the first is as fast as the start, nothing is computed again either.
    """
    both = [] if then is None else [made_up.candidate("both", then, 0)]
    slow, halfway = made_up.candidate("slow", seconds, 0), made_up.candidate("halfway", 1.2, 5, *both)
    found = beam.rank(made_up, made_up.candidate("start", 1.0, 9, slow, halfway), small.goal)
    assert found[0].seconds == first and all(p.peak.bytes == 0 for p in found)
    assert made_up.expanded == (["start"] if seconds <= beam.SLOW else ["start", "halfway"])
    assert len(made_up.asked_again) == (seconds > 1)


@pytest.mark.parametrize("seconds", [0.6, 0.7])
def test_what_is_slower_than_what_is_found_is_not_split_further(seconds, small, made_up):
    within = made_up.candidate("within", 0.5, 0)
    ways = made_up.candidate("fast", 1.0, 4, within), made_up.candidate("slow", seconds, 5)
    beam.rank(made_up, made_up.candidate("start", 1.0, 9, *ways), small.goal)
    assert made_up.expanded == ["start", "fast", *(["slow"] if seconds <= beam.HURRIED * 0.5 else [])]


def test_what_cannot_obey_is_not_tried_where_enough_obeys(monkeypatch):
    """Nearest neighbours by cosines: once what holds the peak is cut, what does not hold it need not be."""
    zoo = ZOO["cosine_top5"]
    arguments = zoo.arguments(zoo.fitting)
    peak = exla.jit(zoo.function, records="off").space(*arguments).root.peak
    limit = peak.arguments_bytes + peak.outputs_bytes + (peak.temporary_bytes - peak.outputs_bytes) // 4

    def ranked():
        space = exla.jit(zoo.function, memory_limit=limit, records="off").space(*arguments)
        tried = []
        monkeypatch.setattr(space, "cut_if_possible", lambda *cut: tried.append(cut) or space.cut(*cut))
        return [c.decisions for c in space.ranked(space.rewritten)], len(tried)

    found, tried = ranked()
    monkeypatch.setattr(beam, "_left_whole", lambda candidate, region: 0)
    found_too, tried_too = ranked()
    assert found == found_too and tried < tried_too


def leapfrog(x, v):
    """Forces before a loop, and again on every turn of it."""

    def forces(x):
        apart = x[None] - x[:, None]
        return jnp.sum(apart * ((apart**2).sum(axis=-1) + 0.01)[..., None] ** -1.5, axis=1)

    def turn(state, _):
        x, v, a = state
        x = x + 0.01 * (v + 0.005 * a)
        return (x, v, forces(x)), None

    return jax.lax.scan(turn, (x, v, forces(x)), None, length=3)[0]


@pytest.mark.parametrize("room", [40_000, 80_000, 160_000])
def test_what_leaves_its_own_part_within_the_goal_is_tried_first_while_another_part_holds_the_peak(room):
    x = np.random.default_rng(0).standard_normal((300, 3), dtype=np.float32)
    made = space_of(leapfrog, x, x, room=room)
    assert made.is_met(made.ranked(made.root)[0])


def pairs(x):
    """A sign for every pair; which pairs there are is found by counting."""
    n = len(x)
    is_pair = jnp.arange(n)[:, None] < jnp.arange(n)
    counts = jnp.cumsum(is_pair.ravel().astype(jnp.int32))
    place = jnp.cumsum(jnp.zeros(n * (n - 1) // 2, jnp.int32).at[counts].add(1, mode="drop"))
    signs = jnp.sign(x[place // n] - x[place % n])
    return signs.T @ signs


def test_what_is_a_little_too_big_to_stay_whole_is_not_counted_again_for_every_chunk():
    x = np.random.default_rng(0).standard_normal((200, 29), dtype=np.float32)
    values = 200 * 199 // 2 * 29 * 4
    made = space_of(pairs, x, room=values // 6)
    slow, fast = (made.ranked(made.root, replace(made.goal, coarser=c))[0] for c in (False, True))
    assert slow.seconds > 10 * fast.seconds and made.is_met(fast)
    f = exla.jit(pairs, memory_limit=made.goal.bytes, records="off")
    np.testing.assert_array_equal(f(x), jax.jit(pairs)(x))
    assert STRATEGIES.get("analytic").start(made).ask().decisions == fast.decisions


def test_chunks_of_one_index_that_save_a_little_do_not_fill_the_beam():
    """Found with `jnp.triu_indices`: chunks of one and eight take 1.55 and 1.59 MB, and 202 and 45 ms are predicted."""

    def signs(x):
        i, j = jnp.triu_indices(len(x), 1)
        s = jnp.sign(x[i] - x[j])
        return s.T @ s / len(i)

    x = np.round(np.random.default_rng(0).standard_normal((499, 29), dtype=np.float32), 2)
    values = 499 * 498 // 2 * 29 * 4
    made = space_of(signs, x, room=values // 4)
    best = made.ranked(made.root, replace(made.goal, coarser=True))[0]
    assert made.is_met(best) and best.splits[0].chunk >= 8


def ridge(x, y, w, others):
    """Features of some points in a product with themselves, and those of others, that are as large, in one with it."""

    def features(points):
        return jnp.concatenate([jnp.cos(points @ w), jnp.sin(points @ w)], axis=-1)

    z = features(x)
    return features(others) @ ((z.T @ z) @ (z.T @ y)), jnp.mean((z @ (z.T @ y) - y) ** 2)


@pytest.mark.parametrize(
    ("rows", "features", "share", "times"), [(8000, 128, 0.25, 1.7), (8000, 128, 0.75, 1.5), (4000, 512, 0.6, 4)]
)
def test_chunks_are_as_large_as_is_fast_where_what_is_cut_next_holds_the_peak(rows, features, share, times):
    """However small chunks of the first product's rows are, the other features are too much: chunks of 8 gain nothing
    and take 3.6 or 14 times the time."""
    generator = np.random.default_rng(0)
    shapes = ((rows, 8), (rows,), (8, features), (rows // 2, 8))
    arguments = [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]
    made = space_of(ridge, *arguments, room=int(share * rows * 2 * features * 4))
    best = made.ranked(made.root)[0]
    assert made.is_met(best) and best.seconds < times * made.root.seconds


def smoothed(transitions, emissions):
    """Probabilities of the states and of the transitions of many chains: two scans, and a table of pairs for each."""
    length, states = emissions.shape[1:]

    def one(e):
        def forth(a, x):
            a = jax.nn.logsumexp(a[:, None] + transitions, axis=0) + x
            return a, a

        def back(b, x):
            b = jax.nn.logsumexp(transitions + (x + b)[None], axis=1)
            return b, b

        _, before = jax.lax.scan(forth, jnp.zeros(states), e)
        _, after = jax.lax.scan(back, jnp.zeros(states), e, reverse=True)
        pairs = before[:-1, :, None] + transitions + (e + after)[1:, None]
        return jax.nn.softmax(pairs.reshape(length - 1, -1), axis=-1)

    return jax.vmap(one)(emissions).sum(axis=(0, 1))


def test_chunks_of_one_index_that_are_still_too_large_are_split_further():
    """A chain at a time leaves the table of its pairs, which is then cut along its own axis."""
    generator = np.random.default_rng(0)
    arguments = (generator.standard_normal((16, 16)), generator.standard_normal((16, 200, 16)))
    transitions, emissions = (a.astype(np.float32) for a in arguments)
    made = space_of(smoothed, transitions, emissions, room=200 * 16 * 16 * 4)
    best = made.ranked(made.root)[0]
    assert made.is_met(best)
    assert len(best.splits) > 1 and best.splits[0].chunk == 1


def looked_at(made, monkeypatch):
    """What the beam finds, and (splits before, indices of the axis, chunk) of all that it looks at."""
    cut, tried = Space.cut, []

    def noted(self, parent, seed, chunk):
        tried.append((len(parent.seeds), seed.region.size, chunk))
        return cut(self, parent, seed, chunk)

    with monkeypatch.context() as patched:
        patched.setattr(Space, "cut", noted)
        return made.ranked(made.root), tried


def test_a_beam_that_further_splits_bring_no_nearer_comes_to_an_end(monkeypatch):
    """Extremes whose gradients need all distances twice, until they are sealed."""
    clouds = [np.random.default_rng(k).standard_normal((300, 3), dtype=np.float32) for k in range(2)]

    def found():
        return looked_at(space_of(ZOO["chamfer_gradient"].function, *clouds, room=90_000), monkeypatch)

    stalled, few = found()
    monkeypatch.setattr(beam, "STALLED", beam.MOST_SPLITS)
    ended, many = found()
    assert 2 * len(few) < len(many) and max(few)[0] < max(many)[0] == beam.MOST_SPLITS - 1
    assert stalled[0].peak.bytes <= 1.01 * ended[0].peak.bytes


def ordered(x, y):
    """Kernel values in 32 columns, the largest 16 in order."""
    values = jnp.exp(-jnp.sum((x[:, None] - y) ** 2, axis=-1))
    order = jnp.sum(values[:, :, None] < values[:, None], axis=-1)
    return jnp.sum(jnp.where(order[:, :, None] == jnp.arange(16), values[:, :, None], 0), axis=1)


def test_smallest_chunks_that_may_not_obey_are_not_looked_at_where_something_does(monkeypatch):
    x, y = (np.random.default_rng(n).standard_normal((n, 16), dtype=np.float32) for n in (500, 32))
    found, few = looked_at(space_of(ordered, x, y, room=60_000), monkeypatch)
    monkeypatch.setattr(beam.Probed, "may_shrink_to", lambda self, most_bytes: True)
    made = space_of(ordered, x, y, room=60_000)
    among, many = looked_at(made, monkeypatch)
    assert (0, 16, 2) in few and (0, 16, 1) not in few and (0, 16, 1) in many
    assert found[0].outcome == among[0].outcome and made.is_met(among[0])


def test_what_does_not_obey_is_looked_at_once_after_several_that_do(monkeypatch):
    x = np.random.default_rng(0).standard_normal((20, 100, 16), dtype=np.float32)
    y = np.random.default_rng(1).standard_normal((32, 16), dtype=np.float32)
    made, offers = space_of(jax.vmap(ordered, in_axes=(0, None)), x, y, room=600_000), Space.offers

    def obeys(seed):
        return made.is_met(made.cut(made.root, seed, probe(seed.region.size, seed.region.least_chunk)))

    def obeying_first(self, parent, goal):
        return iter(sorted(offers(self, parent, goal), key=lambda seed: not obeys(seed)))

    def obeying_last(self, parent, goal):
        return iter(sorted(offers(self, parent, goal), key=obeys))

    assert [seed.region.size for seed in made.offers(made.root) if obeys(seed)] == [20, 100, 32]
    for in_order in (obeying_first, obeying_last):
        with monkeypatch.context() as patched:
            patched.setattr(Space, "offers", in_order)
            found, tried = looked_at(made, monkeypatch)
        assert (0, 16, 2) in tried and ((0, 16, 8) in tried) == (in_order is obeying_last) and made.is_met(found[0])


def test_there_are_chunks_between_the_smallest_and_those_that_fill_a_vector():
    def covariances(x):
        products = x[:, :, None] * x[:, None]
        return jnp.sum((products - products.mean(axis=0)) ** 2)

    x = np.random.default_rng(0).standard_normal((997, 101), dtype=np.float32)
    made = space_of(covariances, x, room=101 * 101 * 4 * 6)
    assert any(1 < split.chunk < 8 for c in made.ranked(made.root) for split in c.splits)


def test_the_beam_comes_to_an_end_and_the_refusal_says_so(monkeypatch):
    made = space_of(kernel, *POINTS)
    (first, *_) = found = made.ranked(made.root)
    assert made.is_met(first) and not made.is_exhausted
    made.most_tried = 0
    assert made.is_exhausted
    another = replace(space_of(kernel, *POINTS), most_tried=0)
    assert not another.is_exhausted and len(another.ranked(another.root)) < len(found)
    make_space = driver.make_space
    monkeypatch.setattr(driver, "make_space", lambda *args: replace(make_space(*args), most_tried=-1))
    f = exla.jit(kernel, memory_limit=made.goal.bytes, records="off")
    with pytest.raises(exla.MemoryLimitError, match=r"ended before it had tried all splits of \d+ equations"):
        f.plan(*POINTS)


def test_a_loop_that_is_small_beside_another_is_cut_small_too(monkeypatch):
    """Forces before a loop and in it: until the second are cut, chunks of the first of any size take the same."""
    monkeypatch.setattr(cpu, "has_huge_pages", lambda: False)

    def forces(x):
        away = x[None] - x[:, None]
        squared = jnp.sum(away * away, -1) + 0.01
        return jnp.sum((1 / (squared * jnp.sqrt(squared)))[..., None] * away, 1)

    def steps(x, v):
        def step(state, _):
            x, v, a = state
            x = x + v + a
            return (x, v + a, forces(x)), None

        return jax.lax.scan(step, (x, v, forces(x)), None, length=4)[0]

    x = jnp.ones((2500, 3))
    made = space_of(steps, x, x, room=70 << 20)
    best = made.ranked(made.root)[0]
    assert len(best.splits) == 2
    assert best.peak.temporary_bytes < made.machine.kept_bytes < made.root.peak.temporary_bytes / 2


def features(x, weights):
    hidden = jnp.tanh(x @ weights)
    return hidden @ hidden.T


FEATURES = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((200, 8), (8, 7000))]


@pytest.mark.parametrize(("room", "most_trips"), [(700_000, 64), (40_000_000, 7)])
def test_chunks_are_so_few_that_sums_keep_no_more_where_that_is_what_obeys(room, most_trips):
    """With more than 64, a sum is kept in two arrays, and a third is copied."""
    space = space_of(features, *FEATURES, room=room)
    best = next(c for s in starts(space) for c in space.ranked(s))
    assert space.is_met(best)
    assert any(s.axis == 1 and -(-7000 // s.chunk) <= most_trips for s in best.splits)


def assigned(program):
    """Bytes that XLA:CPU assigns to temporaries."""
    structs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.invars]
    written = emit(program, EXPANSIONS, in_blocks=True)
    compiled = compile_for(TARGETS.get("cpu"), written, structs, compiler_options=cpu.NO_YNN)
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("chunk", [8, 32, 100, 140, 256])
def test_what_sums_of_many_chunks_copy_is_projected(chunk):
    space = space_of(features, *FEATURES, room=700_000)
    start = space.root
    seed = next(s for s in space.offers(start) if s.region.size == 7000 and s.decision.axis == 1)
    program = space.cut(start, seed, chunk).program
    peak = space.peak(program)
    assert 0.9 <= (peak.temporary_bytes - peak.outputs_bytes - peak.library_bytes) / assigned(program) <= 1.5


@pytest.mark.parametrize(("size", "chunk"), [(743, 376), (743, 186), (739, 344), (700, 344)])
def test_a_remainder_that_stores_what_chunks_reduce_in_blocks_is_projected(size, chunk):
    """It is of 367, a prime; of 185, which 5 divides; of 51, which none from 4 to 16 does; of 12, which is one pass."""

    def concordance(x, y):
        return jnp.sum(jnp.sign(x[:, None] - x[None]) * jnp.sign(y[:, None] - y[None]))

    space = space_of(concordance, *[jax.ShapeDtypeStruct((size,), jnp.float32)] * 2, room=500_000)
    start = space.root
    seed = next(s for s in space.offers(start) if s.region.size == size and s.decision.axis == 1)
    program = space.cut(start, seed, chunk).program
    peak = projected(program, replace(space.machine, blocks=True))
    assert 0.9 <= peak.temporary_bytes / assigned(program) <= 1.5
