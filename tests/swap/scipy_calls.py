"""Calls of jax.scipy."""

import jax
import jax.numpy as jnp
from jax.scipy import fft, integrate, interpolate, linalg, ndimage, optimize, signal, sparse, special, stats
from jax.scipy.cluster import vq
from jax.scipy.spatial import transform

from tests.swap.arguments import (
    MATRICES,
    SIGNALS,
    SIGNED,
    SIGNED_THIN,
    WHOLE,
    X,
    Y,
    around,
    floats,
    grid,
    matrices,
    positive,
    whole,
)

UNARY = """
    digamma entr erf erfc erfinv exp1 expi gamma gammaln i0 i0e i1 i1e log_ndtr logit ndtr ndtri spence factorial
    gammasgn expit dawsn erfcx
"""
BINARY = "xlogy xlog1py rel_entr kl_div boxcox boxcox1p beta betaln gammainc gammaincc poch"

SPECIAL = {
    **around("jax.scipy.special", UNARY, lambda x, y: (grid(x, y),), (X, Y)),
    **around("jax.scipy.special", BINARY, lambda x, y: (x[:, None] + 0.5, y), (X, Y)),
    "zeta": lambda x, y: special.zeta(2 + x[:, None], 1 + y) @ y,
    "betainc": lambda x, y: special.betainc(1 + x[:, None], 2.0, y) @ y,
    "multigammaln": lambda x, y: special.multigammaln(3 + grid(x, y), 2) @ y,
    "polygamma": lambda x, y: special.polygamma(1, 1 + grid(x, y)) @ y,
    "expn": lambda x, y: special.expn(2, grid(x, y)) @ y,
    "bessel_jn": lambda x, y: special.bessel_jn(2 + jnp.sort(grid(x, y), axis=1)[:, 9], v=3, n_iter=20),
    "fresnel": lambda x, y: [v @ y for v in special.fresnel(grid(x, y))],
    "sici": lambda x, y: [v @ y for v in special.sici(grid(x, y))],
    "hyp1f1": lambda x, y: special.hyp1f1(1.5, 2.5, grid(x, y)) @ y,
    "comb": (lambda x, y: special.comb(20.0, whole(x, y) * 1.0) @ (y * 1.0), WHOLE),
    "logsumexp": (lambda a, b: special.logsumexp(a @ b, axis=1, b=b[1] ** 2), SIGNED_THIN),
    "softmax": (lambda a, b: special.softmax(a @ b, axis=0)[::50], SIGNED_THIN),
    "log_softmax": (lambda a, b: special.log_softmax(a @ b, axis=1) @ b[0], SIGNED_THIN),
    "owens_t": lambda x, y: special.owens_t(x[:, None], y) @ y,
}

AROUND_ONE = "norm cauchy logistic gumbel_l gumbel_r expon laplace uniform"
STATS = {
    **{
        key: (lambda x, y, f=f: f(y + 0.1 * x[:, None], 0.1 * x[:, None], 1 + x[:, None]) @ y, (X, Y))
        for family in AROUND_ONE.split()
        for kind in ("pdf", "logpdf", "cdf")
        for key, f in [(f"{family}.{kind}", getattr(getattr(stats, family), kind))]
    },
    **{
        key: (lambda x, y, f=f: jnp.sort(f(grid(x, y), 0.1, 2.0), axis=1)[:, ::60], (X, Y))
        for key, f in {
            "norm.ppf": stats.norm.ppf,
            "norm.logcdf": stats.norm.logcdf,
            "norm.sf": stats.norm.sf,
            "norm.isf": stats.norm.isf,
            "cauchy.ppf": stats.cauchy.ppf,
            "logistic.ppf": stats.logistic.ppf,
            "expon.sf": stats.expon.sf,
            "gumbel_r.ppf": stats.gumbel_r.ppf,
        }.items()
    },
    "beta.logpdf": lambda x, y: stats.beta.logpdf(grid(x, y), 1 + x[:, None], 2.0) @ y,
    "beta.cdf": lambda x, y: stats.beta.cdf(grid(x, y), 1.5, 2.0) @ y,
    "gamma.logpdf": lambda x, y: stats.gamma.logpdf(grid(x, y), 1 + x[:, None]) @ y,
    "gamma.cdf": lambda x, y: x @ stats.gamma.cdf(grid(x, y), 1 + x[:, None]),
    "chi2.pdf": lambda x, y: stats.chi2.pdf(x[:, None], 1 + y) @ y,
    "chi2.sf": lambda x, y: stats.chi2.sf(x[:, None], 1 + y) @ y,
    "t.logpdf": lambda x, y: stats.t.logpdf(x[:, None], 3 + y) @ y,
    "pareto.pdf": lambda x, y: stats.pareto.pdf(1 + x[:, None], 1 + y) @ y,
    "gennorm.logpdf": lambda x, y: stats.gennorm.logpdf(x[:, None], 1 + y) @ y,
    "truncnorm.logpdf": lambda x, y: stats.truncnorm.logpdf(grid(x, y), -1.0, 1 + y) @ y,
    "vonmises.logpdf": lambda x, y: stats.vonmises.logpdf(x[:, None], 1 + y) @ y,
    "wrapcauchy.logpdf": lambda x, y: stats.wrapcauchy.logpdf(x[:, None], y) @ y,
    "bernoulli.logpmf": lambda x, y: stats.bernoulli.logpmf(jnp.round(grid(x, y)), y) @ y,
    "bernoulli.ppf": lambda x, y: stats.bernoulli.ppf(x[:, None], y) @ y,
    "binom.logpmf": (lambda x, y: stats.binom.logpmf(whole(x, y), 20, 0.3) @ y, WHOLE),
    "betabinom.logpmf": (lambda x, y: stats.betabinom.logpmf(whole(x, y), 20, 2.0, 3.0) @ y, WHOLE),
    "geom.pmf": (lambda x, y: stats.geom.pmf(1 + whole(x, y), 0.3) @ y, WHOLE),
    "nbinom.logpmf": (lambda x, y: stats.nbinom.logpmf(whole(x, y), 5, 0.3) @ y, WHOLE),
    "poisson.logpmf": (lambda x, y: stats.poisson.logpmf(whole(x, y), 4.5) @ y, WHOLE),
    "poisson.cdf": (lambda x, y: stats.poisson.cdf(whole(x, y), 4.5) @ y, WHOLE),
    "dirichlet.logpdf": lambda x, y: stats.dirichlet.logpdf(jax.nn.softmax(grid(y[:9], x), axis=0), 1 + x[:9]),
    "multinomial.logpmf": (
        lambda x, y: stats.multinomial.logpmf(jnp.sort(whole(x, y), axis=1)[:, 40:43], 30, jnp.ones(3) / 3),
        WHOLE,
    ),
    "multivariate_normal.logpdf": (
        lambda x, m: stats.multivariate_normal.logpdf(matrices(x, m), m[0], m @ m.T + jnp.eye(5)).max(axis=1),
        MATRICES,
    ),
    "gaussian_kde": lambda x, y: stats.gaussian_kde(x).logpdf(y),
    "mode": (lambda x, y: stats.mode(whole(x, y), axis=1), WHOLE),
    "rankdata": (lambda a, b: stats.rankdata(a @ b, axis=1)[:, ::99], SIGNED_THIN),
    "sem": (lambda a, b: stats.sem(a @ b, axis=1), SIGNED_THIN),
}

OF_MATRICES = {
    "linalg.cholesky": lambda x, m: linalg.cholesky(positive(x, m), lower=True)[:, 2],
    "linalg.cho_factor": lambda x, m: linalg.cho_factor(positive(x, m))[0][:, 0, 1],
    "linalg.cho_solve": lambda x, m: linalg.cho_solve((linalg.cholesky(positive(x, m)), False), x[:, None, None] * m)[
        :, 0, 1
    ],
    "linalg.det": lambda x, m: linalg.det(matrices(x, m)),
    "linalg.eigh": lambda x, m: linalg.eigh(positive(x, m), eigvals_only=True)[:, 0],
    "linalg.expm": lambda x, m: linalg.expm(matrices(x[:401], m) / 4).max(axis=(1, 2)),
    "linalg.inv": lambda x, m: linalg.inv(matrices(x, m))[:, 2, 2],
    "linalg.lu": lambda x, m: jax.vmap(linalg.lu)(matrices(x, m))[2][:, 0],
    "linalg.lu_factor": lambda x, m: linalg.lu_factor(matrices(x, m))[1],
    "linalg.lu_solve": lambda x, m: linalg.lu_solve(linalg.lu_factor(matrices(x, m)), x[:, None, None] * m)[:, 1, 1],
    "linalg.qr": lambda x, m: linalg.qr(matrices(x, m), mode="r")[0][:, 1, 1],
    "linalg.solve": lambda x, m: linalg.solve(positive(x, m), x[:, None] * m[1], assume_a="pos").max(axis=1),
    "linalg.solve_triangular": lambda x, m: linalg.solve_triangular(matrices(x, m), x[:, None, None] * m).max(axis=1),
    "linalg.svd": lambda x, m: linalg.svd(matrices(x, m), compute_uv=False)[:, 1],
    "linalg.hessenberg": lambda x, m: linalg.hessenberg(matrices(x, m))[:, 0, 0],
    "linalg.schur": lambda x, m: jnp.trace(linalg.schur(matrices(x, m))[0], axis1=1, axis2=2),
    "linalg.block_diag": lambda x, m: linalg.block_diag(*(x[:60, None] * m[0] for _ in range(4))) @ x[:20],
    "spatial.transform.Rotation": lambda x, m: transform.Rotation.from_rotvec(x[:, None] * m[0, :3]).as_matrix()[
        :, 0, 0
    ],
}
OF_SIGNALS = {
    "signal.convolve": lambda x, y: jnp.abs(signal.convolve(grid(x, y), grid(x[:3], x[:5]), mode="same")).max(axis=1),
    "signal.convolve2d": lambda x, y: jnp.abs(signal.convolve2d(grid(x, y), grid(x[:3], x[:3]), mode="valid")).max(0),
    "signal.correlate": lambda x, y: signal.correlate(grid(x, y).ravel()[:50021], x, mode="valid")[::999],
    "signal.correlate2d": lambda x, y: signal.correlate2d(grid(x, y), grid(x[:3], x[:3]), mode="same").max(axis=1),
    "signal.fftconvolve": lambda x, y: signal.fftconvolve(grid(x, y), grid(x, y[:9]), mode="full", axes=1)[:, ::200],
    "signal.detrend": lambda x, y: signal.detrend(grid(x, jnp.sin(9 * y)), axis=1)[:, ::200],
    "signal.stft": lambda x, y: jnp.abs(signal.stft(grid(x, y), nperseg=64)[2]).max(axis=(1, 2)),
    "signal.welch": lambda x, y: signal.welch(grid(x, y), nperseg=128)[1][:, ::9],
    "signal.csd": lambda x, y: signal.csd(grid(x, y), grid(x, y[::-1]), nperseg=128)[1][:, ::20],
    "fft.dct": lambda x, y: fft.dct(grid(x, y), axis=1)[:, ::100],
    "fft.idct": lambda x, y: fft.idct(grid(x, y), axis=1)[:, ::100],
    "fft.dctn": lambda x, y: fft.dctn(grid(x, y).T[:, :100].reshape(-1, 10, 10), axes=(1, 2))[:, 0, 3],
}
SCIPY = {
    **{f"special.{name}": call for name, call in SPECIAL.items()},
    **{f"stats.{name}": call for name, call in STATS.items()},
    **{name: (function, MATRICES) for name, function in OF_MATRICES.items()},
    **{name: (function, SIGNALS) for name, function in OF_SIGNALS.items()},
    "linalg.toeplitz": (lambda x, y: linalg.toeplitz(x, y) @ y, SIGNED),
    "linalg.circulant": (lambda x, y: linalg.circulant(x) @ x, SIGNED),
    "linalg.hankel": (lambda x, y: x @ linalg.hankel(x, y), SIGNED),
    "linalg.convolution_matrix": (lambda x, y: linalg.convolution_matrix(x[:100], 200) @ y[:200], SIGNED),
    "linalg.hilbert": (lambda x: jnp.sort(linalg.hilbert(257) * x, axis=1)[:, 0], (X,)),
    "linalg.dft": (lambda x: linalg.dft(200) @ x[:200], (X,)),
    "linalg.solve_sylvester": (
        lambda a, b: linalg.solve_sylvester(b @ b.T + 9 * jnp.eye(8), a.T @ a, (a @ b)[:8, :8]),
        SIGNED_THIN,
    ),
    "ndimage.map_coordinates": (
        lambda a, b: ndimage.map_coordinates(a @ b, [40 * (1 + a), 50 * (1 + a[:, ::-1])], order=1).max(axis=1),
        SIGNED_THIN,
    ),
    "ndimage.map_coordinates, of a grid": (
        lambda x, y: ndimage.map_coordinates(y, [300 * grid(x, y)], order=0, mode="nearest").max(axis=1),
        (X, Y),
    ),
    "cluster.vq.vq": (lambda a, b: vq.vq(a, b.T), SIGNED_THIN),
    "integrate.trapezoid": (
        lambda a, b: integrate.trapezoid(jnp.sin(a @ b), x=jnp.cumsum(b[0] ** 2), axis=1),
        SIGNED_THIN,
    ),
    "interpolate.RegularGridInterpolator": (
        lambda x, y: interpolate.RegularGridInterpolator((jnp.linspace(0, 1, 307),), y)(grid(x, y)[..., None]) @ y,
        (X, Y),
    ),
    "optimize.minimize": (
        lambda a, b: (
            optimize.minimize(
                lambda v: jnp.sum((jnp.tanh(a @ b) @ v - 1) ** 2) / 99, b[0], method="BFGS", options={"maxiter": 2}
            ).fun
        ),
        (SIGNED_THIN[0], floats(8, 71, low=-1, high=1)),
    ),
    "sparse.linalg.cg": (
        lambda a, b: sparse.linalg.cg(lambda v: v + 0.01 * (a @ b).T @ ((a @ b) @ v), b[0], maxiter=4)[0],
        SIGNED_THIN,
    ),
}
