"""Modules as JAX lowered them once, `NAME.hlo.pb`, and their graphs, `NAME.npz`; `make.py` makes both."""
