"""Pruning: of all equal graphs, one rule for each idea.

A pair is first made as general as it can be: a subgraph that both sides share becomes an input, where they stay equal
(`sum_j(A * exp(B))` in both is a case of `sum_j(A * C)`). Pairs that differ in names are one. Then, smallest first, a
pair is dropped if the rules that were kept before it already take its first side to something as good as its second.

    kept:     sum_k(sum_j(A[ij] * B[jk]) * v[k]) -> sum_j(A * sum_k(B * v))
    dropped:  exp(sum_k(sum_j(A[ij] * B[jk]) * v[k])) -> ...      one use of the rule that is kept
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from exla.rules.discover.cost import MOST_ARITHMETIC, Cost, cost_of, is_worth_keeping, pays
from exla.rules.discover.enumerate import enumerate_graphs
from exla.rules.discover.fingerprint import fingerprint
from exla.rules.discover.terms import (
    Pair,
    Term,
    axes_of,
    by_operation,
    canonical,
    inputs_of,
    replace,
    rewrites,
    size_of,
    subterms,
)

AS_GOOD = 1.25
MOST_TERMS = 60
MOST_INPUTS = 4

Rules = Mapping[str, Sequence[Pair]]


def best_pairs(equal: Iterable[Sequence[Term]], seed: int) -> list[Pair]:
    """From every class the pairs that lower the peak: a member, and one that is the cheapest on the whole or somewhere.

    Args:
      equal: terms that are equal, by class.
      seed: of the random values by which more general pairs are tried.

    Returns:
      Canonical pairs, each once, smallest first.
    """
    found: dict[Pair, None] = {}
    for terms in equal:
        costs = [cost_of(t) for t in terms if t[0] != "in"]
        if len(costs) < len(terms):
            continue
        for n, best in itertools.product(range(len(terms)), _cheapest(terms, costs)):
            if n != best and is_worth_keeping(costs[n], costs[best]):
                pair = generalised((terms[n], terms[best]), seed)
                few = len(inputs_of(pair[0])) <= MOST_INPUTS
                if few and is_worth_keeping(cost_of(pair[0]), cost_of(pair[1])):
                    found.setdefault(canonical(pair))
    return sorted(found, key=_order)


def _cheapest(terms: Sequence[Term], costs: Sequence[Cost]) -> list[int]:
    """Which terms are the cheapest on the whole, and which have the least peak of those with little arithmetic at each
    reference assignment; the former first."""
    ordered = sorted(range(len(terms)), key=lambda n: (costs[n].order(), size_of(terms[n]), repr(terms[n])))
    peaks = np.array([costs[n].peak for n in ordered])
    arithmetic = np.array([costs[n].arithmetic for n in ordered])
    at_some = np.argmin(np.where(arithmetic <= MOST_ARITHMETIC * arithmetic.min(axis=0), peaks, np.inf), axis=0)
    return list(dict.fromkeys([ordered[0], *(ordered[k] for k in at_some)]))


def generalised(pair: Pair, seed: int) -> Pair:
    """The pair with subgraphs that both sides share made inputs, largest first, where it stays equal."""
    shared = (set(subterms(pair[0])) & set(subterms(pair[1]))) - {pair[0], pair[1]}
    number = 1 + max(t[1] for t in inputs_of(pair[0]))
    for term in sorted((t for t in shared if t[0] != "in"), key=lambda t: (-size_of(t), repr(t))):
        if not any(term in subterms(side) for side in pair):
            continue
        table = {term: ("in", number, axes_of(term))}
        general = (replace(pair[0], table), replace(pair[1], table))
        if set(inputs_of(general[1])) <= set(inputs_of(general[0])) and _are_equal(general, seed):
            pair, number = general, number + 1
    return pair


def simplifications(signatures: Iterable[Sequence[str]], seed: int) -> list[Pair]:
    """What simplifies a graph and leaves its peak: pairs of two equations and one, such as two sums and their sum."""
    found: dict[Pair, None] = {}
    for signature in signatures:
        for first, *others in enumerate_graphs(signature, 2, seed).equal:
            for other in others:
                general = generalised((other, first), seed)
                if first[0] != "in" and size_of(general[1]) < size_of(general[0]) and not _pays_anywhere(general):
                    found.setdefault(canonical(general))
    return sorted(found, key=_order)


def pruned(pairs: Iterable[Pair], aids: Sequence[Pair], accept: Callable[[Pair], bool]) -> list[Pair]:
    """The pairs that no smaller ones give.

    Args:
      pairs: canonical pairs.
      aids: simplifications, which may be used on the way where they do not lower the peak.
      accept: verifies a pair; one that it refuses is not kept.
    """
    kept: list[Pair] = []
    simplifying = by_operation(aids)
    for pair in sorted(set(pairs), key=_order):
        if not _follows(pair, by_operation(kept), simplifying) and accept(pair):
            kept.append(pair)
    return kept


def _follows(pair: Pair, kept: Rules, aids: Rules) -> bool:
    """Whether other rules take the first side to something about as good as the second, wherever the pair pays."""
    after = cost_of(pair[1])
    where = pays(cost_of(pair[0]), after)
    for term in _reached(pair[0], kept, aids):
        if term[0] == "in":
            return True
        cost = cost_of(term)
        as_small = cost.peak <= AS_GOOD * after.peak
        if np.all((as_small & (cost.arithmetic <= MOST_ARITHMETIC * after.arithmetic))[where]):
            return True
    return False


def _keeps_peak(before: Cost, made: Term) -> bool:
    return made[0] != "in" and bool(np.all(AS_GOOD * cost_of(made).peak >= before.peak))


def _pays_anywhere(pair: Pair) -> bool:
    costs = [cost_of(term) for term in pair]
    return bool(np.any(pays(*costs)) or np.any(pays(*costs[::-1])))


def _reached(start: Term, kept: Rules, aids: Rules) -> Iterator[Term]:
    """What uses of the rules make of a term, nearest first."""
    reached, queue = {start}, deque([start])
    while queue:
        term = queue.popleft()
        cost = cost_of(term)
        for rules, is_aid in ((kept, False), (aids, True)):
            for made in rewrites(term, rules):
                if made in reached or is_aid and not _keeps_peak(cost, made):
                    continue
                reached.add(made)
                yield made
                if made[0] != "in":
                    queue.append(made)
                if len(reached) >= MOST_TERMS:
                    return


def _are_equal(pair: Pair, seed: int) -> bool:
    letters = {a for t in inputs_of(pair[0]) for a in t[2]}
    if any(not set(t[1]) <= letters for term in pair for t in subterms(term) if t[0] != "in"):
        return False  # no input is left to tell the size of an axis
    first = fingerprint(pair[0], seed)
    return first is not None and first == fingerprint(pair[1], seed)


def _order(pair: Pair) -> tuple[int, int, int, int, str]:
    inputs = inputs_of(pair[0])
    return (size_of(pair[0]), size_of(pair[1]), -len(inputs), sum(len(t[2]) for t in inputs), repr(pair))
