"""The table: public calls of JAX, each written as a user would.

`CALLS[name] == (function, arguments)`. A name is that of the public function, such as "jax.numpy.cumsum"; where a
function is called in several ways, a comma and a word about the way follow.
"""

from tests.swap.arguments import X, Y
from tests.swap.lax_calls import IMAGE, LAX, LAX_LINALG, OPS
from tests.swap.nn_calls import NN, RANDOM
from tests.swap.numpy_elementwise import NUMPY_ELEMENTWISE
from tests.swap.numpy_reductions import NUMPY_REDUCTIONS
from tests.swap.numpy_shapes import NUMPY_SHAPES
from tests.swap.scipy_calls import SCIPY

TABLES = (
    ("jax.numpy", NUMPY_ELEMENTWISE),
    ("jax.numpy", NUMPY_REDUCTIONS),
    ("jax.numpy", NUMPY_SHAPES),
    ("jax.lax", LAX),
    ("jax.lax.linalg", LAX_LINALG),
    ("jax.ops", OPS),
    ("jax.image", IMAGE),
    ("jax.nn", NN),
    ("jax.random", RANDOM),
    ("jax.scipy", SCIPY),
)


def _with_arguments(call):
    """A call that is a function alone is one of two vectors of numbers between 0 and 1."""
    function, arguments = call if isinstance(call, tuple) else (call, None)
    return function, arguments or (X, Y)


CALLS = {f"{module}.{name}": _with_arguments(call) for module, table in TABLES for name, call in table.items()}
assert len(CALLS) == sum(len(table) for _, table in TABLES), "two calls have the same name"


def public(name):
    """The public function's name."""
    return name.partition(",")[0]
