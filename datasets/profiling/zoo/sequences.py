"""Recurrences, alignments, state spaces and embeddings."""

import jax
import jax.numpy as jnp
from jax import lax


def rnn(inputs, embedding, recurrent, readout, state):
    """An Elman network over a batch of sequences (Elman, 1990; torch.nn.RNN). inputs (T, B, D)."""

    def step(h, x):
        h = jnp.tanh(x @ embedding + h @ recurrent)
        return h, h @ readout

    return lax.scan(step, state, inputs)


def rnn_gradient(inputs, embedding, recurrent, readout, state):
    """Backpropagation through time for that network (Werbos, 1990)."""
    return jax.grad(lambda w: jnp.mean(rnn(inputs, embedding, w, readout, state)[1] ** 2))(recurrent)


def selective_scan(x, delta, a, b, c):
    """The selective state space of Mamba (Gu and Dao, 2023, algorithm 2). x, delta (T, D); a (D, N); b, c (T, N)."""
    delta = jax.nn.softplus(delta)
    decay = jnp.exp(delta[:, :, None] * -jnp.exp(a))
    drive = (delta * x)[:, :, None] * b[:, None, :]

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    _, states = lax.associative_scan(combine, (decay, drive))
    return jnp.einsum("tdn,tn->td", states, c)


def smith_waterman(first, second):
    """Smooth local alignment score, one row at a time (Smith and Waterman, 1981; Petti et al., 2023, SMURF)."""
    scores = first @ second.T

    def row(above, score):
        diagonal = jnp.concatenate([jnp.zeros(1, score.dtype), above[:-1]]) + score
        candidates = jnp.maximum(jnp.maximum(diagonal, above - 1), 0)

        def cell(left, candidate):
            best = jnp.maximum(candidate, left - 1)
            return best, best

        _, new = lax.scan(cell, jnp.zeros((), score.dtype), candidates)
        return new, jnp.max(new)

    _, best = lax.scan(row, jnp.zeros(len(second), first.dtype), scores)
    return jnp.max(best)


def viterbi(emissions, transition):
    """Best path scores of a linear-chain CRF and its back pointers (Viterbi, 1967; Lafferty et al., 2001)."""

    def step(best, here):
        candidates = best[:, None] + transition
        return jnp.max(candidates, axis=0) + here, jnp.argmax(candidates, axis=0).astype(jnp.int32)

    return lax.scan(step, emissions[0], emissions[1:])


def embedding_bag(table, indices, weights):
    """Weighted bags of embeddings (torch.nn.EmbeddingBag; Naumov et al., *DLRM*, 2019)."""
    return jnp.einsum("bk,bkd->bd", weights, table[indices])


def bigram_scores(table, left, right):
    """Scores of pairs of tokens through two gathers (Mikolov et al., word2vec, NIPS 2013, negative sampling)."""
    return jnp.mean(jax.nn.log_sigmoid(jnp.sum(table[left][:, None, :] * table[right], axis=-1)))


def einsum_chain(a, b, c, v):
    """A product of matrices and a vector, associated badly (Cormen et al., *Introduction to Algorithms*, 15.2)."""
    return jnp.tanh(a @ b) @ c @ v
