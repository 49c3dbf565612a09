"""Ring attention (Liu, Zaharia and Abbeel, 2023), without the running maximum: it exchanges in a loop of its own."""

import jax
import jax.numpy as jnp


def ring_of(count):
    """What each of `count` devices along the axis "i" computes of its rows of q, k and v."""
    around = [(a, (a + 1) % count) for a in range(count)]

    def share(q, k, v):
        def turn(state, _):
            k, v, sums, weights = state
            here = jnp.exp(q @ k.T / 8)
            k, v = (jax.lax.ppermute(t, "i", around) for t in (k, v))
            return (k, v, sums + here @ v, weights + here.sum(axis=1)), None

        (_, _, sums, weights), _ = jax.lax.scan(turn, (k, v, 0 * q, 0 * q[:, 0]), None, length=count)
        return sums / weights[:, None]

    return share
