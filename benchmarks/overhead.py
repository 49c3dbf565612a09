"""What one cached call costs beyond jax.jit's: a tiny program, called many times, taking turns.

    python -m benchmarks.overhead [--calls 2000] [--rounds 9]

The ways to call:

- one signature; keyword arguments and a pytree; a method;
- two signatures: a function that was planned for two, neither of them split;
- mixed: a function that was planned for two, one of them split; the other is timed;
- split: the one that was split, against jax's own `Compiled` of the same program.

Prints the medians and their ratios.
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import exla
from benchmarks import record

SPLIT_LIMIT = "12KiB"
"""Arguments and results of `outer_sum` for 64 values are 0.5 KiB, its matrix is 16 KiB."""


def tree_sum(state, *, scale):
    return {name: value * scale for name, value in state.items()}


def outer_sum(a):
    return jnp.sum(jnp.exp(a[:, None] - a[None]), axis=1)


def with_method(wrap: Callable[..., Any]) -> Any:
    class Model:
        @functools.partial(wrap, static_argnums=0)
        def apply(self, a):
            return a + 1

    return Model()


def prepare() -> dict[tuple[str, str], Callable[[], Any]]:
    """(case, "jax" or "exla") -> a call that has been made before."""
    x, y, big = jnp.ones(8), jnp.ones(16), jnp.ones(64)
    state = {f"w{k}": jnp.ones(4) for k in range(10)}
    cases: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, wrap in (("jax", jax.jit), ("exla", functools.partial(exla.jit, memory_limit="1GiB"))):
        one, tree, two, model = wrap(lambda a: a + 1), wrap(tree_sum), wrap(lambda a: a + 2), with_method(wrap)
        two(y)
        cases["one signature", name] = functools.partial(one, x)
        cases["tree and keyword", name] = functools.partial(tree, state, scale=2.0)
        cases["method", name] = lambda model=model: model.apply(x)
        cases["two signatures", name] = functools.partial(two, x)
    mixed, plain = exla.jit(outer_sum, memory_limit=SPLIT_LIMIT), jax.jit(outer_sum)
    plan = mixed.plan(big)
    assert mixed.plan(x).untouched and not plan.untouched
    cases["mixed", "jax"], cases["mixed", "exla"] = functools.partial(plain, x), functools.partial(mixed, x)
    cases["split", "jax"] = functools.partial(plan.compiled, big)
    cases["split", "exla"] = functools.partial(mixed, big)
    for call in cases.values():
        call()
    return cases


def _microseconds(call: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead")
    parser.add_argument("--calls", type=int, default=2000, help="calls in one timing")
    parser.add_argument("--rounds", type=int, default=9, help="alternations")
    options = parser.parse_args(argv)
    cases = prepare()
    times: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
    for turn in range(options.rounds):
        for case in list(cases) if turn % 2 == 0 else list(reversed(cases)):
            times[case].append(_microseconds(cases[case], options.calls))
    results = record.open_results("overhead")
    for name in dict.fromkeys(name for name, _ in cases):
        jax_us, exla_us = (statistics.median(times[name, who]) for who in ("jax", "exla"))
        results.append(case=name, jax_us=jax_us, exla_us=exla_us, ratio=exla_us / jax_us)
        print(f"{name}: jax.jit {jax_us:.2f} us, exla.jit {exla_us:.2f} us, ratio {exla_us / jax_us:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
