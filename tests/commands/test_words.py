"""Candidates in words: different ones read differently, in every list of them."""

import itertools
import re

import jax
import pytest

import exla
from exla.datasets.profiling.zoo.programs import ZOO
from exla.passes.decisions import CompileOption, Growth, Site, Split, Store
from exla.report.plan import NOT_APPLIED, explain_text
from exla.report.words import PLAIN, in_words

SPLIT = {"path": (), "site": Site(position=3, fingerprint="abc"), "result": 0, "axis": 1, "chunk": 8}
WHOLE, WHOLE_MORE, EXACT = Growth(small_bytes=4096), Growth(small_bytes=8192), Growth(small_bytes=8192, exact=True)
OPTION = CompileOption(name="o", value="v")
KEPT = {"path": (), "site": SPLIT["site"], "result": 0, "how": "host"}

CASES = {
    "what reads differently is left as it is": (
        [(Split(**SPLIT, growth=WHOLE),), (Split(**SPLIT, growth=WHOLE), OPTION), ()],
        [
            "split axis 1 of equation 3, chunks of 8",
            "split axis 1 of equation 3, chunks of 8; compile option o='v'",
            PLAIN,
        ],
    ),
    "the same candidate reads the same": ([(OPTION,), (OPTION,)], ["compile option o='v'"] * 2),
    "thresholds": (
        [(Split(**SPLIT, growth=growth), OPTION) for growth in (WHOLE, WHOLE_MORE)],
        [
            f"split axis 1 of equation 3, chunks of 8 (values up to {count} bytes stay whole); compile option o='v'"
            for count in ("4,096", "8,192")
        ],
    ),
    "which result": (
        [(Split(**{**SPLIT, "result": k}, growth=WHOLE),) for k in (0, 1)],
        [f"split axis 1 of equation 3, chunks of 8 (result {k})" for k in (0, 1)],
    ),
    "no more than is needed": (
        [
            (Store(**KEPT, early=k), OPTION, Split(**SPLIT, growth=growth))
            for k, growth in ((0, WHOLE), (2, WHOLE_MORE))
        ],
        [
            f"keep result 0 of equation 3 in the host's memory (the first {k} readers read it as it was computed); "
            "compile option o='v'; split axis 1 of equation 3, chunks of 8"
            for k in (0, 2)
        ],
    ),
    "hashes last": (
        [
            (Split(**{**SPLIT, "site": Site(position=3, fingerprint=hashed)}, growth=growth),)
            for hashed, growth in (("a", WHOLE), ("b", EXACT))
        ],
        [
            f"split axis 1 of equation 3, chunks of 8 (values up to {count} bytes stay whole)"
            for count in ("4,096", "8,192")
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_candidates_are_told_apart_by_what_differs_and_by_no_more(case):
    candidates, said = CASES[case]
    assert ["; ".join(words) for words in in_words(candidates)] == said


@pytest.mark.parametrize("name", ["rbf_product", "viterbi", "structure_factor", "additive_product"])
def test_no_two_candidates_of_a_space_read_the_same(name):
    program = ZOO[name]
    arguments = program.arguments(program.tiny)
    held = sum(x.nbytes for x in jax.tree.leaves(arguments))
    space = exla.jit(program.function, memory_limit=2 * held, records="off").space(*arguments)
    listed = [c.all_decisions for c in itertools.islice(space.all(), 60)]
    words = ["; ".join(words) for words in in_words(listed)]
    assert len(set(words)) == len(set(listed)) > 20
    assert len(set(words)) > len({"; ".join(map(str, decisions)) for decisions in listed})  # it takes telling


def test_no_two_candidates_of_a_plan_read_the_same():
    x = jax.ShapeDtypeStruct((400, 3), "float32")
    plan = exla.jit(lambda x: jax.numpy.exp(x @ x.T).sum(0), memory_limit="32KiB").plan(x)
    assert len(plan.tried) > 1 and plan.tried[-1].decisions == plan.decisions
    assert len({t.what for t in plan.tried}) == len({t.decisions for t in plan.tried})


def test_a_rule_that_is_not_applied_says_what_it_does_and_why_not():
    x = jax.ShapeDtypeStruct((200, 3), "float32")

    def near(x):
        squared = ((x[:, None] - x[None]) ** 2).sum(-1)
        return jax.lax.top_k(-squared, 3)

    plan = exla.jit(near, memory_limit="30KiB", records="off").plan(x)
    guarded, dear = plan.declined
    assert guarded.startswith("squared_distance, sum((x - y)^2) -> |x|^2 + |y|^2 - 2 x.y: `top_k` reads it, which may")
    assert "test_words.py" in guarded
    does, _, reason = dear.partition(": ")
    assert does.startswith("nearest_top_k_ranked, top_k of distances -> candidates")
    assert re.match(
        r"the rewrite would not pay: with it, before any split, the program is projected to take [\d.]+ KiB and [\d.]+ "
        r"ms; without it, [\d.]+ KiB and [\d.]+ ms",
        reason,
    )
    text = explain_text(plan)
    assert f"\n{NOT_APPLIED}\n  {guarded}\n" in text and '"it" is what stands left of ->' in text
