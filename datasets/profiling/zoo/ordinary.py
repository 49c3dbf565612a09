"""Ordinary programs that fit: exla has nothing to do here."""

import jax
import jax.numpy as jnp
from jax import lax


def mlp_step(parameters, x, y):
    """One SGD step of a perceptron (JAX documentation, *Training a simple neural network*)."""

    def loss(p):
        hidden = x
        for w, b in p[:-1]:
            hidden = jax.nn.relu(hidden @ w + b)
        return jnp.mean((hidden @ p[-1][0] + p[-1][1] - y) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, jax.grad(loss)(parameters))


def layer_norm(x, scale, offset):
    """Layer normalisation (Ba, Kiros and Hinton, 2016)."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.var(x, axis=-1, keepdims=True) + 1e-5) * scale + offset


def batch_norm(x, scale, offset):
    """Batch normalisation in training, with its new statistics (Ioffe and Szegedy, ICML 2015)."""
    mean, variance = jnp.mean(x, axis=(0, 1, 2)), jnp.var(x, axis=(0, 1, 2))
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + offset, mean, variance


def low_pass(signal):
    """An ideal low-pass filter by FFT (Oppenheim and Schafer, *Discrete-Time Signal Processing*, 2009)."""
    spectrum = jnp.fft.rfft(signal)
    return jnp.fft.irfft(jnp.where(jnp.arange(len(spectrum)) < len(spectrum) // 8, spectrum, 0), len(signal))


def cholesky_solve(a, b):
    """A positive definite system (Golub and Van Loan, *Matrix Computations*, 2013, 4.2)."""
    matrix = a @ a.T + len(a) * jnp.eye(len(a), dtype=a.dtype)
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix), b)


def sort_pairs(keys, values):
    """Values in the order of their keys (NumPy's argsort and take)."""
    return values[jnp.argsort(keys)]


def dropout(x, weights):
    """Inverted dropout with a key made inside (Srivastava et al., JMLR 2014)."""
    keep = jax.random.uniform(jax.random.key(0), x.shape, jnp.float32) < 0.8
    return jnp.where(keep, x / 0.8, 0) @ weights


def linear_regression(x, y):
    """Normal equations with a small ridge (Hastie et al., *Elements of Statistical Learning*, 2009, 3.4)."""
    return jnp.linalg.solve(x.T @ x + 0.1 * jnp.eye(x.shape[1], dtype=x.dtype), x.T @ y)


def qr_least_squares(x, y):
    """Least squares by QR (Trefethen and Bau, *Numerical Linear Algebra*, 1997, lecture 11)."""
    q, r = jnp.linalg.qr(x)
    return jax.scipy.linalg.solve_triangular(r, q.T @ y)


def kalman_filter(observations):
    """A constant-velocity Kalman filter by scan (Särkkä, *Bayesian Filtering and Smoothing*, 2013, 4.3)."""
    dtype = observations.dtype
    f, q = jnp.array([[1, 0.1], [0, 1]], dtype), 0.01 * jnp.eye(2, dtype=dtype)

    def step(state, y):
        m, p = f @ state[0], f @ state[1] @ f.T + q
        s = p[0, 0] + 0.5
        gain = p[:, 0] / s
        m, p = m + gain * (y - m[0]), p - jnp.outer(gain, gain) * s
        return (m, p), m

    return lax.scan(step, (jnp.zeros(2, dtype), jnp.eye(2, dtype=dtype)), observations)[1]


def power_iteration(a, v):
    """The dominant eigenvalue of a Gram matrix (Golub and Van Loan, *Matrix Computations*, 2013, 7.3)."""
    matrix = a @ a.T / a.shape[1] + 3 * jnp.outer(v, v) / (v @ v)

    def step(_, u):
        u = matrix @ u
        return u / jnp.linalg.norm(u)

    u = lax.fori_loop(0, 30, step, v / jnp.linalg.norm(v))
    return u @ matrix @ u


def softmax_regression_step(weights, x, labels):
    """One gradient step of multinomial regression (Bishop, *PRML*, 2006, 4.3.4)."""

    def loss(w):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x @ w), labels[:, None], axis=1))

    value, gradient = jax.value_and_grad(loss)(weights)
    return value, weights - 0.5 * gradient


def small_conv(images, kernel, bias):
    """Convolution, rectifier and max pooling (LeCun et al., *LeNet*, 1998)."""
    out = lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return lax.reduce_window(jax.nn.relu(out + bias), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def embedding_lookup(table, tokens):
    """Token and sinusoidal position embeddings (Vaswani et al., 2017, 3.4 and 3.5)."""
    length, width = tokens.shape[-1], table.shape[1]
    rate = 1e4 ** (-jnp.arange(0, width, 2, dtype=table.dtype) / width)
    angle = jnp.arange(length, dtype=table.dtype)[:, None] * rate
    return table[tokens] * width**0.5 + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)


def moving_average(x):
    """A moving average by prefix sums (Blelloch, *Prefix Sums and Their Applications*, 1990)."""
    total = jnp.cumsum(x)
    return (total[16:] - total[:-16]) / 16


def histogram(values, weights):
    """A weighted histogram by segment_sum (NumPy's histogram)."""
    bins = jnp.clip((values * 32).astype(jnp.int32), 0, 31)
    return jax.ops.segment_sum(weights, bins, num_segments=32)


def newton_step(weights, x, y):
    """A Newton step of logistic regression (Hastie et al., *Elements of Statistical Learning*, 2009, 4.4.1)."""
    p = jax.nn.sigmoid(x @ weights)
    hessian = (x.T * (p * (1 - p))) @ x + 0.1 * jnp.eye(len(weights), dtype=x.dtype)
    return weights + jnp.linalg.solve(hessian, x.T @ (y - p))


def adam_update(parameters, gradients, first, second):
    """One update of Adam (Kingma and Ba, ICLR 2015, algorithm 1, step 3)."""
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradients)
    update = jax.tree.map(
        lambda p, m, v: p - 1e-3 * (m / (1 - 0.9**3)) / (jnp.sqrt(jnp.abs(v) / (1 - 0.999**3)) + 1e-8),
        parameters,
        first,
        second,
    )
    return update, first, second


def bilinear_resize(image):
    """Twice the size by bilinear interpolation (jax.image.resize)."""
    height, width, channels = image.shape
    return jax.image.resize(image, (2 * height, 2 * width, channels), "bilinear")


def lorenz(states):
    """Runge-Kutta on many Lorenz systems (Lorenz, 1963; Hairer et al., *Solving ODEs I*, 1993)."""

    def slope(s):
        x, y, z = s[..., 0], s[..., 1], s[..., 2]
        return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], axis=-1)

    def step(s, _):
        k1 = slope(s)
        k2 = slope(s + 0.0005 * k1)
        k3 = slope(s + 0.0005 * k2)
        k4 = slope(s + 0.001 * k3)
        return s + 0.001 / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return lax.scan(step, states, length=20)[0]


def heat_equation(field):
    """Explicit diffusion on a periodic grid (LeVeque, *Finite Difference Methods*, 2007, 9)."""

    def step(_, u):
        neighbours = jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1)
        return u + 0.2 * (neighbours - 4 * u)

    return lax.fori_loop(0, 10, step, field)


def lstm_cell(x, state, cell, weights):
    """One step of an LSTM (Hochreiter and Schmidhuber, 1997; torch.nn.LSTMCell)."""
    i, f, g, o = jnp.split(jnp.concatenate([x, state], axis=1) @ weights, 4, axis=1)
    cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def page_rank(senders, receivers, start):
    """PageRank by twenty power iterations over edges (Page et al., 1999)."""
    n = len(start)
    degree = jnp.maximum(jax.ops.segment_sum(jnp.ones(len(senders), start.dtype), senders, num_segments=n), 1)

    def step(rank, _):
        received = jax.ops.segment_sum((rank / degree)[senders], receivers, num_segments=n)
        return 0.15 / n + 0.85 * received, None

    return lax.scan(step, start / jnp.sum(start), length=20)[0]


def bisection(lows, highs):
    """Roots of many cubics by a while loop (Press et al., *Numerical Recipes*, 2007, 9.1)."""

    def unfinished(state):
        return state[2] < 40

    def halve(state):
        low, high, count = state
        middle = (low + high) / 2
        left = middle**3 + middle - 1 > 0
        return jnp.where(left, low, middle), jnp.where(left, middle, high), count + 1

    return lax.while_loop(unfinished, halve, (lows, highs, 0))[0]
