"""Ten JAX programs from ten fields, written naively: an unseen test set for memory-reducing function transforms.

Every program broadcasts over pairs, batches or grids and lets the whole intermediate exist at once. Arguments are
NumPy float32 / int32 arrays made deterministically from a scale ``n``; the largest intermediate grows like n * n
(times 3 for `biot_savart_filaments`, 16 complex for `total_bicoherence`, 128 for `neighbour_joining_k80`).

    biot_savart_filaments   aerodynamics          (points, segments, 3) cross products
    voigt_transmittance     spectroscopy          (wavenumbers, lines), complex Horner loop
    etas_score              seismology            gradient of a log-likelihood over (events, events)
    asian_barrier_greeks    finance               gradient of a mean over (paths, dates), mean and min along dates
    kuramoto_coherence      neuroscience          lax.scan, two (cells, cells) evaluations in each step
    total_bicoherence       plasma physics        FFT, gather to (segments, f1, f2), scatter-add along f1 + f2
    string_length_period    astronomy             argsort of (trials, epochs), two outputs
    changepoint_posterior   climatology           softmax over all (i, j), reduced along both axes
    neighbour_joining_k80   phylogenetics         (taxa, taxa, sites) comparisons, then row sums, then row minima
    moran_geary_lisa        spatial statistics    row-standardised (sites, sites) weights, their transpose, four outputs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# --------------------------------------------------------------------------------------------------------------------
# 1. Aerodynamics
# --------------------------------------------------------------------------------------------------------------------


def biot_savart_filaments(points, nodes, circulation):
    """Velocity induced by straight vortex segments, Katz & Plotkin (2001) eq. 2.72, with a smoothed core."""
    start, end = nodes[:-1], nodes[1:]
    r0 = end - start
    r1 = points[:, None, :] - start[None, :, :]
    r2 = points[:, None, :] - end[None, :, :]
    cross = jnp.cross(r1, r2)
    core = 0.05
    denominator = jnp.sum(cross**2, axis=-1) + core**2 * jnp.sum(r0**2, axis=-1)[None, :]
    unit1 = r1 / jnp.sqrt(jnp.sum(r1**2, axis=-1, keepdims=True) + 1e-6)
    unit2 = r2 / jnp.sqrt(jnp.sum(r2**2, axis=-1, keepdims=True) + 1e-6)
    along = jnp.sum(r0[None, :, :] * (unit1 - unit2), axis=-1)
    strength = circulation[None, :] / (4.0 * jnp.pi) * along / denominator
    return jnp.sum(strength[:, :, None] * cross, axis=1)


def biot_savart_arguments(n: int) -> tuple[np.ndarray, ...]:
    """Points in a box around a helical rotor wake of n segments."""
    rng = np.random.default_rng(101)
    angle = np.linspace(0.0, 12.0 * np.pi, n + 1)
    nodes = np.stack([np.cos(angle), np.sin(angle), 0.06 * angle], axis=-1)
    points = rng.uniform([-1.5, -1.5, -0.5], [1.5, 1.5, 3.0], size=(n, 3))
    circulation = 1.0 + 0.1 * np.sin(angle[:-1])
    return points.astype(np.float32), nodes.astype(np.float32), circulation.astype(np.float32)


# --------------------------------------------------------------------------------------------------------------------
# 2. Spectroscopy
# --------------------------------------------------------------------------------------------------------------------


def weideman_coefficients(order: int) -> tuple[float, list[float]]:
    """Scale and polynomial of the rational Faddeeva approximation, Weideman, SIAM J. Numer. Anal. 31 (1994) 1497."""
    m = 2 * order
    scale = np.sqrt(order / np.sqrt(2.0))
    t = scale * np.tan(np.arange(-m + 1, m) * np.pi / m / 2.0)
    f = np.concatenate([[0.0], np.exp(-(t**2)) * (scale**2 + t**2)])
    a = np.real(np.fft.fft(np.fft.fftshift(f))) / (2 * m)
    return float(scale), [float(c) for c in a[1 : order + 1][::-1]]


FADDEEVA_SCALE, FADDEEVA_POLYNOMIAL = weideman_coefficients(16)


def faddeeva(z):
    """w(z) = 2 p(Z) / (L - iz)^2 + 1 / (sqrt(pi) (L - iz)) with Z = (L + iz) / (L - iz), for Im z > 0."""
    bottom = FADDEEVA_SCALE - 1j * z
    ratio = (FADDEEVA_SCALE + 1j * z) / bottom
    p = jnp.zeros_like(ratio)
    for coefficient in FADDEEVA_POLYNOMIAL:
        p = p * ratio + coefficient
    return 2.0 * p / bottom**2 + (1.0 / np.sqrt(np.pi)) / bottom


def voigt_transmittance(wavenumber, centre, strength, doppler, lorentz):
    """Line-by-line transmittance exp(-sum_l S_l Re w(x_l + i y_l) sqrt(ln 2 / pi) / alpha_l) of a homogeneous path."""
    root = np.sqrt(np.log(2.0))
    x = root * (wavenumber[:, None] - centre[None, :]) / doppler[None, :]
    y = root * lorentz / doppler
    profile = jnp.real(faddeeva(x + 1j * y[None, :])) * (root / np.sqrt(np.pi)) / doppler[None, :]
    absorption = jnp.sum(strength[None, :] * profile, axis=1)
    return jnp.exp(-absorption)


def voigt_arguments(n: int) -> tuple[np.ndarray, ...]:
    """A band of n lines sampled at n wavenumbers (cm-1, from the start of the band), optical depths around one."""
    rng = np.random.default_rng(102)
    width = 40.0
    wavenumber = np.linspace(0.0, width, n)
    centre = np.sort(rng.uniform(0.0, width, n))
    strength = rng.gamma(0.7, 1.0, n) * width / n
    doppler = rng.uniform(0.04, 0.06, n)
    lorentz = rng.uniform(0.03, 0.12, n)
    return tuple(a.astype(np.float32) for a in (wavenumber, centre, strength, doppler, lorentz))


# --------------------------------------------------------------------------------------------------------------------
# 3. Seismology (gradient)
# --------------------------------------------------------------------------------------------------------------------


def etas_log_likelihood(log_parameters, times, places, magnitudes):
    """Mean log-likelihood of the space-time ETAS point process, Ogata, Ann. Inst. Stat. Math. 50 (1998) 379."""
    mu, k, alpha, c, p_minus_1, d, q_minus_1 = jnp.exp(log_parameters)
    horizon = times[-1] + 1.0
    area = 100.0 * 100.0
    productivity = k * jnp.exp(alpha * magnitudes)
    lag = times[:, None] - times[None, :]
    past = lag > 0.0
    omori = p_minus_1 / c * (1.0 + jnp.where(past, lag, 0.0) / c) ** (-p_minus_1 - 1.0)
    distance2 = jnp.sum((places[:, None, :] - places[None, :, :]) ** 2, axis=-1)
    spread = q_minus_1 / (jnp.pi * d**2) * (1.0 + distance2 / d**2) ** (-q_minus_1 - 1.0)
    triggered = jnp.sum(jnp.where(past, productivity[None, :] * omori * spread, 0.0), axis=1)
    intensity = mu / area + triggered
    integral = mu * horizon + jnp.sum(productivity * (1.0 - (1.0 + (horizon - times) / c) ** -p_minus_1))
    return (jnp.sum(jnp.log(intensity)) - integral) / times.shape[0]


def etas_score(log_parameters, times, places, magnitudes):
    """Score vector d log L / d log(mu, K, alpha, c, p - 1, d, q - 1) of the space-time ETAS model."""
    return jax.grad(etas_log_likelihood)(log_parameters, times, places, magnitudes)


def etas_arguments(n: int) -> tuple[np.ndarray, ...]:
    """A catalogue of n events (days, km, magnitude above threshold), a third of them clustered around earlier ones."""
    rng = np.random.default_rng(103)
    times = np.cumsum(0.05 + rng.exponential(0.95, n))
    places = rng.uniform(0.0, 100.0, (n, 2))
    for i in range(1, n):
        if i % 3 == 0:
            places[i] = places[max(0, i - 1 - int(rng.integers(0, 5)))] + rng.normal(0.0, 2.0, 2)
    magnitudes = np.minimum(rng.exponential(1.0 / 2.3, n), 3.0)
    log_parameters = np.log([0.6, 0.3, 1.0, 0.1, 0.3, 2.0, 0.8])
    return tuple(a.astype(np.float32) for a in (log_parameters, times, places, magnitudes))


# --------------------------------------------------------------------------------------------------------------------
# 4. Finance (gradient)
# --------------------------------------------------------------------------------------------------------------------


def asian_barrier_price(market, contract, normals, dates):
    """Monte Carlo price of a softly knocked-out arithmetic Asian call on Karhunen-Loeve Brownian paths."""
    spot, volatility, rate = market
    strike, barrier, softness = contract
    frequency = (jnp.arange(normals.shape[1]) + 0.5) * jnp.pi
    basis = jnp.sqrt(2.0) * jnp.sin(frequency[:, None] * dates[None, :]) / frequency[:, None]
    brownian = normals @ basis
    variance = jnp.sum(basis**2, axis=0)
    paths = spot * jnp.exp(rate * dates - 0.5 * volatility**2 * variance + volatility * brownian)
    alive = jax.nn.sigmoid((jnp.min(paths, axis=1) - barrier) / softness)
    payoff = jnp.maximum(jnp.mean(paths, axis=1) - strike, 0.0) * alive
    return jnp.exp(-rate * dates[-1]) * jnp.mean(payoff)


def asian_barrier_greeks(market, contract, normals, dates):
    """Pathwise delta, vega and rho, Glasserman, Monte Carlo Methods in Financial Engineering (2003), sect. 7.2."""
    return jax.grad(asian_barrier_price)(market, contract, normals, dates)


def asian_barrier_arguments(n: int) -> tuple[np.ndarray, ...]:
    """n paths of 16 normal modes over n fixing dates in one year."""
    rng = np.random.default_rng(104)
    market = np.array([100.0, 0.25, 0.03])
    contract = np.array([98.0, 80.0, 2.0])
    normals = rng.standard_normal((n, 16))
    dates = np.arange(1, n + 1) / n
    return tuple(a.astype(np.float32) for a in (market, contract, normals, dates))


# --------------------------------------------------------------------------------------------------------------------
# 5. Neuroscience (lax.scan around a big intermediate)
# --------------------------------------------------------------------------------------------------------------------


def kuramoto_velocity(phase, frequency, position):
    """Kuramoto-Sakaguchi phase velocity with decaying coupling and distance-dependent lag on a cortical sheet."""
    offset = position[:, None, :] - position[None, :, :]
    distance = jnp.sqrt(jnp.sum(offset**2, axis=-1) + 1e-6)
    coupling = jnp.exp(-distance / 0.2)
    coupling = coupling / jnp.sum(coupling, axis=1, keepdims=True)
    difference = phase[None, :] - phase[:, None] - 1.5 * distance
    return frequency + 4.0 * jnp.sum(coupling * jnp.sin(difference), axis=1)


def kuramoto_coherence(phase, frequency, position):
    """Order parameter |mean exp(i theta)| after each of 8 Heun steps, Breakspear et al., Front. Hum. Neurosci. 2010."""
    dt = 0.05

    def step(theta, _):
        first = kuramoto_velocity(theta, frequency, position)
        second = kuramoto_velocity(theta + dt * first, frequency, position)
        theta = theta + 0.5 * dt * (first + second)
        order = jnp.sqrt(jnp.mean(jnp.cos(theta)) ** 2 + jnp.mean(jnp.sin(theta)) ** 2)
        return theta, order

    _, coherence = lax.scan(step, phase, None, length=8)
    return coherence


def kuramoto_arguments(n: int) -> tuple[np.ndarray, ...]:
    """n oscillators scattered over a unit sheet, phases on an arc of about half a turn."""
    rng = np.random.default_rng(105)
    phase = rng.uniform(-1.5, 1.5, n)
    frequency = rng.normal(1.0, 0.3, n)
    position = rng.uniform(0.0, 1.0, (n, 2))
    return tuple(a.astype(np.float32) for a in (phase, frequency, position))


# --------------------------------------------------------------------------------------------------------------------
# 6. Plasma physics
# --------------------------------------------------------------------------------------------------------------------


def total_bicoherence(segments):
    """Mean squared bicoherence along f1 + f2 = f3 of probe data, van Milligen et al., Phys. Plasmas 2 (1995) 3017."""
    length = segments.shape[1]
    n = length // 4
    window = 0.5 - 0.5 * jnp.cos(2.0 * jnp.pi * (jnp.arange(length) + 0.5) / length)
    anomalies = segments - jnp.mean(segments, axis=1, keepdims=True)
    spectrum = jnp.fft.rfft(window * anomalies, axis=1) / jnp.sqrt(length)
    f = jnp.arange(1, n + 1)
    total = f[:, None] + f[None, :]
    pair = spectrum[:, f][:, :, None] * spectrum[:, f][:, None, :]
    third = spectrum[:, total]
    bispectrum = jnp.mean(pair * jnp.conj(third), axis=0)
    power = jnp.mean(jnp.abs(pair) ** 2, axis=0) * jnp.mean(jnp.abs(third) ** 2, axis=0)
    bicoherence = jnp.abs(bispectrum) ** 2 / power
    summed = jnp.zeros(2 * n + 1).at[total].add(bicoherence)
    count = jnp.zeros(2 * n + 1).at[total].add(1.0)
    return summed[2:] / count[2:]


def total_bicoherence_arguments(n: int) -> tuple[np.ndarray, ...]:
    """16 segments of 4 n samples: noise and two waves with random phases that beat quadratically."""
    rng = np.random.default_rng(106)
    t = np.arange(4 * n) / (4 * n)
    phase = rng.uniform(0.0, 2.0 * np.pi, (2, 16, 1))
    first = np.cos(2.0 * np.pi * (n // 4) * t + phase[0])
    second = np.cos(2.0 * np.pi * (n // 3) * t + phase[1])
    segments = first + second + 0.8 * first * second + rng.standard_normal((16, 4 * n))
    return (segments.astype(np.float32),)


# --------------------------------------------------------------------------------------------------------------------
# 7. Astronomy (argsort and argmin, two outputs)
# --------------------------------------------------------------------------------------------------------------------

CYCLE = 65536


def string_length_period(cadence, flux, trial):
    """Lafler-Kinman (1965) statistic for each trial frequency trial / CYCLE and the period (cadences) minimising it."""
    phase = (trial[:, None] * cadence[None, :]) % CYCLE
    order = jnp.argsort(phase, axis=1)
    folded = flux[order]
    jumps = jnp.sum((jnp.roll(folded, -1, axis=1) - folded) ** 2, axis=1)
    theta = jumps / (2.0 * jnp.sum((flux - jnp.mean(flux)) ** 2))
    return theta, CYCLE / trial[jnp.argmin(theta)]


def string_length_arguments(n: int) -> tuple[np.ndarray, ...]:
    """n epochs out of 4 n cadences of a skewed variable star, n integer trial frequencies (int32-safe to n = 20000)."""
    rng = np.random.default_rng(107)
    cadence = np.sort(rng.choice(4 * n, size=n, replace=False))
    stride = max(1, CYCLE // (8 * n))
    trial = stride * np.arange(1, n + 1)
    turn = 2.0 * np.pi * cadence * trial[(5 * n) // 8] / CYCLE
    flux = np.sin(turn) + 0.4 * np.sin(2.0 * turn + 0.7) + rng.normal(0.0, 0.15, n)
    return cadence.astype(np.int32), flux.astype(np.float32), trial.astype(np.int32)


# --------------------------------------------------------------------------------------------------------------------
# 8. Climatology
# --------------------------------------------------------------------------------------------------------------------


def segment_evidence(total, count, prior_variance=0.25):
    """log of int prod N(x; m, 1) N(m; 0, v) dm, less the terms all segmentations share."""
    scale = 1.0 + prior_variance * count
    return -0.5 * jnp.log(scale) + 0.5 * prior_variance * total**2 / scale


def changepoint_posterior(series):
    """Posterior probability of a break at each time given exactly two, Fearnhead, Stat. Comput. 16 (2006) 203."""
    n = series.shape[0]
    cumulative = jnp.cumsum(series)
    at = jnp.arange(1, n)
    before = cumulative[:-1]
    head = segment_evidence(before, at)
    middle = segment_evidence(before[None, :] - before[:, None], jnp.maximum(at[None, :] - at[:, None], 0))
    tail = segment_evidence(cumulative[-1] - before, n - at)
    joint = head[:, None] + middle + tail[None, :]
    joint = jnp.where(at[:, None] < at[None, :], joint, -jnp.inf)
    posterior = jnp.exp(joint - jax.nn.logsumexp(joint))
    return jnp.sum(posterior, axis=1) + jnp.sum(posterior, axis=0)


def changepoint_arguments(n: int) -> tuple[np.ndarray, ...]:
    """A standardised anomaly series of n values with two modest shifts of the mean."""
    rng = np.random.default_rng(108)
    t = np.arange(n)
    level = np.where(t < 0.3 * n, -0.3, np.where(t < 0.7 * n, 0.35, -0.1))
    return ((level + rng.standard_normal(n)).astype(np.float32),)


# --------------------------------------------------------------------------------------------------------------------
# 9. Phylogenetics
# --------------------------------------------------------------------------------------------------------------------


def neighbour_joining_k80(alignment):
    """Smallest neighbour-joining criterion (n - 2) d_ij - r_i - r_j of each taxon, d from Kimura (1980)."""
    n = alignment.shape[0]
    left, right = alignment[:, None, :], alignment[None, :, :]
    known = (left >= 0) & (right >= 0)
    same_class = left // 2 == right // 2
    sites = jnp.sum(known, axis=-1)
    transitions = jnp.sum(known & same_class & (left != right), axis=-1) / sites
    transversions = jnp.sum(known & ~same_class, axis=-1) / sites
    distance = -0.5 * jnp.log(1.0 - 2.0 * transitions - transversions) - 0.25 * jnp.log(1.0 - 2.0 * transversions)
    divergence = jnp.sum(distance, axis=1)
    criterion = (n - 2) * distance - divergence[:, None] - divergence[None, :]
    return jnp.min(jnp.where(jnp.eye(n, dtype=bool), jnp.inf, criterion), axis=1)


def neighbour_joining_arguments(n: int) -> tuple[np.ndarray, ...]:
    """n sequences of 128 sites (A, G, C, T = 0, 1, 2, 3, gap = -1) in eight clades under one root, 2 % gaps."""
    rng = np.random.default_rng(109)
    sites = 128

    def mutate(sequences: np.ndarray, rate: float) -> np.ndarray:
        draw = rng.uniform(size=sequences.shape)
        transition = sequences ^ 1
        transversion = sequences ^ (2 + rng.integers(0, 2, sequences.shape))
        return np.where(draw < 0.6 * rate, transition, np.where(draw < rate, transversion, sequences))

    root = rng.integers(0, 4, (1, sites))
    clades = mutate(np.repeat(root, 8, axis=0), 0.05)
    leaves = mutate(clades[rng.integers(0, 8, n)], 0.05)
    return (np.where(rng.uniform(size=leaves.shape) < 0.02, -1, leaves).astype(np.int32),)


# --------------------------------------------------------------------------------------------------------------------
# 10. Spatial statistics (four outputs)
# --------------------------------------------------------------------------------------------------------------------


def moran_geary_lisa(coordinates, values):
    """Moran's I, its z-score under normality, Geary's C and local Moran's I_i, Cliff & Ord (1981), Anselin (1995)."""
    n = values.shape[0]
    distance2 = jnp.sum((coordinates[:, None, :] - coordinates[None, :, :]) ** 2, axis=-1)
    bandwidth = 0.35
    weights = jnp.maximum(1.0 - distance2 / bandwidth**2, 0.0) ** 2 * (1.0 - jnp.eye(n))
    weights = weights / jnp.sum(weights, axis=1, keepdims=True)
    z = values - jnp.mean(values)
    squares = jnp.sum(z**2)
    s0 = jnp.sum(weights)
    s1 = 0.5 * jnp.sum((weights + weights.T) ** 2)
    s2 = jnp.sum((jnp.sum(weights, axis=0) + jnp.sum(weights, axis=1)) ** 2)
    moran = n / s0 * jnp.sum(weights * z[:, None] * z[None, :]) / squares
    expected = -1.0 / (n - 1.0)
    variance = (s1 - s2 / n + 3.0 * (s0 / n) ** 2) / ((1.0 - 1.0 / n**2) * s0**2) - expected**2
    geary = (n - 1.0) / (2.0 * s0) * jnp.sum(weights * (values[:, None] - values[None, :]) ** 2) / squares
    local = n * z * (weights @ z) / squares
    return moran, (moran - expected) / jnp.sqrt(variance), geary, local


def moran_arguments(n: int) -> tuple[np.ndarray, ...]:
    """n districts in the unit square with a smooth trend and noise."""
    rng = np.random.default_rng(110)
    coordinates = rng.uniform(0.0, 1.0, (n, 2))
    trend = np.sin(4.0 * coordinates[:, 0]) + np.cos(5.0 * coordinates[:, 1])
    values = 10.0 + trend + rng.normal(0.0, 0.5, n)
    return coordinates.astype(np.float32), values.astype(np.float32)


# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StrangerProgram:
    """A program, its arguments at scale n, and a scale at which it runs in milliseconds."""

    name: str
    function: Callable[..., Any]
    arguments: Callable[[int], tuple[np.ndarray, ...]]
    tiny: int


STRANGERS: dict[str, StrangerProgram] = {
    program.name: program
    for program in (
        StrangerProgram("biot_savart_filaments", biot_savart_filaments, biot_savart_arguments, 64),
        StrangerProgram("voigt_transmittance", voigt_transmittance, voigt_arguments, 64),
        StrangerProgram("etas_score", etas_score, etas_arguments, 64),
        StrangerProgram("asian_barrier_greeks", asian_barrier_greeks, asian_barrier_arguments, 64),
        StrangerProgram("kuramoto_coherence", kuramoto_coherence, kuramoto_arguments, 64),
        StrangerProgram("total_bicoherence", total_bicoherence, total_bicoherence_arguments, 32),
        StrangerProgram("string_length_period", string_length_period, string_length_arguments, 64),
        StrangerProgram("changepoint_posterior", changepoint_posterior, changepoint_arguments, 64),
        StrangerProgram("neighbour_joining_k80", neighbour_joining_k80, neighbour_joining_arguments, 32),
        StrangerProgram("moran_geary_lisa", moran_geary_lisa, moran_arguments, 64),
    )
}
