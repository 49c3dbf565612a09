"""Arrays of sensors, spectra and convolutions."""

import jax
import jax.numpy as jnp

SPEED = 343.0


def delay_and_sum(recordings, sensors, grid):
    """Near-field delay-and-sum beamforming (Van Trees, *Optimum Array Processing*, 2002). recordings (S, T)."""
    distance = jnp.sqrt(jnp.sum((grid[:, None] - sensors[None]) ** 2, axis=-1))
    delay = jnp.round(distance / SPEED * 8000).astype(jnp.int32)
    steps = delay[:, :, None] + jnp.arange(64)
    aligned = recordings[jnp.arange(len(sensors))[None, :, None], steps]
    return jnp.mean(jnp.sum(aligned, axis=1) ** 2, axis=-1)


def phased_power(covariance, sensors, grid, wavenumber):
    """Conventional beamformer map from a covariance (Johnson and Dudgeon, *Array Signal Processing*, 1993, 4.2)."""
    distance = jnp.sqrt(jnp.sum((grid[:, None] - sensors[None]) ** 2, axis=-1))
    steering = jnp.exp(-1j * wavenumber * distance) / distance
    return jnp.real(jnp.einsum("gs,st,gt->g", steering.conj(), covariance.astype(steering.dtype), steering))


def visibilities(flux, directions, baselines):
    """Direct Fourier sum of point sources (Thompson, Moran and Swenson, *Interferometry*, 2017, eq. 3.7)."""
    phase = 2 * jnp.pi * baselines @ directions.T
    return jnp.cos(phase) @ flux, -jnp.sin(phase) @ flux


def complex_visibilities(flux, directions, baselines):
    """The same with complex exponentials (codex-africanus' im_to_vis)."""
    return jnp.exp(-2j * jnp.pi * (baselines @ directions.T)) @ flux.astype(jnp.complex64)


def fft_convolution(signals, filters):
    """Long convolutions of all signals by all filters (Cooley and Tukey; Poli et al., *Hyena*, ICML 2023)."""
    length = signals.shape[-1] + filters.shape[-1]
    spectrum = jnp.fft.rfft(signals, length)[:, None] * jnp.fft.rfft(filters, length)[None]
    return jnp.max(jnp.fft.irfft(spectrum, length), axis=-1)


def spectrogram(signal, window):
    """Power of overlapping frames (Allen and Rabiner, 1977; SciPy's spectrogram)."""
    frame, hop = len(window), len(window) // 16
    starts = jnp.arange(0, len(signal) - frame + 1, hop)
    frames = signal[starts[:, None] + jnp.arange(frame)] * window
    return jnp.mean(jnp.abs(jnp.fft.rfft(frames, axis=1)) ** 2, axis=0)


def back_projection(sinogram, angles, grid):
    """Back-projection of parallel-beam tomography (Kak and Slaney, 1988, 3.3), linear interpolation."""
    detectors = sinogram.shape[1]
    position = grid[:, :1] * jnp.cos(angles) + grid[:, 1:] * jnp.sin(angles)
    position = jnp.clip((position + 1) / 2 * (detectors - 1), 0, detectors - 1.001)
    low = jnp.floor(position).astype(jnp.int32)
    part = position - low
    view = jnp.arange(len(angles))[None, :]
    return jnp.mean((1 - part) * sinogram[view, low] + part * sinogram[view, low + 1], axis=1)


def structure_factor(positions, wavevectors):
    """Static structure factor of particles (Hansen and McDonald, *Theory of Simple Liquids*, 2013, eq. 4.1.3)."""
    phase = wavevectors @ positions.T
    return (jnp.sum(jnp.cos(phase), axis=1) ** 2 + jnp.sum(jnp.sin(phase), axis=1) ** 2) / len(positions)


def neural_operator(fields, weights):
    """A Fourier layer (Li et al., *Fourier Neural Operator*, ICLR 2021). fields (B, N, C), weights (M, C, C, 2)."""
    modes = len(weights)
    spectrum = jnp.fft.rfft(fields, axis=1)[:, :modes]
    mixed = jnp.einsum("bmc,mcd->bmd", spectrum, jax.lax.complex(weights[..., 0], weights[..., 1]))
    out = jnp.fft.irfft(mixed, fields.shape[1], axis=1)
    return jnp.mean(jax.nn.gelu(out + fields), axis=(1, 2))
