"""Statistics over all pairs, and resampling."""

import jax
import jax.numpy as jnp


def squared_distances(x, y):
    return jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)


def kernel_density(points, data):
    """Log density of a Gaussian kernel estimate (Silverman, 1986; scikit-learn's KernelDensity)."""
    d = points.shape[1]
    log_kernel = -squared_distances(points, data) / 2 - d / 2 * jnp.log(2 * jnp.pi)
    return jax.scipy.special.logsumexp(log_kernel, axis=1) - jnp.log(len(data))


def maximum_mean_discrepancy(x, y):
    """Unbiased MMD^2 with a Gaussian kernel (Gretton et al., JMLR 2012, eq. 3)."""
    n, m = len(x), len(y)
    kxx, kyy, kxy = (jnp.exp(-squared_distances(*p) / 2) for p in ((x, x), (y, y), (x, y)))
    within = (jnp.sum(kxx) - jnp.trace(kxx)) / (n * (n - 1.0)) + (jnp.sum(kyy) - jnp.trace(kyy)) / (m * (m - 1))
    return within - 2 * jnp.mean(kxy)


def distance_correlation(x, y):
    """Distance correlation of two samples (Székely, Rizzo and Bakirov, 2007; dcor)."""

    def centred(z):
        a = jnp.sqrt(squared_distances(z, z) + 1e-12)
        return a - jnp.mean(a, axis=0) - jnp.mean(a, axis=1, keepdims=True) + jnp.mean(a)

    a, b = centred(x), centred(y)
    return jnp.sqrt(jnp.mean(a * b) / jnp.sqrt(jnp.mean(a * a) * jnp.mean(b * b)))


def ripley_k(points, radii):
    """Ripley's K without edge correction (Ripley, 1977; spatstat's Kest)."""
    n = len(points)
    distance = jnp.sqrt(squared_distances(points, points)) + 1e3 * jnp.eye(n, dtype=points.dtype)
    return jnp.mean(distance[:, :, None] <= radii, axis=(0, 1)) * n / (n - 1)


def bootstrap_means(data, picks):
    """Bootstrap means and their spread from drawn indices (Efron, 1979). picks (R, n)."""
    means = jnp.mean(data[picks], axis=1)
    return jnp.mean(means, axis=0), jnp.std(means, axis=0), jnp.quantile(means, 0.9, axis=0)


def kendall_tau(x, y):
    """Kendall's rank correlation by all pairs (Kendall, 1938)."""
    n = len(x)
    return jnp.sum(jnp.sign(x[:, None] - x[None]) * jnp.sign(y[:, None] - y[None])) / (n * (n - 1.0))
