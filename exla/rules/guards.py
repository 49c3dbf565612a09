"""What several replace rules ask of a match."""

from __future__ import annotations

from exla.ir.rewrites import Admitted, Match

FLOATS = ("float32", "float64")


def floating(match: Match) -> str | Admitted:
    """Decline arguments that are not float32 or float64: integers and narrow types have other laws."""
    kinds = sorted({str(d) for d in match.dtypes.values()})
    return Admitted() if set(kinds) <= set(FLOATS) else f"its types are {kinds}, not {' or '.join(FLOATS)}"
