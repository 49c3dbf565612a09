"""Discovery: what is equal is found, what is not is not, and a run that is killed ends as one that is not."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from exla import cli
from exla.rules.discover import fingerprint as fields
from exla.rules.discover.cost import REFERENCE_SIZES, cost_of, pays, peak_elements
from exla.rules.discover.enumerate import enumerate_graphs, signatures
from exla.rules.discover.fingerprint import fingerprint
from exla.rules.discover.prune import best_pairs, generalised, pruned, simplifications
from exla.rules.discover.run import Search, discover, family
from exla.rules.discover.state import StateError
from exla.rules.discover.terms import (
    by_operation,
    canonical,
    from_graph,
    inputs_of,
    make,
    rewrites,
    size_of,
    to_graphs,
)
from exla.rules.discover.verify import PROVED, TESTED, agree_on_basis, is_affine, is_equal_at_random, verify
from exla.rules.graphs import Graph


def array(number, axes):
    return ("in", number, axes)


def dot(axes, x, y):
    return make("dot", axes, x, y)


def add(x, y):
    return make("add", "", x, y)


def times(x, y):
    return make("multiply", "", x, y)


def total(axes, x):
    return make("sum", axes, x)


def exp(x):
    return make("exp", "", x)


def log(x):
    return make("log", "", x)


def spread(axes, x):
    return make("broadcast", axes, x)


A, B, C = array(0, "ij"), array(1, "jk"), array(2, "ij")
u, v, w = array(3, "i"), array(4, "j"), array(5, "k")

PROVABLE = {
    "a product of matrices is associative": (dot("k", dot("j", A, B), w), dot("j", A, dot("k", B, w))),
    "a sum moves into a product": (total("i", dot("j", A, B)), dot("j", total("i", A), B)),
    "a sum of products is a product of a sum": (add(dot("j", A, B), dot("j", C, B)), dot("j", add(A, C), B)),
    "a product with a sum of vectors": (dot("j", add(u, v), A), add(times(u, total("j", A)), dot("j", v, A))),
    "an outer product is never made": (dot("j", times(u, v), A), times(u, dot("j", v, A))),
    "a sum of a product is a dot": (total("j", times(A, B)), dot("j", A, B)),
    "sums are one sum": (total("i", total("j", A)), total("ij", A)),
}
TESTABLE = {
    "the exponential of a sum": (exp(add(u, v)), times(exp(u), exp(v))),
    "a kernel that factorises": (dot("j", exp(add(u, v)), B), times(exp(u), dot("j", exp(v), B))),
    "log-sum-exp of a sum": (log(total("j", exp(add(u, v)))), add(u, log(total("j", exp(v))))),
    "the logarithm of an exponential": (add(u, log(exp(A))), add(u, A)),
    "the logarithm of a product": (log(times(exp(u), exp(A))), add(u, A)),
    "a square of a product": (dot("k", dot("j", A, B), dot("j", A, B)), dot("j", A, dot("k", B, dot("j", A, B)))),
    "a sum over a constant": (total("j", add(u, A)), add(total("j", spread("j", u)), total("j", A))),
}
FALSE = {
    "matrices do not commute": (dot("j", A, array(1, "ij")), dot("i", A, array(1, "ij"))),
    "a product in place of a sum": (add(dot("j", A, B), dot("j", C, B)), dot("j", times(A, C), B)),
    "exp of a sum over an axis": (exp(total("j", A)), total("j", exp(A))),
    "log of a sum over an axis": (log(total("j", exp(A))), total("j", log(exp(A)))),
    "a product of sums": (times(total("j", A), total("j", C)), total("j", times(A, C))),
    "sums over different axes": (total("j", dot("k", B, array(6, "ik"))), total("i", dot("k", B, array(6, "ik")))),
    "squares of sums": (times(add(u, v), add(u, v)), add(times(u, u), times(v, v))),
    "a size forgotten": (total("j", add(u, A)), add(u, total("j", A))),
    "twice and three times": (add(u, u), add(u, add(u, u))),
}


@pytest.mark.parametrize("name", [*PROVABLE, *TESTABLE])
def test_what_is_equal_has_one_fingerprint(name):
    first, second = {**PROVABLE, **TESTABLE}[name]
    assert fingerprint(first, 0) == fingerprint(second, 0) is not None


@pytest.mark.parametrize("name", FALSE)
def test_what_differs_has_two_fingerprints_and_fails_verification(name):
    first, second = FALSE[name]
    assert fingerprint(first, 0) != fingerprint(second, 0)
    assert verify((first, second), 0) is None


@pytest.mark.parametrize("name", PROVABLE)
def test_what_is_affine_in_every_input_is_proved(name):
    assert verify(PROVABLE[name], 0) == PROVED


@pytest.mark.parametrize("name", TESTABLE)
def test_the_rest_is_tested(name):
    assert verify(TESTABLE[name], 0) == TESTED


def test_the_basis_tells_apart_what_agrees_on_most_of_it():
    x, y = array(0, "ij"), array(1, "ij")
    assert agree_on_basis((dot("j", x, y), times(total("j", x), total("j", y)))) is False


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (dot("j", A, B), True),
        (dot("j", add(A, C), B), True),
        (dot("j", A, C), True),
        (dot("j", A, A), False),
        (dot("j", A, dot("j", A, B)), False),
        (exp(A), False),
        (total("j", spread("j", u)), False),
        (total("j", add(u, A)), False),
        (total("j", times(u, A)), True),
    ],
    ids=str,
)
def test_a_proof_needs_products_of_different_inputs_and_no_sum_over_a_constant(term, expected):
    assert is_affine(term) is expected


def test_logarithms_are_those_of_the_powers():
    exponents = np.array([0, 1, 2, 12345, fields.Q - 1])
    np.testing.assert_array_equal(fields._logarithms()[fields._powers()[exponents]], exponents)
    assert len(set(fields._powers().tolist())) == fields.Q


def test_an_exponential_has_no_exponential():
    assert fingerprint(exp(exp(A)), 0) is None
    assert fingerprint(log(A), 0) is None


def test_fingerprints_are_the_same_in_another_process():
    term = log(total("j", exp(add(u, v))))
    code = (
        "from exla.rules.discover.fingerprint import fingerprint; from exla.rules.discover.terms import make;"
        f"print(fingerprint({term!r}, 7).hex())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.strip() == fingerprint(term, 7).hex() != fingerprint(term, 8).hex()


def test_operands_and_names_make_no_other_pair():
    pair = PROVABLE["a product of matrices is associative"]
    other = (
        dot("i", array(5, "i"), dot("k", array(1, "ik"), array(0, "jk"))),
        dot("k", array(0, "jk"), dot("i", array(1, "ik"), array(5, "i"))),
    )
    assert canonical(pair) == canonical(other)
    assert canonical(pair) != canonical(PROVABLE["a sum moves into a product"])


def test_terms_are_graphs():
    for pair in (*PROVABLE.values(), *TESTABLE.values()):
        if pair[1][0] != "in":
            first, second = to_graphs(canonical(pair))
            assert first.inputs == second.inputs and first.output == second.output
            assert from_graph(Graph.from_json(first.to_json())) == canonical(pair)[0]


def test_a_shared_subgraph_becomes_an_input():
    first, second = dot("j", dot("k", B, w), A), total("j", times(A, dot("k", B, w)))
    general = generalised((first, second), 0)
    assert max(map(size_of, general)) == 2
    assert len(inputs_of(general[0])) == 2


def test_a_shared_subgraph_stays_where_the_pair_needs_it():
    x = exp(u)
    pair = (log(times(x, exp(v))), add(log(x), v))
    assert generalised(pair, 0) == pair


def test_a_rule_is_used_inside_on_batches_and_on_several_axes():
    rule = canonical(PROVABLE["a product of matrices is associative"])
    batched = dot("k", dot("j", array(0, "ijl"), array(1, "jkl")), array(2, "kl"))
    wanted = dot("j", array(0, "ijl"), dot("k", array(1, "jkl"), array(2, "kl")))
    assert exp(wanted) in set(rewrites(exp(batched), by_operation([rule])))
    joint = dot("k", dot("ij", array(0, "ijl"), array(1, "ijk")), array(2, "k"))
    assert dot("ij", array(0, "ijl"), dot("k", array(1, "ijk"), array(2, "k"))) in set(
        rewrites(joint, by_operation([rule]))
    )


def test_a_rule_is_not_used_where_its_axes_do_not_fit():
    rule = canonical(PROVABLE["a product of matrices is associative"])
    tied = dot("k", dot("j", array(0, "ijk"), array(1, "jk")), array(2, "k"))
    made = set(rewrites(tied, by_operation([rule])))
    assert all(fingerprint(term, 0) == fingerprint(tied, 0) for term in made)
    assert dot("j", array(0, "ijk"), dot("k", array(1, "jk"), array(2, "k"))) not in made


def test_a_rule_over_an_axis_is_not_used_on_what_is_constant_along_it():
    x, y = array(0, "j"), array(1, "j")
    rule = (total("j", add(x, y)), add(total("j", x), total("j", y)))
    assert list(rewrites(total("j", add(A, C)), by_operation([rule])))
    assert not list(rewrites(total("j", add(u, A)), by_operation([rule])))


def test_every_rewrite_of_a_graph_is_equal_to_it():
    rules = by_operation(canonical(p) for p in PROVABLE.values())
    for pair in (*PROVABLE.values(), *TESTABLE.values()):
        for made in rewrites(pair[0], rules):
            assert fingerprint(made, 0) == fingerprint(pair[0], 0)


def test_what_another_rule_gives_is_pruned():
    rule = canonical(PROVABLE["a product of matrices is associative"])
    first, second = PROVABLE["a product of matrices is associative"]
    inside = canonical((exp(first), exp(second)))
    assert pruned([inside, rule], [], lambda pair: True) == [rule]
    assert pruned([inside], [], lambda pair: True) == [inside]


def test_what_is_refused_is_not_kept():
    rule = canonical(PROVABLE["a product of matrices is associative"])
    assert pruned([rule], [], lambda pair: False) == []


def test_simplifications_leave_the_peak():
    found = simplifications([("i", "ij"), ("ij",)], 0)
    assert canonical(PROVABLE["sums are one sum"]) in found
    for first, second in found:
        assert size_of(second) < size_of(first)
        assert not pays(cost_of(first), cost_of(second)).any()


def test_a_product_is_stored_where_a_dot_reads_it_and_fused_where_a_sum_does():
    large = REFERENCE_SIZES.index(dict.fromkeys("ijkl", 4096))
    assert peak_elements(dot("j", times(u, v), A))[large] == 4096**2 + 4096
    assert peak_elements(total("j", times(times(u, v), A)))[large] == 4096


def test_signatures_are_different_up_to_renaming():
    found = signatures(2)
    assert found[:2] == [("i",), ("ij",)]
    assert ("ij", "ik") in found and ("ij", "jk") not in found
    assert len(found) == 9


def test_every_graph_is_enumerated_once_with_the_equations_it_has():
    found = enumerate_graphs(("i",), 4, 0)
    terms = [term for terms in found.equal for term in terms]
    assert len(terms) == len(set(terms))
    assert {size_of(term) for term in terms} == {1, 2, 3, 4}
    assert found.graphs == {1: 5, 2: 36, 3: 308, 4: 3034}
    assert found.classes == {1: 5, 2: 30, 3: 218, 4: 1980}


def found_over(signature, equations):
    return {canonical(p) for p in best_pairs(enumerate_graphs(signature, equations, 0).equal, 0)}


@pytest.mark.parametrize(
    ("signature", "equations", "name"),
    [
        (("i", "ij", "jk"), 2, "a product of matrices is associative"),
        (("i", "ij", "j"), 2, "an outer product is never made"),
        (("ij", "ik"), 2, "a sum moves into a product"),
        (("ij", "ij", "ik"), 3, "a sum of products is a product of a sum"),
    ],
)
def test_known_rules_are_found(signature, equations, name):
    assert canonical(PROVABLE[name]) in found_over(signature, equations)


def test_everything_found_verifies():
    found = found_over(("i", "ij", "j"), 2) | found_over(("i", "i"), 3)
    assert len(found) > 20
    for pair in found:
        assert is_equal_at_random(pair, 1), pair
        assert pays(*map(cost_of, pair)).any(), pair


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (PROVABLE["a product of matrices is associative"], "contraction"),
        (PROVABLE["a sum of products is a product of a sum"], "other"),
        (TESTABLE["a kernel that factorises"], "other"),
        (TESTABLE["the logarithm of an exponential"][::-1], "other"),
        (TESTABLE["the logarithm of an exponential"], "degenerate"),
        ((dot("j", spread("j", exp(u)), A), times(exp(u), total("j", A))), "degenerate"),
        ((dot("j", add(v, v), A), add(dot("j", v, A), dot("j", v, A))), "degenerate"),
    ],
    ids=["product", "sum", "exp", "log", "log of exp", "broadcast", "twice"],
)
def test_products_in_another_order_are_told_from_the_rest(pair, expected):
    assert family(pair) == expected


# Runs

SMALL = Search(equations=2, inputs=2)


def without_times(result):
    return {k: v for k, v in result.items() if k != "seconds"}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return discover(SMALL, tmp_path_factory.mktemp("state") / "state.jsonl")


def test_the_same_search_gives_the_same_result(uninterrupted, tmp_path):
    assert without_times(discover(SMALL, tmp_path / "state.jsonl")) == without_times(uninterrupted)
    assert uninterrupted["counts"]["kept"]["2"] == len(uninterrupted["rules"]) > 0


class Killed(Exception):
    """Stands for the death of the process."""


def test_a_killed_run_goes_on_where_it_was(uninterrupted, tmp_path):
    state = tmp_path / "state.jsonl"

    def die(done, total, doing):
        if done == 4:
            raise Killed

    with pytest.raises(Killed):
        discover(SMALL, state, progress=die)
    whole = state.read_bytes()
    state.write_bytes(whole + b'{"signature": "i j", "gra')
    begun = []
    result = discover(SMALL, state, progress=lambda done, total, doing: begun.append(doing))
    assert without_times(result) == without_times(uninterrupted)
    assert begun == [*(" ".join(s) for s in signatures(2)[4:]), "prune and verify"]
    lines = [json.loads(line) for line in state.read_text().splitlines()]
    assert state.read_bytes().startswith(whole)
    assert len(lines) == 1 + len(signatures(2)) == 1 + len({line["signature"] for line in lines[1:]})


def test_a_budget_stops_a_run_that_can_go_on(uninterrupted, tmp_path):
    state = tmp_path / "state.jsonl"
    assert discover(SMALL, state, budget_s=0) is None
    assert without_times(discover(SMALL, state)) == without_times(uninterrupted)


def test_a_state_of_another_search_is_refused(tmp_path):
    state = tmp_path / "state.jsonl"
    assert discover(SMALL, state, budget_s=0) is None
    with pytest.raises(StateError, match=r"is of another run \(search differ\); begin anew with --again"):
        discover(Search(equations=2, inputs=1), state)
    assert discover(Search(equations=2, inputs=1), state, again=True) is not None


def test_a_damaged_state_is_refused(tmp_path):
    state = tmp_path / "state.jsonl"
    state.write_text("{}\nnonsense\n")
    with pytest.raises(StateError, match="is damaged"):
        discover(SMALL, state)


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    out = tmp_path / "found.json"
    words = ["rules", "discover", "--equations", "2", "--inputs", "1", "--out", str(out), "--json"]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())
    assert list(tmp_path.iterdir()) == [out]


def test_the_command_says_that_the_budget_ran_out(tmp_path, capsys):
    out = tmp_path / "found.json"
    assert cli.main(["rules", "discover", "--inputs", "1", "--out", str(out), "--budget-s", "0"]) == 1
    assert "run again to go on" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "words",
    [[], ["rules"], ["nonsense"], ["rules", "discover", "--equations", "99"], ["rules", "discover", "--seed", "-1"]],
    ids=" ".join,
)
def test_what_is_not_understood_has_exit_code_2(words, capsys):
    try:
        code = cli.main(words)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert "exla" in capsys.readouterr().err
