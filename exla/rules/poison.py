"""What multiplying by zero leaves behind: 0 times infinity and 0 times NaN are NaN.

A product with a diagonal or one-hot matrix multiplies all that is not selected by zero, and adds it up. A rewrite that
only looks at what is selected must give NaN where that sum would have been NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from exla.rules.primitives import number


def not_finite(values: Any) -> Any:
    """1 where a value is infinite or NaN, else 0; int32, of the same shape."""
    return lax.convert_element_type(lax.bitwise_not(lax.is_finite(values)), np.int32)


def poisoned(result: Any, others: Any) -> Any:
    """A result, NaN where any of `others` (how many unselected values are not finite; of its shape) says so."""
    return lax.select(lax.gt(others, number(others, 0)), lax.full_like(result, np.nan), result)
