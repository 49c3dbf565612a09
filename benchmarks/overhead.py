"""What one cached call costs beyond jax.jit's: a tiny program, called many times, taking turns.

    python -m benchmarks.overhead [--calls 2000] [--rounds 9]

Three ways to call: one signature (the call goes straight to jax.jit), keyword arguments and a pytree, and a function
that has been planned for two signatures (the call is looked up first). Prints the medians and their ratios.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

import exla
from benchmarks import record


def tree_sum(state, *, scale):
    return {name: value * scale for name, value in state.items()}


def _microseconds(call, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead")
    parser.add_argument("--calls", type=int, default=2000, help="calls in one timing")
    parser.add_argument("--rounds", type=int, default=9, help="alternations")
    options = parser.parse_args(argv)
    x, y = jnp.ones(8), jnp.ones(16)
    state = {f"w{k}": jnp.ones(4) for k in range(10)}
    cases = {}
    for name, wrap in (("jax", jax.jit), ("exla", lambda fn: exla.jit(fn, memory_limit="1GiB"))):
        one, tree, two = wrap(lambda a: a + 1), wrap(tree_sum), wrap(lambda a: a + 2)
        one(x), tree(state, scale=2.0), two(x), two(y)
        cases["one signature", name] = lambda one=one: one(x)
        cases["tree and keyword", name] = lambda tree=tree: tree(state, scale=2.0)
        cases["two signatures", name] = lambda two=two: two(x)
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
