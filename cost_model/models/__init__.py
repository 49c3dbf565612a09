"""The architectures of the cost model, one file each; `MODELS` lists them."""

from __future__ import annotations

from typing import Any

from flax import linen as nn

from exla.registry import Registry

NODES, KERNEL = "nodes", "kernel"
"""What a configuration is of, and a model's `CONFIGURES`: (c, nc, 18) of nodes, or (c, 24) of the whole kernel."""
MODELS: Registry[type[nn.Module]] = Registry("cost model", "exla.cost_model.models")


def configures(name: str) -> str:
    """`NODES` or `KERNEL`: what the configurations are of that a model reads; it would not see others."""
    model: Any = MODELS.get(name)
    return model.CONFIGURES
