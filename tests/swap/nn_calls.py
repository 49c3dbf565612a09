"""Calls of jax.nn and jax.random."""

import jax
import jax.numpy as jnp
from jax import nn, random

from tests.swap.arguments import FRAMES, KEY, SIGNED, SIGNED_THIN, WHOLE, X, Y, around, floats, grid, whole

ACTIVATIONS = """
    celu elu gelu hard_sigmoid hard_silu hard_tanh identity leaky_relu log_sigmoid mish relu relu6 selu sigmoid silu
    soft_sign softplus sparse_plus sparse_sigmoid squareplus tanh
"""
HEADS = floats(97, 8, low=-1, high=1), floats(8, 8, low=-1, high=1, seed=1), floats(8, 8, low=-1, high=1, seed=2)


def heads(x, m):
    """[n, d], [d, d] -> [1, n, 4, 8]."""
    return jnp.stack([jnp.sin(k + x @ m) for k in range(4)], axis=1)[None]


NN = {
    **around("jax.nn", ACTIVATIONS, lambda x, y: (grid(x, y),), SIGNED),
    **around("jax.nn", "log1mexp", lambda x, y: (grid(x, y),), (X, Y)),
    **{
        name: (function, SIGNED_THIN)
        for name, function in {
            "softmax": lambda a, b: nn.softmax(a @ b, axis=1).max(axis=0),
            "softmax, down": lambda a, b: nn.softmax(a @ b, axis=0) @ b[0],
            "softmax, masked": lambda a, b: nn.softmax(a @ b, axis=1, where=(a @ b) < 1) @ b[0],
            "log_softmax": lambda a, b: nn.log_softmax(a @ b, axis=1)[:, ::99],
            "logsumexp": lambda a, b: nn.logsumexp(a @ b, axis=0),
            "logsumexp, signed": lambda a, b: nn.logsumexp(a @ b, axis=1, b=b[0], return_sign=True),
            "logmeanexp": lambda a, b: nn.logmeanexp(a @ b, axis=1),
            "standardize": lambda a, b: nn.standardize(a @ b, axis=0)[::50],
            "glu": lambda a, b: nn.glu((a @ b)[:, :306], axis=1) @ b[0, :153],
        }.items()
    },
    "one_hot": (lambda x, y: nn.one_hot(x, 307) @ (y * 1.0), WHOLE),
    "one_hot, of many": (lambda x, y: nn.one_hot(whole(x, y)[:, :9], 37).sum(axis=1), WHOLE),
    "dot_product_attention": (
        lambda x, m, n: nn.dot_product_attention(heads(x, m), heads(x, n), heads(x, m + n)).max(axis=(1,)),
        HEADS,
    ),
    "dot_product_attention, causal": (
        lambda x, m, n: nn.dot_product_attention(heads(x, m), heads(x, n), heads(x, n), is_causal=True)[0, ::9],
        HEADS,
    ),
    "initializers.glorot_normal": (lambda k, y: nn.initializers.glorot_normal()(k, (257, 307)) @ y, (KEY, Y)),
    "initializers.he_uniform": (lambda k, x: x @ nn.initializers.he_uniform()(k, (257, 307)), (KEY, X)),
    "initializers.constant": (lambda k, x: x @ nn.initializers.constant(0.5)(k, (257, 307)), (KEY, X)),
}

SHAPE = (257, 307)
DRAWN = {
    **{
        name: (lambda k, x, y, f=f, frame=FRAMES[i % 5]: frame(f(k, shape=SHAPE), x, y), (KEY, X, Y))
        for i, (name, f) in enumerate(
            {
                "normal": random.normal,
                "uniform": random.uniform,
                "bits": random.bits,
                "gumbel": random.gumbel,
                "exponential": random.exponential,
                "laplace": random.laplace,
                "logistic": random.logistic,
                "cauchy": random.cauchy,
                "rademacher": random.rademacher,
                "maxwell": random.maxwell,
                "double_sided_maxwell": lambda k, shape: random.double_sided_maxwell(k, 0.1, 2.0, shape),
                "truncated_normal": lambda k, shape: random.truncated_normal(k, -1.0, 2.0, shape),
                "bernoulli": lambda k, shape: random.bernoulli(k, 0.3, shape),
                "randint": lambda k, shape: random.randint(k, shape, -5, 99),
                "geometric": lambda k, shape: random.geometric(k, 0.2, shape),
                "lognormal": lambda k, shape: random.lognormal(k, 0.3, shape),
                "rayleigh": lambda k, shape: random.rayleigh(k, 0.5, shape),
                "pareto": lambda k, shape: random.pareto(k, 3.0, shape),
                "weibull_min": lambda k, shape: random.weibull_min(k, 2.0, 1.5, shape),
                "triangular": lambda k, shape: random.triangular(k, -1.0, 0.2, 1.0, shape),
                "wald": lambda k, shape: random.wald(k, 2.0, shape),
            }.items()
        )
    },
}
RANDOM = {
    **DRAWN,
    "normal, half precision": (lambda k: random.normal(k, SHAPE, jnp.bfloat16).max(axis=1), (KEY,)),
    "normal, complex": (lambda k, y: random.normal(k, SHAPE, jnp.complex64) @ y, (KEY, Y)),
    "uniform, between rows": (lambda k, x, y: random.uniform(k, SHAPE, minval=x[:, None], maxval=2.0) @ y, (KEY, X, Y)),
    "split": (lambda k: jax.vmap(lambda i: random.normal(i, (300,)).max())(random.split(k, 257)), (KEY,)),
    "fold_in": (
        lambda k, x: jax.vmap(lambda i, v: v * random.normal(random.fold_in(k, i), (400,)).min())(jnp.arange(257), x),
        (KEY, X),
    ),
    "categorical": (lambda k, a, b: random.categorical(k, a @ b, axis=1), (KEY, *SIGNED_THIN)),
    "categorical, many": (lambda k, a, b: random.categorical(k, a @ b, axis=0, shape=(3, 307)), (KEY, *SIGNED_THIN)),
    "choice": (lambda k, y: jnp.sort(random.choice(k, y, SHAPE), axis=1)[:, ::99], (KEY, Y)),
    "choice, weighted": (lambda k, y: random.choice(k, y, SHAPE, p=y / y.sum()) @ y, (KEY, Y)),
    "permutation": (lambda k, x, y: random.permutation(k, grid(x, y), axis=1)[:, ::60], (KEY, X, Y)),
    "permutation, independent": (
        lambda k, x, y: random.permutation(k, grid(x, y), axis=1, independent=True)[:, ::60],
        (KEY, X, Y),
    ),
    "multivariate_normal": (
        lambda k, m: random.multivariate_normal(k, m[0], m @ m.T + jnp.eye(5), (5000,)).max(axis=0),
        (KEY, floats(5, 5)),
    ),
    "orthogonal": (lambda k: random.orthogonal(k, 5, (900,))[:, 0, 0] ** 2, (KEY,)),
    "ball": (lambda k: random.ball(k, 3, shape=(997,)).max(axis=0), (KEY,)),
    "gamma": (lambda k, x: random.gamma(k, 2 + x, (40, 257)).max(axis=0), (KEY, X)),
    "dirichlet": (lambda k, x: random.dirichlet(k, 1 + x[:5], (2003,)).max(axis=0), (KEY, X)),
    "poisson": (lambda k, x: random.poisson(k, 3 + x, (70, 257)).max(axis=0), (KEY, X)),
    "key_data": (lambda k: jnp.sort(random.key_data(random.split(k, 9001)), axis=0)[::900], (KEY,)),
    "key": (lambda x: random.normal(random.key(jnp.argmax(x)), SHAPE).max(axis=1), (X,)),
    "PRNGKey": (lambda x: random.normal(random.PRNGKey(3), SHAPE) @ x, (Y,)),
    "t": (lambda k: jnp.sort(random.t(k, 5.0, (101, 70)), axis=1)[:, 35], (KEY,)),
}
