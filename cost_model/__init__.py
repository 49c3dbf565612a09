"""Learned cost models: which configuration of a program is fastest, by a graph neural network over its HLO."""
