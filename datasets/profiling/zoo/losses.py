"""Losses that compare everything in a batch with everything else, and losses over large vocabularies."""

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp


def unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def clip(images, texts, log_temperature):
    """Symmetric contrastive loss (Radford et al., *CLIP*, ICML 2021, figure 3)."""
    images, texts, scale = unit(images), unit(texts), jnp.exp(log_temperature)
    logits = images @ texts.T * scale
    matching = jnp.sum(images * texts, axis=1) * scale
    rows, columns = logsumexp(logits, axis=1) - matching, logsumexp(logits, axis=0) - matching
    return (jnp.mean(rows) + jnp.mean(columns)) / 2


def info_nce(anchors, positives, negatives):
    """InfoNCE with a bank of negatives (He et al., *MoCo*, CVPR 2020, eq. 1)."""
    anchors, positives, negatives = unit(anchors), unit(positives), unit(negatives)
    positive = jnp.sum(anchors * positives, axis=1, keepdims=True)
    logits = jnp.concatenate([positive, anchors @ negatives.T], axis=1) / 0.07
    return -jnp.mean(jax.nn.log_softmax(logits, axis=1)[:, 0])


def linear_cross_entropy(hidden, classifier, labels):
    """Cross entropy from hidden states over a large vocabulary (Wijmans et al., *Cut Your Losses*, ICLR 2025)."""
    logits = hidden @ classifier
    label_logits = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.mean(logsumexp(logits, axis=1) - label_logits)


def ranknet(scores, relevance):
    """Pairwise logistic ranking loss (Burges et al., *RankNet*, ICML 2005; Rax' pairwise_logistic_loss)."""
    better = relevance[:, None] > relevance[None, :]
    losses = jax.nn.softplus(-(scores[:, None] - scores[None, :]))
    return jnp.sum(jnp.where(better, losses, 0)) / jnp.maximum(jnp.sum(better), 1)


def cox_partial_likelihood(features, coefficients, times, events):
    """Cox partial likelihood with risk sets as a mask (Cox, 1972; Breslow's ties)."""
    risk = features @ coefficients
    at_risk = times[None, :] >= times[:, None]
    total = logsumexp(jnp.where(at_risk, risk[None, :], -jnp.inf), axis=1)
    return -jnp.sum(events * (risk - total)) / jnp.sum(events)
