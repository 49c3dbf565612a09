"""The search: candidates are proposed, compiled, counted, recorded, and one is chosen."""
