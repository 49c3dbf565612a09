"""The pool, and the strategy that ranks it by what was learned."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.cost_model.batch import Sample, collate
from exla.cost_model.candidates import Ensemble, ranker_for
from exla.cost_model.checkpoint import Trained, load, save
from exla.cost_model.models import MODELS
from exla.cost_model.normalise import Normaliser
from exla.cost_model.ranker import Ranker
from exla.cost_model.split_configs import describe
from exla.errors import CheckpointError, ExlaWarning
from exla.search.measure import Timing
from exla.search.pool import FEW, FIRST, first_of, pool, walks
from exla.search.ranker import Ranking, find_ranker
from exla.search.strategies.learned import RIVALS
from exla.search.strategy import STRATEGIES, Outcome
from exla.search.weigh import weigh
from exla.targets.base import CompiledBytes
from tests.cost_model.test_split_configs import zoo_space

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def smooth(x, y, v):
    return jnp.exp(-jnp.sum(jnp.abs(x[:, None] - y[None]), axis=-1)) @ v


def points(n=700):
    generator = np.random.default_rng(0)
    return tuple(generator.standard_normal(s, dtype=np.float32) for s in ((n, 3), (n, 3), (n,)))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A model that has learned nothing, as weights of the CPU."""
    space = zoo_space("chamfer")
    candidates = pool(space, most=4, seconds=0.0)
    described = describe(space.starts)
    configs = described.configs(candidates, space.option_sets)
    sample = Sample(graph=described.graph, node_config=configs)
    normaliser = Normaliser.fit([described.graph])
    options = {"hidden": 8, "blocks": 1}
    model = MODELS.get("split_sage")(**options)
    variables = jax.jit(model.init)(jax.random.key(0), collate([sample], normaliser))
    folder = tmp_path_factory.mktemp("weights")
    trained = Trained(model="split_sage", options=options, variables=variables, normaliser=normaliser)
    save(folder / "cpu.0.npz", trained)
    return folder


@pytest.fixture
def with_weights(weights, monkeypatch):
    monkeypatch.setenv("EXLA_WEIGHTS", str(weights))
    find_ranker.cache_clear()
    yield
    find_ranker.cache_clear()


@pytest.fixture
def without_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("exla.cost_model.candidates.shipped_weights", lambda: {})
    find_ranker.cache_clear()
    yield
    find_ranker.cache_clear()


def test_a_pool_holds_complete_candidates_each_once_and_the_same_ones_each_time():
    first, second = (pool(zoo_space("svgd_step"), most=20, seconds=30.0) for _ in range(2))
    assert 8 <= len(first) <= 20
    decisions = [c.all_decisions for c in first]
    assert len(set(decisions)) == len(decisions) and decisions == [c.all_decisions for c in second]
    space = zoo_space("svgd_step")
    assert all(space.is_met(c) and c.options for c in first)
    assert [c.seconds for c in first][0] == min(c.seconds for c in first)


def test_walks_are_all_chunk_sizes_a_factor_apart_and_what_the_strategies_begin_with():
    first, second = (walks(zoo_space("svgd_step"), 8) for _ in range(2))
    found = [c.all_decisions for c in first]
    assert len(set(found)) == len(found) >= FEW and found == [c.all_decisions for c in second]
    space = zoo_space("svgd_step")
    begun = [next(first_of(name, space, 1)) for name in ("analytic", "heuristic")]
    assert all(c.options or any(o.decisions == c.decisions for o in first) for c in begun)
    space.ratio, space.depth = 8, 1
    apart = {c.all_decisions for c in space.all()}
    assert apart and apart < set(found) and len(pool(zoo_space("svgd_step"), most=20)) < len(found)
    assert all(c.options for c in first)
    beyond = [c for c in first if not space.is_met(c)]
    assert {c.decisions for c in beyond} <= {c.decisions for c in first_of("heuristic", zoo_space("svgd_step"), FIRST)}


def test_what_a_strategy_asks_first_is_no_more_than_was_asked_for():
    space = zoo_space("chamfer")
    two = [c.decisions for c in first_of("analytic", space, 2)]
    assert len(two) == 2 and two[0] != two[1] and list(first_of("analytic", space, 1))[0].decisions == two[0]


def test_a_learned_choice_obeys_the_cap_and_keeps_the_values(with_weights):
    x, y, v = points()
    f = exla.jit(smooth, search="learned", memory_limit="400KiB", records="off")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ExlaWarning)
        got = f(x, y, v)
    plan = f.plan(x, y, v)
    assert plan.compiled_bytes <= 400 << 10 < 4 * 700 * 700 and plan.decisions
    jax.config.update("jax_enable_x64", True)
    try:
        want = np.asarray(jax.jit(smooth)(*(a.astype(np.float64) for a in (x, y, v))))
    finally:
        jax.config.update("jax_enable_x64", False)
    assert np.max(np.abs(got - want)) <= 1e-4 * np.max(np.abs(want))


def test_without_weights_the_analytic_choice_is_made_and_a_warning_says_so(without_weights):
    x, y, v = points()
    f = exla.jit(smooth, search="learned", memory_limit="400KiB", records="off")
    with pytest.warns(ExlaWarning, match="no weights for cpu .*analytic"):
        plan = f.plan(x, y, v)
    assert plan.decisions == exla.jit(smooth, memory_limit="400KiB", records="off").plan(x, y, v).decisions


def test_without_weights_nothing_is_weighed_by_memory(without_weights, monkeypatch):
    """A rival is weighed against what was ranked; what the analytic search asks next is none."""

    def never(*arguments):
        raise AssertionError("weighed")

    monkeypatch.setattr("exla.search.driver.weigh", never)
    f = exla.jit(smooth, search="learned", memory_limit="400KiB", records="off")
    with pytest.warns(ExlaWarning, match="no weights for cpu"):
        assert f.plan(*points()).decisions


def test_weights_that_cannot_be_read_are_a_warning_and_not_the_end(tmp_path, monkeypatch):
    (tmp_path / "cpu.npz").write_bytes(b"no weights")
    monkeypatch.setenv("EXLA_WEIGHTS", str(tmp_path))
    find_ranker.cache_clear()
    with pytest.raises(CheckpointError):
        ranker_for("cpu")
    with pytest.warns(ExlaWarning, match="cpu.npz"):
        assert find_ranker("cpu") is None
    find_ranker.cache_clear()


def test_what_the_model_puts_first_is_asked_first(with_weights):
    space = zoo_space("svgd_step")
    wanted = [0, 3, 1]

    class Backwards:
        leads = True

        def rank(self, starts, candidates, option_sets):
            asked.extend(candidates)
            order = (*wanted, *(k for k in range(len(candidates)) if k not in wanted))
            return Ranking(order=order, scores=(0.0,) * len(order), doubts=(0.0,) * len(order), weights="made up")

    asked = []
    space.ranker = Backwards
    session = STRATEGIES.get("learned").start(space)
    for k in wanted:
        assert session.ask().all_decisions == asked[k].all_decisions
        session.tell(Outcome(status="over_limit", peak_bytes=space.goal.bytes * 2))


@pytest.mark.parametrize(
    ("can_be_weighed", "doubt", "rivals"), [(True, 0.0, RIVALS), (True, 1.0, RIVALS), (False, 1.0, 1), (False, 0.0, 0)]
)
def test_rivals_are_asked_for_where_time_can_settle_it_or_the_models_disagree(can_be_weighed, doubt, rivals):
    space = zoo_space("svgd_step")

    class InDoubt:
        leads = True

        def rank(self, starts, candidates, option_sets):
            count = len(candidates)
            asked.extend(candidates)
            scores = tuple(0.1 * k for k in range(count))
            return Ranking(order=tuple(range(count)), scores=scores, doubts=(doubt,) * count, weights="made up")

    asked = []
    space.ranker = InDoubt
    session = STRATEGIES.get("learned").start(space)
    session.ask()
    session.tell(Outcome(status="over_limit", peak_bytes=space.goal.bytes * 2))
    session.ask()
    session.tell(Outcome(status="ok", peak_bytes=space.goal.bytes, can_be_weighed=can_be_weighed))
    found = []
    while (candidate := session.ask()) is not None:
        found.append(candidate)
        session.tell(Outcome(status="ok", peak_bytes=space.goal.bytes))
    assert [c.all_decisions for c in found] == [c.all_decisions for c in asked[2 : 2 + rivals]]


def test_what_is_predicted_to_be_fastest_is_weighed_against_what_leads():
    space = zoo_space("svgd_step")
    wanted = (3, 2, 1, 0)

    class Backwards:
        leads = True

        def rank(self, starts, candidates, option_sets):
            asked.extend(candidates)
            order = (*wanted, *range(4, len(candidates)))
            return Ranking(order=order, scores=(0.0,) * len(order), doubts=(0.0,) * len(order), weights="made up")

    asked = []
    space.ranker = Backwards
    session = STRATEGIES.get("learned").start(space)
    for position in (3, 0, 2):
        assert session.ask().all_decisions == asked[position].all_decisions
        session.tell(Outcome(status="ok", peak_bytes=space.goal.bytes, can_be_weighed=True))
    assert session.ask() is None


@pytest.mark.parametrize("can_be_weighed", [True, False])
def test_weights_that_only_advise_name_rivals_of_what_the_analytic_search_finds(can_be_weighed):
    asked = []

    class Advises:
        leads = False

        def rank(self, starts, candidates, option_sets):
            asked.extend(candidates)
            order = tuple(reversed(range(len(candidates))))
            return Ranking(order=order, scores=(0.0,) * len(order), doubts=(9.0,) * len(order), weights="made up")

    learned, analytic = zoo_space("svgd_step"), zoo_space("svgd_step")
    learned.ranker = Advises
    sessions = [STRATEGIES.get(name).start(space) for name, space in (("learned", learned), ("analytic", analytic))]
    for status in ("over_limit", "ok"):
        one, other = (session.ask() for session in sessions)
        assert one.all_decisions == other.all_decisions
        peak = analytic.goal.bytes * (2 if status == "over_limit" else 1)
        sessions[0].tell(Outcome(status=status, peak_bytes=peak, can_be_weighed=can_be_weighed and status == "ok"))
        sessions[1].tell(Outcome(status=status, peak_bytes=peak))
    following = []
    while (candidate := sessions[0].ask()) is not None and len(following) < 9:
        following.append(candidate.all_decisions)
        sessions[0].tell(Outcome(status="ok", peak_bytes=analytic.goal.bytes))
    if can_be_weighed:
        assert following == [c.all_decisions for c in reversed(asked[-RIVALS:])]
        assert next(iter(analytic.suited(one))).all_decisions not in {c.all_decisions for c in asked}
        return
    assert not asked and (following[:1] == [c.all_decisions for c in [sessions[1].ask()] if c is not None])


@pytest.mark.parametrize(
    ("held_out", "leads"),
    [
        ({}, True),
        ({"by_device": {"a": {"learned": 1.1, "analytic": 1.2}}}, True),
        ({"by_device": {"a": {"learned": 1.1, "analytic": 1.2}, "b": {"learned": 1.3, "analytic": 1.2}}}, False),
    ],
)
def test_weights_lead_where_their_card_says_that_they_pick_better(weights, held_out, leads):
    trained = load(weights / "cpu.0.npz")
    rankers = tuple(Ranker(name="", trained=replace(trained, card=card)) for card in ({}, {"held_out": held_out}))
    assert Ensemble(name="cpu", rankers=rankers).leads == leads


def test_where_a_run_is_allowed_what_is_learned_is_timed_against_what_the_analytic_search_finds(
    weights, tmp_path, monkeypatch
):
    worse = {"held_out": {"by_device": {"a": {"learned": 1.3, "analytic": 1.2}}}}
    save(tmp_path / "cpu.npz", replace(load(weights / "cpu.0.npz"), card=worse))
    monkeypatch.setenv("EXLA_WEIGHTS", str(tmp_path))
    monkeypatch.setattr("exla.search.weigh.SECONDS", 0.1)
    find_ranker.cache_clear()
    x, y, v = points()
    # below some 20 MiB what a process's first run takes is more than a program
    plans = {
        (search, verify): exla.jit(
            smooth,
            search=search,
            verify=verify,
            memory_limit="400KiB" if verify == "compile" else "30MiB",
            tensor_size_threshold="1MiB",
            records="off",
        ).plan(x, y, v)
        for search, verify in (("learned", "run"), ("learned", "compile"), ("analytic", "compile"))
    }
    find_ranker.cache_clear()
    assert plans["learned", "compile"].decisions == plans["analytic", "compile"].decisions
    assert plans["learned", "compile"].prediction == (
        "found by the analytic search",
        'the weights cpu say what is weighed against it, which takes a run: verify="run"',
    )
    measured = plans["learned", "run"]
    assert len(measured.tried) == 1 + RIVALS and "of the first one's time" in measured.prediction[-1]


class Weighed:
    """A choice of which only the count of bytes and the compiler's estimate are asked."""

    def __init__(self, cycles, total):
        self.cycles = cycles
        self.compiled_bytes = CompiledBytes(arguments=0, outputs=0, temporaries=total, aliased=0, unaccounted=0)


@pytest.mark.parametrize(
    ("choices", "kept", "why"),
    [
        (
            [(9.0, 1), (7.0, 3), (8.0, 2)],
            1,
            "of the 3 that were weighed another than the first was kept: 7 against 9 and 8 cycles estimated",
        ),
        ([(7.0, 3), (None, 1)], 0, "weighed the first was kept: 7 against unknown cycles estimated"),
        (
            [(None, 3 << 20), (5.0, 1 << 20)],
            1,
            "weighed another than the first was kept: 1.0 MiB against 3.0 MiB compiled",
        ),
        ([(7.0, 3), (7.0, 1)], 0, "weighed the first was kept: 7 against 7 cycles estimated"),
    ],
)
def test_the_compilers_estimate_decides_and_memory_where_there_is_none(monkeypatch, choices, kept, why):
    monkeypatch.setattr("exla.search.weigh.cycles_of", lambda attempt, choice: choice.cycles)
    made = [Weighed(*choice) for choice in choices]
    found, words = weigh(
        SimpleNamespace(options=SimpleNamespace(verify="compile"), target=SimpleNamespace(platform="tpu")), made
    )
    assert made.index(found) == kept and words.endswith(why)


def test_what_is_timed_is_kept_instead_only_where_it_is_faster_by_more_than_noise(monkeypatch):
    shares = {"a": 0.98, "b": 0.95}

    def timed(program, reference, seconds):
        return Timing(status="ok", run_s=3.0 * shares[program], reference_s=3.0)

    monkeypatch.setattr("exla.search.weigh.timed", timed)
    attempt = SimpleNamespace(
        options=SimpleNamespace(verify="run"),
        target=SimpleNamespace(platform="cpu"),
        call=SimpleNamespace(inline=False),
        runnable=lambda program, decisions: program,
    )
    first, slower, faster = (SimpleNamespace(program=name, decisions=()) for name in ("first", "a", "b"))
    assert weigh(attempt, [first, slower])[0] is first
    kept, words = weigh(attempt, [first, slower, faster])
    assert kept is faster and words.endswith(
        "another than the first was kept: 0.95 against 1.00 and 0.98 of the first one's time"
    )


def test_a_folder_of_weights_for_others_says_so(weights, monkeypatch):
    monkeypatch.setenv("EXLA_WEIGHTS", str(weights))
    find_ranker.cache_clear()
    with pytest.warns(ExlaWarning, match=r"none is called tpu-v5e.npz or tpu-v5e.0.npz, .*there are cpu.0.npz"):
        assert find_ranker("tpu:v5e") is None
    find_ranker.cache_clear()


def test_models_that_disagree_are_in_doubt():
    close = Ranking(order=(1, 0), scores=(0.1, 0.0), doubts=(0.3, 0.0), weights="")
    clear = Ranking(order=(1, 0), scores=(0.9, 0.0), doubts=(0.3, 0.1), weights="")
    assert close.is_close(1, 0) and not clear.is_close(1, 0)
