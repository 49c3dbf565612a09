"""Gaussian processes and kernel methods, as their libraries and books write them."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

JITTER = 1e-2


def rbf(x, y):
    return jnp.exp(-jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1) / 2)


def rbf_product(x, y, v, lengthscales):
    """ARD squared-exponential kernel times a vector (Rasmussen and Williams, *GPML*, 2006, eq. 5.1)."""
    return rbf(x / lengthscales, y / lengthscales) @ v


def matern_product(x, y, v):
    """Matérn-5/2 kernel times a vector (Rasmussen and Williams, *GPML*, 2006, eq. 4.17)."""
    squared = jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)
    r = jnp.sqrt(5 * jnp.maximum(squared, 1e-12))
    return ((1 + r + r**2 / 3) * jnp.exp(-r)) @ v


def periodic_product(x, y, v, period):
    """Periodic kernel times a vector (MacKay 1998; GPyTorch's PeriodicKernel)."""
    sines = jnp.sin(jnp.pi * (x[:, None, :] - y[None, :, :]) / period) ** 2
    return jnp.exp(-2 * jnp.sum(sines, axis=-1)) @ v


def additive_product(x, y, v, lengthscales):
    """Sum over the dimensions of one-dimensional kernels, times a vector (Duvenaud et al., *Additive GPs*, 2011)."""
    scaled = (x[:, None, :] - y[None, :, :]) / lengthscales
    return jnp.sum(jnp.exp(-(scaled**2) / 2), axis=-1) @ v


def exact_marginal_likelihood(x, y, log_scale, log_noise):
    """Log evidence of an exact GP (Rasmussen and Williams, *GPML*, 2006, algorithm 2.1)."""
    n = len(x)
    k = rbf(x / jnp.exp(log_scale), x / jnp.exp(log_scale)) + jnp.exp(log_noise) * jnp.eye(n, dtype=x.dtype)
    factor, lower = cho_factor(k, lower=True)
    alpha = cho_solve((factor, lower), y)
    return -0.5 * y @ alpha - jnp.sum(jnp.log(jnp.diagonal(factor))) - 0.5 * n * jnp.log(2 * jnp.pi)


def sgpr_bound(parameters, inducing, x, y):
    """Collapsed variational bound (Titsias, AISTATS 2009, eq. 9; GPflow's SGPR.elbo)."""
    scale, noise = jnp.exp(parameters["log_scale"]), jnp.exp(parameters["log_noise"])
    m, n = len(inducing), len(x)
    k_uu = rbf(inducing / scale, inducing / scale) + JITTER * jnp.eye(m, dtype=x.dtype)
    k_uf = rbf(inducing / scale, x / scale)
    lower = cholesky(k_uu, lower=True)
    a = solve_triangular(lower, k_uf, lower=True) / jnp.sqrt(noise)
    aat = a @ a.T
    lower_b = cholesky(aat + jnp.eye(m, dtype=x.dtype), lower=True)
    c = solve_triangular(lower_b, a @ y, lower=True) / jnp.sqrt(noise)
    bound = -0.5 * n * jnp.log(2 * jnp.pi) - jnp.sum(jnp.log(jnp.diagonal(lower_b))) - 0.5 * n * jnp.log(noise)
    bound = bound - 0.5 * jnp.sum(y**2) / noise + 0.5 * jnp.sum(c**2)
    return bound - 0.5 * n / noise + 0.5 * jnp.trace(aat)


def sgpr_gradient(parameters, inducing, x, y):
    """The bound and its gradient in kernel parameters and inducing points (GPflow's training loss for SGPR)."""
    return jax.value_and_grad(sgpr_bound, argnums=(0, 1))(parameters, inducing, x, y)
