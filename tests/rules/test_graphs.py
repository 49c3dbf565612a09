"""Graphs as data: what is written is read, what is wrong is refused by name, and the function is what the data says."""

import json

import numpy as np
import pytest

from exla.rules.discover.terms import from_graph
from exla.rules.discover.verify import evaluate
from exla.rules.graphs import Equation, Graph, as_function
from exla.rules.replace import discovered

pytestmark = pytest.mark.usefixtures("compiled_quickly")

CHAIN = Graph(
    inputs=("ij", "jk", "k"),
    equations=(
        Equation(op="dot", operands=(0, 1), axes="j"),
        Equation(op="dot", operands=(3, 2), axes="k"),
    ),
    output="i",
)


def data(**changes):
    return {**CHAIN.to_json(), **changes}


def test_a_graph_survives_json():
    assert Graph.from_json(json.loads(json.dumps(CHAIN.to_json()))) == CHAIN


def test_a_graph_reads_as_a_formula():
    assert str(CHAIN) == "sum_k(sum_j(A[ij] * B[jk]) * C[k])"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "an object of inputs, equations and output"),
        ({**data(), "more": 1}, "an object of inputs, equations and output"),
        (data(inputs="ij"), "inputs must be a list"),
        (data(inputs=[]), "1 to 8 inputs, not 0"),
        (data(inputs=["ij", 3, "k"]), "must be texts"),
        (data(inputs=["ij", "jj", "k"]), "input 1 has the axes 'jj'"),
        (data(inputs=["ij", "j9", "k"]), "input 1 has the axes 'j9'"),
        (data(inputs=["ij", "jk", "k", *["abcdef"]]), "at most 6 axes"),
        (data(equations=[]), "1 to 16 equations, not 0"),
        (data(equations=[["dot", [0, 1], "j"]] * 17), "1 to 16 equations, not 17"),
        (data(equations=["dot"]), r"equation 0 must be \[op, \[operands\], axes\]"),
        (data(equations=[["__import__", [0], ""]]), "equation 0: unknown operation '__import__'; there are: add"),
        (data(equations=[["exp", [0, 1], ""]]), "equation 0: exp has 1 operands, not 2"),
        (data(equations=[["exp", [3], ""]]), "equation 0: operand 3 is out of range"),
        (data(equations=[["exp", [-1], ""]]), "equation 0: operand -1 is out of range"),
        (data(equations=[["exp", [True], ""]]), "equation 0: operands must be numbers"),
        (data(equations=[["exp", [0], "i"]]), "equation 0: exp takes no axes, but names 'i'"),
        (data(equations=[["sum", [0], ""]]), "equation 0: sum names no axes"),
        (data(equations=[["sum", [0], "ji"]]), "not different and in alphabetical order"),
        (data(equations=[["sum", [0], "k"]]), "equation 0: sum sums over 'k', which not every operand has"),
        (data(equations=[["dot", [0, 1], "i"]]), "equation 0: dot sums over 'i', which not every operand has"),
        (data(equations=[["broadcast", [0], "i"]]), "broadcast adds 'i'"),
        (data(equations=[["broadcast", [0], "z"]]), "broadcast adds 'z'"),
        (data(output="j"), "output='j' is no order of the result's axes 'i'"),
        (data(output=None), "must be texts"),
        (
            data(equations=[["exp", [0], ""], ["exp", [0], ""]], output="ij"),
            r"value 3 \(equation 0\) is read by nothing",
        ),
    ],
)
def test_what_is_wrong_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        Graph.from_json(wrong)


def graph(inputs, equations, output):
    return Graph.from_json({"inputs": inputs, "equations": equations, "output": output})


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (CHAIN, lambda a, b, v: a @ b @ v),
        (graph(["ij", "kj"], [["dot", [0, 1], "j"]], "ki"), lambda a, b: b @ a.T),
        (graph(["ij", "ik"], [["dot", [0, 1], "i"]], "jk"), lambda a, b: a.T @ b),
        (graph(["ji", "ij"], [["add", [0, 1], ""]], "ij"), lambda a, b: a.T + b),
        (graph(["j", "i"], [["multiply", [0, 1], ""]], "ij"), lambda a, b: np.outer(b, a)),
        (graph(["kij", "jk"], [["dot", [0, 1], "j"]], "ik"), lambda a, b: np.einsum("kij,jk->ik", a, b)),
        (graph(["ij", "ij"], [["dot", [0, 1], "ij"]], ""), lambda a, b: np.sum(a * b)),
        (graph(["i", "ij"], [["broadcast", [0], "j"], ["add", [2, 1], ""]], "ji"), lambda a, b: (a[:, None] + b).T),
        (
            graph(["ij"], [["exp", [0], ""], ["sum", [1], "i"], ["log", [2], ""]], "j"),
            lambda a: np.log(np.exp(a).sum(0)),
        ),
    ],
    ids=lambda x: str(x) if isinstance(x, Graph) else "expected",
)
def test_the_function_is_what_the_graph_says(one, expected):
    sizes = {"i": 3, "j": 4, "k": 2}
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=[sizes[a] for a in axes]) for axes in one.inputs]
    np.testing.assert_allclose(as_function(one)(*arrays), expected(*arrays), rtol=1e-5)


def test_one_axis_has_one_size():
    with pytest.raises(ValueError, match="axis j has the sizes 3 and 4"):
        as_function(CHAIN)(np.ones((2, 3)), np.ones((4, 5)), np.ones(5))


def test_the_exact_value_of_a_term_is_that_of_its_function():
    term = from_graph(CHAIN)
    a, b, v = (np.random.default_rng(0).integers(-3, 4, shape) for shape in ((3, 4), (4, 2), (2,)))
    places = {"ij": (1, 3, 4, 1, 1, 1, 1), "jk": (1, 1, 4, 2, 1, 1, 1), "k": (1, 1, 1, 2, 1, 1, 1)}
    arrays = {("in", n, x): v.reshape(places[x]) for n, (x, v) in enumerate(zip(CHAIN.inputs, (a, b, v), strict=True))}
    np.testing.assert_array_equal(evaluate(term, arrays, {"i": 3, "j": 4, "k": 2}).reshape(-1), a @ b @ v)


RULE = {
    "name": "discovered_1",
    "family": "other",
    "pattern": CHAIN.to_json(),
    "replacement": {**CHAIN.to_json(), "equations": [["dot", [1, 2], "k"], ["dot", [0, 3], "j"]]},
}


def rules_file(tmp_path, *rules, **changes):
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"schema_version": 1, "rules": list(rules), **changes}))
    return path


def test_rules_are_read(tmp_path):
    rule = discovered.read(rules_file(tmp_path, RULE))["discovered_1"]
    assert rule.rewrite == "sum_k(sum_j(A[ij] * B[jk]) * C[k]) -> sum_j(A[ij] * sum_k(B[jk] * C[k]))"
    assert rule.arguments == {"a": "i j", "b": "j k", "c": "k"}
    assert rule.examples[0].arguments == ("6 4", "4 5", "5")


@pytest.mark.parametrize("family", ["contraction", "degenerate"])
def test_what_the_engine_has_no_use_for_is_data_only(tmp_path, family):
    assert discovered.read(rules_file(tmp_path, {**RULE, "family": family})) == {}


@pytest.mark.parametrize("family", ["contraction", "degenerate"])
def test_what_is_data_only_is_checked_where_the_whole_file_is(tmp_path, family):
    damaged = rules_file(tmp_path, {**RULE, "family": family, "pattern": None})
    with pytest.raises(ValueError, match="discovered_1: pattern: a graph is an object"):
        discovered.read(damaged, whole=True)
    assert len(discovered.read(whole=True)) == len(discovered.read()) > 0


def test_long_patterns_are_data_only(tmp_path):
    longer = data(equations=[*RULE["pattern"]["equations"], ["exp", [4], ""], ["exp", [5], ""]])
    assert discovered.read(rules_file(tmp_path, {**RULE, "pattern": longer})) == {}


def test_discovered_rules_are_opt_in(tmp_path):
    assert discovered.read(rules_file(tmp_path, RULE))["discovered_1"].opt_in


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (lambda tmp: tmp / "absent.json", "absent.json cannot be read"),
        (lambda tmp: rules_file(tmp, schema_version=2), "rules.json is damaged: its schema_version is 2, not 1"),
        (lambda tmp: rules_file(tmp, rules=None), "not an object with a list of rules"),
        (lambda tmp: rules_file(tmp, 3), "rule 1 is not an object"),
        (lambda tmp: rules_file(tmp, {**RULE, "name": "exp"}), "rule 1 is named 'exp', not 'discovered_1'"),
        (lambda tmp: rules_file(tmp, {**RULE, "family": "mine"}), "discovered_1: family 'mine' is none of"),
        (lambda tmp: rules_file(tmp, {**RULE, "pattern": None}), "discovered_1: pattern: a graph is an object"),
        (lambda tmp: rules_file(tmp, {**RULE, "replacement": data(inputs=["ij", "jk", "ik"])}), "the replacement"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, path, message):
    with pytest.raises(ValueError, match=message):
        discovered.read(path(tmp_path))


def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path):
    path = rules_file(tmp_path, RULE)
    path.write_text(path.read_text()[:-30])
    with pytest.raises(ValueError, match="rules.json is damaged"):
        discovered.read(path)


def test_the_rules_of_the_package_hold_in_float32():
    for name, rule in discovered.read().items():
        generator = np.random.default_rng(0)
        arrays = [
            generator.normal(size=[int(n) for n in x.split()]).astype(np.float32) for x in rule.examples[0].arguments
        ]
        before, after = np.asarray(rule.patterns[0](*arrays)), np.asarray(rule.replacement(*arrays))
        bound = rule.tolerance * np.finfo(np.float32).eps * np.abs(before).max()
        np.testing.assert_allclose(after, before, rtol=0, atol=bound, err_msg=f"{name}: {rule.rewrite}")
