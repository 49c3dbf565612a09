"""Attention and what is built of it."""

import jax
import jax.numpy as jnp


def attention(query, key, value, bias=0.0):
    """Softmax attention (Vaswani et al., *Attention Is All You Need*, 2017, sec. 3.2). (S, H, D) each."""
    scores = jnp.einsum("qhd,khd->hqk", query, key) / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores + bias, axis=-1), value)


def causal(query, key, value):
    """Causal attention (Radford et al., *GPT-2*, 2019)."""
    scores = jnp.einsum("qhd,khd->hqk", query, key) / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    mask = jnp.tril(jnp.ones((len(query), len(key)), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, value)


def alibi(query, key, value):
    """Attention with linear biases (Press et al., *Train Short, Test Long*, ICLR 2022)."""
    heads = query.shape[1]
    slopes = 2.0 ** (-8 * (jnp.arange(heads, dtype=query.dtype) + 1) / heads)
    offset = jnp.arange(len(key))[None, :] - jnp.arange(len(query))[:, None]
    bias = slopes[:, None, None] * offset[None].astype(query.dtype)
    return attention(query, key, value, jnp.where(offset > 0, -1e30, bias))


def grouped_query(query, key, value):
    """Grouped-query attention (Ainslie et al., EMNLP 2023). query (S, G, R, D), key and value (S, G, D)."""
    scores = jnp.einsum("qgrd,kgd->grqk", query, key) / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    return jnp.einsum("grqk,kgd->qgrd", jax.nn.softmax(scores, axis=-1), value)


def cross(latents, inputs, to_query, to_key, to_value):
    """Cross attention of latents to a long input (Jaegle et al., *Perceiver*, ICML 2021)."""
    query, key, value = latents @ to_query, inputs @ to_key, inputs @ to_value
    weights = jax.nn.softmax(query @ key.T / jnp.sqrt(query.shape[-1]).astype(query.dtype), axis=-1)
    return latents + weights @ value


def normalise(x, scale):
    mean = jnp.mean(x, axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(jnp.var(x, axis=-1, keepdims=True) + 1e-5) * scale


def block(parameters, x):
    """A pre-norm transformer block (Xiong et al., ICML 2020; nanoGPT's Block)."""
    heads = 4
    y = normalise(x, parameters["scale_1"])
    query, key, value = jnp.split(y @ parameters["qkv"], 3, axis=-1)
    query, key, value = (a.reshape(len(x), heads, -1) for a in (query, key, value))
    x = x + causal(query, key, value).reshape(x.shape) @ parameters["out"]
    return x + jax.nn.gelu(normalise(x, parameters["scale_2"]) @ parameters["up"]) @ parameters["down"]


def block_training_step(parameters, x, target):
    """One SGD step of that block on a squared error (nanoGPT's train.py with plain SGD)."""
    loss, gradient = jax.value_and_grad(lambda p: jnp.mean((block(p, x) - target) ** 2))(parameters)
    return loss, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient)


def outer_product_mean(msa, left, right, out):
    """Outer-product mean of the Evoformer (Jumper et al., *AlphaFold*, Nature 2021, suppl. algorithm 10)."""
    a, b = msa @ left, msa @ right
    outer = jnp.einsum("sic,sjd->ijcd", a, b) / len(msa)
    return outer.reshape(*outer.shape[:2], -1) @ out


def triangle_attention(pair, to_query, to_key, to_value, to_bias):
    """Attention around the starting node (Jumper et al., *AlphaFold*, Nature 2021, suppl. algorithm 13)."""
    query, key, value = (jnp.einsum("ijc,chd->ijhd", pair, w) for w in (to_query, to_key, to_value))
    scores = jnp.einsum("ijhd,ikhd->hijk", query, key) / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    bias = jnp.einsum("jkc,ch->hjk", pair, to_bias)
    weights = jax.nn.softmax(scores + bias[:, None], axis=-1)
    return jnp.einsum("hijk,ikhd->ijhd", weights, value)


def neighbourhood_attention(points, query, key, value):
    """Vector attention over all points (Zhao et al., *Point Transformer*, ICCV 2021, eq. 3, with global reach)."""
    relation = query[:, None, :] - key[None, :, :] + points[:, None, :] - points[None, :, :]
    return jnp.sum(jax.nn.softmax(relation, axis=1) * value[None, :, :], axis=1)
