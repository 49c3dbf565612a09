"""Derivatives of small networks, per example and of higher order."""

import jax
import jax.numpy as jnp


def network(parameters, x):
    first, second = parameters
    return jnp.tanh(x @ first) @ second


def jacobian(parameters, x):
    """Jacobians of a network in its inputs for a batch (JAX documentation, *The Autodiff Cookbook*)."""
    return jnp.sum(jax.vmap(jax.jacrev(network, argnums=1), in_axes=(None, 0))(parameters, x) ** 2, axis=(1, 2))


def hessian_diagonal(weights, x, y):
    """Hessian of a logistic loss, reduced to row sums (Bishop, *PRML*, 2006, 4.3.3)."""

    def loss(w):
        return jnp.mean(jax.nn.softplus(-y * (x @ w)))

    return jnp.sum(jnp.abs(jax.hessian(loss)(weights)), axis=1)


def example_norms(parameters, x, y):
    """Norms of per-example gradients (Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016)."""

    def loss(p, one, target):
        return jnp.sum((network(p, one) - target) ** 2)

    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(parameters, x, y)
    squares = sum(jnp.sum(g**2, axis=tuple(range(1, g.ndim))) for g in jax.tree.leaves(gradients))
    return jnp.sqrt(squares)


def laplacian(parameters, x):
    """Laplacian of a network at collocation points (Raissi et al., *Physics-informed Neural Networks*, 2019)."""

    def one(z):
        return jnp.trace(jax.hessian(lambda q: jnp.sum(network(parameters, q)))(z))

    return jax.vmap(one)(x)


def kernel_gradient(x, y, v):
    """Gradient of a quadratic form of a kernel in the points (KeOps' tutorial on kernel gradients)."""

    def form(z):
        k = jnp.exp(-jnp.sum((z[:, None] - y[None]) ** 2, axis=-1) / 2)
        return v @ k @ v

    return jax.grad(form)(x)
