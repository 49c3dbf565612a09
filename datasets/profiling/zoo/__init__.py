"""The zoo: real programs of every kind, unchanged, with their sources."""
