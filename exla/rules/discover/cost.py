"""What a term costs: peak temporary memory and arithmetic, at all assignments of small and large sizes at once.

The same model of fusion as `exla.ir.memory.project`, without tracing: an element-wise value that only element-wise
operations and sums read is never stored, an element-wise result may take the place of an operand that dies. It is used
to choose among hundreds of thousands of terms; what a kept rule saves is then measured by `project` itself."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np

from exla.rules.discover.terms import LETTERS, Term, axes_of, inputs_of, subterms

SMALL, LARGE = 64, 4096
AXES = 4
REFERENCE_SIZES = tuple(
    dict(zip(LETTERS[:AXES], sizes, strict=True)) for sizes in itertools.product((SMALL, LARGE), repeat=AXES)
)
"""Every axis small or large."""

CHEAP = ("add", "multiply", "broadcast")
ELEMENTWISE = (*CHEAP, "exp", "log")
LEAST_GAIN = 1.5
LEAST_SHARE = 0.25
PRODUCT_SPEED = 8
"""How many times as fast a matrix product multiplies and adds as element-wise operations do."""
MOST_ARITHMETIC = 2.0


@cache
def elements(axes: str) -> np.ndarray:
    """Elements of an array with such axes, one number per reference assignment."""
    return np.array([np.prod([sizes[a] for a in axes], dtype=np.float64) for sizes in REFERENCE_SIZES])


def peak_elements(term: Term) -> np.ndarray:
    """Peak number of elements that are stored beside the inputs, the result included; one per reference assignment."""
    order = [t for t in subterms(term) if t[0] != "in"]
    readers: dict[Term, list[str]] = {}
    for t in order:
        for operand in t[2:]:
            readers.setdefault(operand, []).append(t[0])
    roots: dict[Term, tuple[Term, ...]] = {}
    last: dict[Term, int] = {}
    for position, t in enumerate(order):
        sources = [r for operand in t[2:] for r in roots.get(operand, ())]
        last.update((r, position) for r in sources)
        is_virtual = t is not term and _is_virtual(t[0], readers[t])
        roots[t] = tuple(dict.fromkeys(sources)) if is_virtual else (t,)
    last[term] = len(order)
    peak = np.zeros(len(REFERENCE_SIZES))
    live: dict[Term, np.ndarray] = {}
    for position, t in enumerate(order):
        dying = [r for r in live if last[r] <= position]
        if roots[t] == (t,):
            live[t] = elements(axes_of(t))
            now = sum(live.values())
            if t[0] in ELEMENTWISE and dying:
                now = now - np.minimum(sum(live[r] for r in dying), live[t])
            peak = np.maximum(peak, now)
        for r in dying:
            del live[r]
    return peak


def arithmetic(term: Term) -> np.ndarray:
    """Element-wise operations, one number per reference assignment; `exp` and `log` count as ten."""
    total = np.zeros(len(REFERENCE_SIZES))
    for t in subterms(term):
        if t[0] in ("dot", "sum"):
            total += (2 / PRODUCT_SPEED if t[0] == "dot" else 1) * elements("".join(sorted({*axes_of(t), *t[1]})))
        elif t[0] in ELEMENTWISE:
            total += (10 if t[0] in ("exp", "log") else 1) * elements(axes_of(t))
    return total


@dataclass(frozen=True, eq=False, slots=True)
class Cost:
    """Elements of the inputs, peak elements and arithmetic of a term, one number per reference assignment."""

    inputs: np.ndarray
    peak: np.ndarray
    arithmetic: np.ndarray

    def order(self) -> float:
        """Cheaper terms come first: by the geometric mean of peak times arithmetic."""
        return round(float(np.log2(self.peak * self.arithmetic).mean()), 6)


def cost_of(term: Term) -> Cost:
    """The cost of a term that has an equation."""
    inputs = sum(elements("".join(sorted(t[2]))) for t in inputs_of(term))
    return Cost(np.asarray(inputs), peak_elements(term), arithmetic(term))


def pays(before: Cost, after: Cost) -> np.ndarray:
    """Where a rewrite lowers the peak by the factor LEAST_GAIN, by more than LEAST_SHARE of what the inputs take, and
    multiplies the arithmetic by at most MOST_ARITHMETIC."""
    lower = (after.peak * LEAST_GAIN <= before.peak) & (before.peak - after.peak >= LEAST_SHARE * before.inputs)
    return lower & (after.arithmetic <= MOST_ARITHMETIC * before.arithmetic)


def is_worth_keeping(before: Cost, after: Cost) -> bool:
    """Whether a rewrite pays at more assignments than its reverse, or at as many and with less arithmetic."""
    gains, losses = pays(before, after).sum(), pays(after, before).sum()
    return bool(gains > losses or gains == losses > 0 and after.arithmetic.sum() < before.arithmetic.sum())


def _is_virtual(op: str, readers: list[str]) -> bool:
    fused = all(r in ELEMENTWISE or r == "sum" for r in readers)
    return op in ELEMENTWISE and fused and (op in CHEAP or len(readers) <= 1)
