"""Families of primitives, by how the compiler treats them. Names are those of jaxprs."""

from __future__ import annotations


def named(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


ELEMENTWISE = named("""
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
    convert_element_type copy cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
    igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi
    name ne neg nextafter not one_minus_square or polygamma polynomial population_count pow random_gamma_grad real
    reduce_precision regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta
""")
"""One output element from the operands' elements at the same index."""

VIEWS = named("reshape squeeze expand_dims optimization_barrier stop_gradient exla_unless")
"""Primitives whose result is the operand's buffer seen in another shape; `exla_unless` mostly hands it on."""

RESHAPED = named("reshape squeeze expand_dims")
"""Primitives whose result is the operand in another shape."""

ADDS = named("add add_any")
"""Primitives that add two values."""

EXCHANGING = named("""
    all_gather all_gather_invariant all_to_all pbroadcast pmax pmin ppermute psum psum_invariant ragged_all_to_all
    reduce_scatter
""")
"""Primitives for each operand of which devices exchange data; those that begin it and go on are not counted."""

CHEAP = named("""
    broadcast_in_dim iota convert_element_type add sub mul neg max min select_n and or not xor eq ne lt le gt ge
    square abs sign transpose rev slice pad clamp
""")
"""Fusible primitives that the compiler computes again for every consumer rather than store."""

FUSIBLE = ELEMENTWISE | CHEAP | VIEWS | {"concatenate", "tile"}
"""Primitives that XLA computes inside the loop of their consumer."""

STANDING = named("exla_sealed exla_unless")
"""exla's own primitives that stand for what their one body computes."""

SCATTERS = named("scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max")
"""Primitives that write updates into their first operand."""

IN_PLACE = FUSIBLE | SCATTERS | {"dynamic_update_slice"}
"""Primitives whose result can take the place of an operand that is not read again."""

REDUCERS = named("""
    reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor argmax argmin reduce
""")
"""Primitives into which XLA fuses the computation of their operand."""

FUSING = FUSIBLE | REDUCERS
"""Primitives that compute their operands as they go."""

EXTREMES = named("reduce_max reduce_min")
"""Reducers that pick one of the numbers."""

WINDOWED = named("reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or")
"""Reducers that XLA:CPU computes by windows, in passes, where an axis is long."""

CUMULATIVE = named("cumsum cumprod cummax cummin cumlogsumexp")

TRANSCENDENTAL = named("""
    exp exp2 expm1 log log1p log2 logistic tanh sin cos tan pow rsqrt cbrt rem erf erfc erf_inv atan2 sinh cosh asin
    acos atan lgamma digamma
""")
"""Element-wise primitives that cost several times an addition; vectors divide and take roots as fast as they load."""

SERIAL = named("sin cos tan pow rem cbrt atan2 asin acos atan lgamma digamma random_bits threefry2x32")
"""Element-wise primitives that XLA:CPU computes in several branches or rounds, or calls a library for."""

BRANCHED = named("div sqrt rsqrt log log1p pow tan tanh")
"""Element-wise primitives that XLA:CPU computes in branches where numbers are complex: in vectors what is stored, and
one number after the other what a reduction reads as it goes."""
