"""What is expected of the calls, beyond their values. Names are without "jax."; each ends with a semicolon."""


def _names(text):
    return frozenset(f"jax.{name.strip()}" for name in text.split(";") if name.strip())


NEED_NOT_BE_SPLIT = _names("""
    numpy.isreal; numpy.gcd; numpy.lcm; numpy.frexp; numpy.ldexp; numpy.choose; numpy.interp; numpy.polyval;
    numpy.zeros_like; numpy.ediff1d; numpy.nanmedian; numpy.nanquantile; numpy.nanpercentile; numpy.cov;
    numpy.corrcoef; numpy.digitize; numpy.searchsorted; numpy.histogram; numpy.histogram2d; numpy.sort_complex;
    numpy.unique; numpy.unique_counts; numpy.union1d; numpy.intersect1d; numpy.setdiff1d; numpy.extract;
    numpy.compress; numpy.reshape; numpy.reshape, by columns; numpy.ravel; numpy.moveaxis; numpy.roll, both;
    numpy.rot90; numpy.block; numpy.vsplit; numpy.unstack; numpy.pad; numpy.pad, with edges; numpy.pad, reflected;
    numpy.take; numpy.put_along_axis; numpy.resize; numpy.diag; numpy.diagonal; numpy.diagflat; numpy.fill_diagonal;
    numpy.einsum; numpy.linalg.multi_dot; numpy.linalg.inv; numpy.linalg.solve; numpy.linalg.tensorsolve;
    numpy.reshape, of parts; numpy.convolve; numpy.correlate; numpy.put; numpy.place; numpy.ix_; numpy.arange;
    numpy.tril_indices; lax.reshape; lax.collapse; lax.rev; lax.slice; lax.map; lax.scan; lax.cond; lax.switch;
    lax.optimization_barrier; lax.conv_transpose; lax.ragged_dot; image.scale_and_translate; random.choice, weighted;
    random.permutation; random.ball; random.gamma; random.dirichlet; random.poisson; random.key_data; random.t;
    scipy.special.exp1; scipy.special.expi; scipy.special.ndtri; scipy.special.spence; scipy.special.dawsn;
    scipy.special.erfcx; scipy.special.gammainc; scipy.special.gammaincc; scipy.special.poch; scipy.special.betainc;
    scipy.special.multigammaln; scipy.special.polygamma; scipy.special.expn; scipy.special.fresnel;
    scipy.special.sici; scipy.special.hyp1f1; scipy.special.comb; scipy.special.owens_t; scipy.stats.norm.ppf;
    scipy.stats.norm.isf; scipy.stats.beta.logpdf; scipy.stats.beta.cdf; scipy.stats.gamma.logpdf;
    scipy.stats.gamma.cdf; scipy.stats.chi2.pdf; scipy.stats.chi2.sf; scipy.stats.betabinom.logpmf;
    scipy.stats.poisson.cdf; scipy.stats.dirichlet.logpdf; scipy.stats.mode; scipy.stats.rankdata;
    scipy.linalg.expm; scipy.linalg.inv; scipy.linalg.lu; scipy.linalg.solve; scipy.linalg.block_diag;
    scipy.spatial.transform.Rotation; scipy.signal.convolve; scipy.signal.convolve2d; scipy.signal.correlate;
    scipy.signal.correlate2d; scipy.signal.stft; scipy.signal.welch; scipy.signal.csd; scipy.linalg.solve_sylvester;
    scipy.ndimage.map_coordinates; scipy.interpolate.RegularGridInterpolator; scipy.optimize.minimize;
    scipy.sparse.linalg.cg;
""")
"""May be refused, or need no chunk loop, under both limits and on some release of JAX."""

SLOW = _names("""
    numpy.arcsin; numpy.arccos; numpy.arctanh; numpy.log; numpy.log10; numpy.log2; numpy.sqrt; numpy.reciprocal;
    numpy.cbrt; numpy.exp; numpy.exp2; numpy.expm1; numpy.log1p; numpy.i0; numpy.sinc; numpy.arctan; numpy.arcsinh;
    numpy.sin; numpy.cos; numpy.tan; numpy.sinh; numpy.cosh; numpy.tanh; numpy.deg2rad; numpy.rad2deg; numpy.abs;
    numpy.fabs; numpy.ceil; numpy.floor; numpy.rint; numpy.round; numpy.trunc; numpy.sign; numpy.signbit;
    numpy.negative; numpy.positive; numpy.square; numpy.nan_to_num; numpy.isfinite; numpy.isinf; numpy.isnan;
    numpy.isneginf; numpy.isposinf; numpy.isreal; numpy.iscomplex; numpy.real; numpy.imag; numpy.conj;
    numpy.arccosh; numpy.add; numpy.multiply; numpy.divide; numpy.maximum; numpy.minimum; numpy.fmax; numpy.fmin;
    numpy.hypot; numpy.arctan2; numpy.copysign; numpy.heaviside; numpy.logaddexp; numpy.logaddexp2; numpy.equal;
    numpy.not_equal; numpy.less; numpy.less_equal; numpy.greater; numpy.greater_equal; numpy.isclose;
    numpy.floor_divide; numpy.mod; numpy.fmod; numpy.power; numpy.float_power; numpy.bitwise_or; numpy.bitwise_xor;
    numpy.gcd; numpy.lcm; numpy.frexp; numpy.ldexp; numpy.where, of scalars; numpy.choose; numpy.interp;
    numpy.polyval; numpy.unwrap; numpy.zeros_like; numpy.ones_like; numpy.sum; numpy.sum, of all;
    numpy.sum, kept axes; numpy.sum, masked; numpy.prod; numpy.std; numpy.var; numpy.max; numpy.any; numpy.all;
    numpy.argmax, of all; numpy.argmin; numpy.ptp; numpy.average; numpy.count_nonzero; numpy.nansum; numpy.nanprod;
    numpy.nanmean; numpy.nanstd; numpy.nanvar; numpy.nanmin; numpy.nanargmax; numpy.nanargmin; numpy.cumsum;
    numpy.cumsum, down; numpy.cumprod; numpy.nancumprod; numpy.cumulative_sum; numpy.cumulative_prod; numpy.ediff1d;
    numpy.gradient; numpy.nanmedian; numpy.quantile; numpy.nanquantile; numpy.percentile; numpy.nanpercentile;
    numpy.cov; numpy.corrcoef; numpy.argsort; numpy.argpartition; numpy.digitize; numpy.searchsorted;
    numpy.histogram; numpy.histogram2d; numpy.histogram_bin_edges; numpy.histogramdd; numpy.isin;
    numpy.sum, of flags; numpy.sum, in another type; numpy.prod, of bytes; numpy.argmax, of ties;
    numpy.argsort, of ties; numpy.lexsort; numpy.sort_complex; numpy.unique; numpy.unique_counts; numpy.union1d;
    numpy.intersect1d; numpy.setdiff1d; numpy.nonzero; numpy.flatnonzero; numpy.argwhere; numpy.extract;
    numpy.compress; numpy.reshape; numpy.reshape, by columns; numpy.ravel; numpy.swapaxes; numpy.moveaxis;
    numpy.rollaxis; numpy.permute_dims; numpy.roll; numpy.roll, both; numpy.rot90; numpy.flip; numpy.fliplr;
    numpy.broadcast_arrays; numpy.repeat, by counts; numpy.concatenate; numpy.hstack; numpy.dstack;
    numpy.column_stack; numpy.block; numpy.split; numpy.hsplit; numpy.vsplit; numpy.unstack; numpy.pad;
    numpy.pad, with edges; numpy.pad, reflected; numpy.take; numpy.take, along; numpy.take_along_axis;
    numpy.put_along_axis; numpy.delete; numpy.insert; numpy.resize; numpy.tril; numpy.triu; numpy.diag;
    numpy.diagonal; numpy.diagflat; numpy.fill_diagonal; numpy.trace; numpy.meshgrid; numpy.atleast_2d; numpy.dot;
    numpy.matmul; numpy.vdot; numpy.inner; numpy.tensordot; numpy.einsum; numpy.einsum, three at once; numpy.kron;
    numpy.cross; numpy.vecdot; numpy.matvec; numpy.vecmat; numpy.linalg.norm; numpy.linalg.norm, of a matrix;
    numpy.linalg.vector_norm; numpy.linalg.multi_dot; numpy.linalg.matmul; numpy.linalg.lstsq; numpy.fft.fft;
    numpy.fft.irfft; numpy.fft.ihfft; numpy.fft.fft2; numpy.fft.ifft2; numpy.fft.rfft2; numpy.fft.irfft2;
    numpy.fft.fftn; numpy.fft.ifftn; numpy.fft.rfftn; numpy.fft.fftshift; numpy.fft.ifftshift; numpy.fft.fftfreq;
    numpy.linalg.inv; numpy.linalg.det; numpy.linalg.slogdet; numpy.linalg.svd; numpy.linalg.svdvals;
    numpy.linalg.eigvalsh; numpy.linalg.eigvals; numpy.linalg.solve; numpy.linalg.pinv; numpy.linalg.matrix_rank;
    numpy.linalg.matrix_power; numpy.linalg.cond; numpy.linalg.trace; numpy.linalg.diagonal;
    numpy.linalg.tensorsolve; numpy.reshape, of parts; numpy.convolve; numpy.correlate; numpy.put; numpy.place;
    numpy.ravel_multi_index; numpy.unravel_index; numpy.ix_; numpy.indices; numpy.arange; numpy.linspace;
    numpy.logspace; numpy.geomspace; numpy.eye; numpy.identity; numpy.tril_indices; numpy.kaiser; numpy.polyfit;
    numpy.polymul; lax.rsqrt; lax.erfc; lax.lgamma; lax.bessel_i1e; lax.log1p; lax.exp2; lax.expm1; lax.is_finite;
    lax.asinh; lax.clz; lax.igamma; lax.igammac; lax.zeta; lax.rem; lax.pow; lax.nextafter; lax.mulhi;
    lax.shift_right_logical; lax.shift_left; lax.betainc; lax.polygamma; lax.argmax; lax.argmin; lax.cumsum;
    lax.cumprod; lax.cummax; lax.cummin; lax.cumlogsumexp; lax.top_k; lax.top_k, wider; lax.approx_max_k;
    lax.approx_min_k; lax.sort; lax.sort_key_val; lax.reduce; lax.reduce_sum; lax.reduce_max; lax.reduce_min;
    lax.reduce_prod; lax.reduce_and; lax.reduce_or; lax.reduce_xor; lax.reduce_window; lax.reduce_window, down;
    lax.broadcast; lax.broadcast_in_dim; lax.reshape; lax.collapse; lax.transpose; lax.squeeze; lax.expand_dims;
    lax.rev; lax.pad; lax.concatenate; lax.slice; lax.index_in_dim; lax.dynamic_slice_in_dim;
    lax.dynamic_index_in_dim; lax.split; lax.dot_general; lax.dot_general, in batches; lax.batch_matmul; lax.clamp;
    lax.complex; lax.fft; lax.convert_element_type; lax.reduce_precision; lax.integer_pow; lax.map; lax.scan;
    lax.fori_loop; lax.while_loop; lax.cond; lax.switch; lax.associative_scan; lax.stop_gradient;
    lax.optimization_barrier; lax.conv; lax.custom_linear_solve; lax.conv_general_dilated_patches; lax.select_n;
    lax.top_k, of ties; lax.sort, of ties; lax.gather; lax.index_take; lax.scatter_add; lax.scatter_sub;
    lax.scatter_mul; lax.scatter_max; lax.scatter; lax.ragged_dot; lax.linalg.cholesky; lax.linalg.svd;
    lax.linalg.householder_product; lax.linalg.triangular_solve; lax.linalg.tridiagonal;
    lax.linalg.tridiagonal_solve; lax.linalg.hessenberg; lax.linalg.symmetric_product; lax.linalg.eig;
    ops.segment_prod; ops.segment_max; ops.segment_min; image.resize; image.scale_and_translate; nn.celu; nn.elu;
    nn.gelu; nn.hard_sigmoid; nn.hard_silu; nn.leaky_relu; nn.log_sigmoid; nn.mish; nn.sigmoid; nn.silu;
    nn.sparse_plus; nn.sparse_sigmoid; nn.squareplus; nn.softmax; nn.softmax, down; nn.softmax, masked;
    nn.log_softmax; nn.logsumexp; nn.logsumexp, signed; nn.logmeanexp; nn.standardize; nn.glu; nn.one_hot;
    nn.dot_product_attention; nn.dot_product_attention, causal; nn.initializers.glorot_normal;
    nn.initializers.he_uniform; nn.initializers.constant; random.normal; random.uniform; random.bits; random.gumbel;
    random.exponential; random.cauchy; random.double_sided_maxwell; random.truncated_normal; random.randint;
    random.geometric; random.lognormal; random.triangular; random.wald; random.normal, half precision;
    random.normal, complex; random.split; random.fold_in; random.categorical; random.categorical, many;
    random.choice; random.choice, weighted; random.permutation; random.permutation, independent;
    random.multivariate_normal; random.orthogonal; random.ball; random.gamma; random.dirichlet; random.poisson;
    random.key_data; random.key; random.PRNGKey; random.t; scipy.special.digamma; scipy.special.erfc;
    scipy.special.erfinv; scipy.special.exp1; scipy.special.expi; scipy.special.gamma; scipy.special.gammaln;
    scipy.special.i0; scipy.special.i0e; scipy.special.i1e; scipy.special.log_ndtr; scipy.special.logit;
    scipy.special.ndtri; scipy.special.spence; scipy.special.factorial; scipy.special.gammasgn; scipy.special.expit;
    scipy.special.dawsn; scipy.special.erfcx; scipy.special.xlogy; scipy.special.xlog1py; scipy.special.rel_entr;
    scipy.special.kl_div; scipy.special.boxcox; scipy.special.boxcox1p; scipy.special.beta; scipy.special.betaln;
    scipy.special.gammainc; scipy.special.gammaincc; scipy.special.poch; scipy.special.zeta; scipy.special.betainc;
    scipy.special.multigammaln; scipy.special.polygamma; scipy.special.expn; scipy.special.bessel_jn;
    scipy.special.fresnel; scipy.special.sici; scipy.special.hyp1f1; scipy.special.comb; scipy.special.logsumexp;
    scipy.special.softmax; scipy.special.log_softmax; scipy.special.owens_t; scipy.stats.norm.cdf;
    scipy.stats.cauchy.pdf; scipy.stats.logistic.pdf; scipy.stats.logistic.logpdf; scipy.stats.gumbel_l.pdf;
    scipy.stats.gumbel_l.logpdf; scipy.stats.gumbel_r.pdf; scipy.stats.gumbel_r.logpdf; scipy.stats.expon.pdf;
    scipy.stats.laplace.pdf; scipy.stats.uniform.pdf; scipy.stats.uniform.cdf; scipy.stats.norm.ppf;
    scipy.stats.norm.logcdf; scipy.stats.norm.sf; scipy.stats.norm.isf; scipy.stats.logistic.ppf;
    scipy.stats.expon.sf; scipy.stats.beta.logpdf; scipy.stats.beta.cdf; scipy.stats.gamma.logpdf;
    scipy.stats.gamma.cdf; scipy.stats.chi2.pdf; scipy.stats.chi2.sf; scipy.stats.t.logpdf; scipy.stats.pareto.pdf;
    scipy.stats.gennorm.logpdf; scipy.stats.truncnorm.logpdf; scipy.stats.vonmises.logpdf;
    scipy.stats.bernoulli.logpmf; scipy.stats.bernoulli.ppf; scipy.stats.binom.logpmf; scipy.stats.betabinom.logpmf;
    scipy.stats.geom.pmf; scipy.stats.nbinom.logpmf; scipy.stats.poisson.logpmf; scipy.stats.poisson.cdf;
    scipy.stats.dirichlet.logpdf; scipy.stats.multinomial.logpmf; scipy.stats.multivariate_normal.logpdf;
    scipy.stats.gaussian_kde; scipy.stats.mode; scipy.stats.rankdata; scipy.stats.sem; scipy.linalg.cholesky;
    scipy.linalg.cho_solve; scipy.linalg.det; scipy.linalg.expm; scipy.linalg.inv; scipy.linalg.lu;
    scipy.linalg.lu_factor; scipy.linalg.lu_solve; scipy.linalg.qr; scipy.linalg.solve;
    scipy.linalg.solve_triangular; scipy.linalg.svd; scipy.linalg.schur; scipy.linalg.block_diag;
    scipy.spatial.transform.Rotation; scipy.signal.convolve; scipy.signal.convolve2d; scipy.signal.correlate;
    scipy.signal.correlate2d; scipy.signal.detrend; scipy.signal.stft; scipy.signal.welch; scipy.signal.csd;
    scipy.fft.idct; scipy.fft.dctn; scipy.linalg.toeplitz; scipy.linalg.hankel; scipy.linalg.convolution_matrix;
    scipy.linalg.solve_sylvester; scipy.ndimage.map_coordinates; scipy.cluster.vq.vq; scipy.integrate.trapezoid;
    scipy.interpolate.RegularGridInterpolator; scipy.optimize.minimize; scipy.sparse.linalg.cg;
""")
"""Run by `pytest -m sweep` only: all but the quickest."""

TOLERANCES = {
    "jax.nn.logsumexp, signed": 1e-4,  # the logarithm of a small difference of large sums
}
"""Errors that are allowed where 1e-5 of the greatest is too little."""

JAX_LOSES_NAN = _names("numpy.max, of holes;")
"""`jax.jit` is wrong here: jax 0.10.2 and 0.12 compile a maximum to a library call (YNNPACK) that loses NaN."""
