"""Training and evaluation of the cost models in `exla.cost_model`."""
