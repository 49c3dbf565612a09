"""Particles: physics, sampling and clustering, where each meets every other."""

import jax
import jax.numpy as jnp

SOFTENING = 1e-2


def squared_distances(x, y):
    return jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)


def nbody_forces(positions, masses):
    """Accelerations under softened gravity (Aarseth, *Gravitational N-Body Simulations*, 2003)."""
    difference = positions[None, :, :] - positions[:, None, :]
    weight = masses[None, :] * (jnp.sum(difference**2, axis=-1) + SOFTENING) ** -1.5
    return jnp.sum(weight[:, :, None] * difference, axis=1)


def nbody_energy(positions, velocities, masses):
    """Kinetic plus potential energy (Aarseth, *Gravitational N-Body Simulations*, 2003, ch. 1)."""
    kinetic = 0.5 * jnp.sum(masses * jnp.sum(velocities**2, axis=1))
    pairs = masses[:, None] * masses[None, :] / jnp.sqrt(squared_distances(positions, positions) + SOFTENING)
    return kinetic - 0.5 * (jnp.sum(pairs) - jnp.sum(masses**2) / jnp.sqrt(SOFTENING))


def lennard_jones_forces(positions, box):
    """Forces as the gradient of a Lennard-Jones energy in a periodic box (JAX MD's energy.lennard_jones_pair)."""

    def energy(r):
        difference = r[:, None] - r[None, :]
        difference = difference - box * jnp.round(difference / box)
        squared = jnp.sum(difference**2, axis=-1) + jnp.eye(len(r), dtype=r.dtype) * 1e6
        sixth = (1 / (squared + 0.5)) ** 3
        return 0.5 * jnp.sum(4 * (sixth**2 - sixth))

    return -jax.grad(energy)(positions)


def svgd_step(particles, scores):
    """One step of Stein variational gradient descent (Liu and Wang, NIPS 2016, algorithm 1)."""
    kernel = jnp.exp(-squared_distances(particles, particles) / 2)
    repulsion = particles * jnp.sum(kernel, axis=1)[:, None] - kernel @ particles
    return particles + 0.1 * (kernel @ scores + repulsion) / len(particles)


def mean_shift(points, data):
    """One mean-shift step with a Gaussian kernel (Cheng, PAMI 1995; scikit-learn's MeanShift)."""
    weights = jnp.exp(-squared_distances(points, data) / 2)
    return weights @ data / jnp.sum(weights, axis=1, keepdims=True)


def kmeans_step(points, centres):
    """One step of Lloyd's algorithm and its inertia (Lloyd, 1982; scikit-learn's KMeans)."""
    squared = squared_distances(points, centres)
    nearest = jax.nn.one_hot(jnp.argmin(squared, axis=1), len(centres), dtype=points.dtype)
    counts = jnp.sum(nearest, axis=0)
    return nearest.T @ points / jnp.maximum(counts, 1)[:, None], jnp.sum(jnp.min(squared, axis=1))


def tsne_gradient(embedding, points):
    """The gradient of t-SNE with fixed bandwidth (van der Maaten and Hinton, JMLR 2008, eq. 5)."""
    n = len(points)
    eye = jnp.eye(n, dtype=points.dtype)
    p = jax.nn.softmax(-squared_distances(points, points) - 1e9 * eye, axis=1)
    p = (p + p.T) / (2 * n)
    kernel = (1 - eye) / (1 + squared_distances(embedding, embedding))
    weights = (p - kernel / jnp.sum(kernel)) * kernel
    return 4 * (jnp.sum(weights, axis=1)[:, None] * embedding - weights @ embedding)


def radial_distribution(positions, edges):
    """Pair correlation histogram g(r) (Allen and Tildesley, *Computer Simulation of Liquids*, 2017, 8.2)."""
    distance = jnp.sqrt(squared_distances(positions, positions))
    within = (distance[:, :, None] >= edges[:-1]) & (distance[:, :, None] < edges[1:]) & (distance[:, :, None] > 0)
    shells = 4 / 3 * jnp.pi * (edges[1:] ** 3 - edges[:-1] ** 3)
    return jnp.sum(within, axis=(0, 1)) / (len(positions) * shells)


def sph_density(positions, masses, values):
    """Density and interpolated field of smoothed particle hydrodynamics (Monaghan, 1992, eqs. 2.5 and 2.7)."""
    q = jnp.sqrt(squared_distances(positions, positions) + 1e-12)
    spline = jnp.where(q < 1, 1 - 1.5 * q**2 + 0.75 * q**3, jnp.where(q < 2, 0.25 * (2 - q) ** 3, 0)) / jnp.pi
    density = spline @ masses
    return density, spline @ (masses * values / density)


def particle_filter_step(particles, log_weights, observation):
    """Bootstrap filter: propagate, weigh, resample systematically (Gordon et al., 1993; Doucet and Johansen, 2009)."""
    n = len(particles)
    moved = particles + 0.1 * jnp.sin(particles)
    log_weights = log_weights - jnp.sum((observation - moved) ** 2, axis=1) / 2
    weights = jax.nn.softmax(log_weights)
    ancestors = jnp.searchsorted(jnp.cumsum(weights), (jnp.arange(n) + 0.64) / n)
    resampled = moved[jnp.minimum(ancestors, n - 1)]
    return weights @ moved, jnp.mean(resampled, axis=0), jax.scipy.special.logsumexp(log_weights) - jnp.log(n)
