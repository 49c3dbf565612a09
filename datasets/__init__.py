"""Data sets: TpuGraphs files, and profiles of exla's own candidates."""
