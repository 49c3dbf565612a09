"""Random bits and their keys: cut so that every element keeps its bits.

Partitionable threefry computes element i of an array from the key and the number i alone (Salmon et al., *Parallel
random numbers: as easy as 1, 2, 3*, SC 2011), so a chunk can count from its own offset. Every other generator draws its
elements in an order of its own and stays whole.

Of many keys of threefry each is drawn of, split, and has numbers folded in by itself. Of those of other generators JAX
draws for the whole batch from one of them (`jax.random`, "Advanced RNG configuration"): a part would have others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from exla import _compat
from exla.ir.factors import FACTOR_RULES, Chunk, EquationContext, FactorRule, axis_names, tokens
from exla.rules.factor.elementwise import elementwise


@FACTOR_RULES.register("random_bits", "random_split")
def of_keys(context: EquationContext) -> FactorRule:
    """`b0 -> b0 a0 a1`: keys along their own axes, the bits or keys of one key by position."""
    keys = context.operands[0]
    batch, made = _batch(keys), _by_position(keys, context.params["shape"])
    return FactorRule(
        equation=f"{tokens(batch)} -> {tokens([*batch, *made])}",
        replay=_replay,
        whole=IN_ORDER,
        counted=frozenset(filter(None, made)),
    )


@FACTOR_RULES.register("random_gamma")
def random_gamma(context: EquationContext) -> FactorRule:
    """`b0, b0 a0 -> b0 a0`: keys and shapes of distributions; those of one key are drawn of its parts, by position."""
    keys, result = context.operands[0], context.results[0]
    batch, shape = _batch(keys), result.shape[len(keys.shape) :]
    made = [None] * len(shape) if _compat.gamma_of is None else _by_position(keys, shape)
    every = tokens([*batch, *made])
    return FactorRule(
        equation=f"{tokens(batch)}, {every} -> {every}",
        replay=_replay_gamma,
        whole=IN_ORDER,
        counted=frozenset(filter(None, made)),
    )


IN_ORDER = "this random generator draws its numbers in order"


def _batch(keys: Any) -> list[str | None]:
    """The axes of many keys."""
    return [n if _compat.is_threefry(keys.dtype) else None for n in axis_names(len(keys.shape), "b")]


def _by_position(keys: Any, shape: Sequence[int]) -> list[str | None]:
    """The axes of what is made of one key, element by element of its position."""
    is_counted = _compat.is_partitionable(keys.dtype) and math.prod(shape) < 1 << 32
    return [n if is_counted else None for n in axis_names(len(shape))]


@FACTOR_RULES.register("threefry2x32")
def threefry2x32(context: EquationContext) -> FactorRule:
    """`, , a0 a1, a0 a1 -> a0 a1, a0 a1`: every pair of counts is hashed by itself, as in a chunk of random bits."""
    return elementwise(context)


@FACTOR_RULES.register("random_seed", "random_clone", "random_fold_in")
def of_each_key(context: EquationContext) -> FactorRule:
    """`b0, b0 -> b0`: seeds to keys, keys to keys, keys and numbers to keys; an axis of one is taken for all."""
    (result,) = context.results
    rank = len(result.shape)
    names = _batch(result)
    sides = [
        [n if v.shape[k] == result.shape[k] else None for k, n in enumerate(names)]
        if len(v.shape) == rank
        else [None] * len(v.shape)
        for v in context.operands
    ]
    made = [n if any(n in side for side in sides) else None for n in names]
    return FactorRule(equation=f"{', '.join(map(tokens, sides))} -> {tokens(made)}", whole=IN_ORDER)


@FACTOR_RULES.register("random_wrap", "random_unwrap")
def words_of_keys(context: EquationContext) -> FactorRule:
    """`b0 _ -> b0`, or back: words to the keys that they are."""
    (operand,), (result,) = context.operands, context.results
    names = axis_names(min(len(operand.shape), len(result.shape)), "b")
    left, right = (tokens([*names, *[None] * (len(v.shape) - len(names))]) for v in (operand, result))
    return FactorRule(equation=f"{left} -> {right}", whole="a key consists of several words")


def _replay(chunk: Chunk, keys: Any) -> Sequence[Any]:
    if chunk.factor.startswith("b"):
        return chunk.bind(keys)
    high, low = _hashes(chunk, keys, chunk.context.params["shape"])
    if chunk.context.primitive == "random_split":
        return [_keys_of(keys, high, low)]
    width = chunk.context.params["bit_width"]
    if width == 64:
        return [(lax.convert_element_type(high, np.uint64) << np.uint64(32)) | lax.convert_element_type(low, np.uint64)]
    return [lax.convert_element_type(high ^ low, np.dtype(f"uint{width}"))]


def _keys_of(keys: Any, high: Any, low: Any) -> Any:
    return jax.random.wrap_key_data(jnp.stack([high, low], axis=-1), impl=jax.random.key_impl(keys))


def _replay_gamma(chunk: Chunk, keys: Any, shapes: Any) -> Sequence[Any]:
    if chunk.factor.startswith("b"):
        return chunk.bind(keys, shapes)
    parts = _keys_of(keys, *_hashes(chunk, keys, chunk.context.results[0].shape[keys.ndim :]))
    return [_gammas(shapes.ndim, chunk.context.params["log_space"])(parts, shapes)]


@functools.cache
def _gammas(rank: int, log_space: bool) -> Any:
    """Draws numbers of gamma distributions, an array for arrays; traced once for a shape."""
    assert _compat.gamma_of is not None
    one = functools.partial(_compat.gamma_of, log_space=log_space)
    for _ in range(rank):
        one = jax.vmap(one)
    return jax.jit(one)


def _hashes(chunk: Chunk, keys: Any, shape: Sequence[int]) -> tuple[Any, Any]:
    """The hashes under each key of the positions in a chunk of a shape, as two arrays of 32-bit halves."""
    cut = chunk.result_shape()[keys.ndim :]
    axis = axis_names(len(shape)).index(chunk.factor)
    numbers = jnp.zeros(cut, np.uint32)
    for k, stride in enumerate(np.cumprod([1, *shape[:0:-1]])[::-1]):
        along = lax.broadcasted_iota(np.uint32, cut, k)
        if k == axis:
            along = along + lax.convert_element_type(chunk.offset, np.uint32)
        numbers = numbers + along * np.uint32(stride)

    def one(words: Any) -> tuple[Any, Any]:
        return _compat.threefry(words, jnp.zeros_like(numbers), numbers)

    for _ in range(keys.ndim):
        one = jax.vmap(one)
    return one(jax.random.key_data(keys))
