"""Sizes in bytes, read and written.

`parse_size("1.5GiB")` is 1610612736. kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB are powers of 1024; a
number without a unit is bytes. Fractions are allowed and rounded down to whole bytes.
"""

from __future__ import annotations

import math
import operator
import re
from typing import SupportsIndex

from exla.errors import OptionError

UNITS = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_BY_LOWER_CASE = {name.lower(): scale for name, scale in UNITS.items()}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*")


def parse_size(value: SupportsIndex | str, name: str = "size") -> int:
    """Read a size.

    Args:
      value: whole bytes, of Python, NumPy or JAX, or text such as "512MiB", "2 GB", "4096".
      name: what the size is for, in error messages.

    Returns:
      Bytes, at least 1.

    Raises:
      OptionError: for another type, an unknown unit, or a size below one byte.
    """
    if not isinstance(value, str):
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            whole = f": int({value!r})?" if isinstance(value, float) and math.isfinite(value) else ""
            raise OptionError(f'{name} must be bytes as an int or a text such as "512MiB", not {value!r}{whole}')
        try:
            size = operator.index(value)
        except TypeError as error:  # an array of more than one number, or of other numbers
            raise OptionError(f"{name} must be bytes as an int, not {value!r}: {error}") from None
    else:
        matched = _SIZE.fullmatch(value)
        if matched is None:
            raise OptionError(f'{name}={value!r} is not a size; write a number and a unit, e.g. "512MiB" or "1.5GB"')
        number, unit = matched.groups()
        scale = UNITS.get(unit) or _BY_LOWER_CASE.get(unit.lower()) if unit else 1
        if scale is None:
            raise OptionError(f"{name}={value!r} has the unknown unit {unit!r}; valid units: {', '.join(UNITS)}")
        size = math.floor(int(number) * scale if number.isdigit() else float(number) * scale)
    if size < 1:
        raise OptionError(f"{name}={value!r} is {size} bytes; it must be at least 1")
    return size


def format_bytes(count: int) -> str:
    """Write bytes as MiB (GiB from 10 GiB on, KiB below 1 MiB), one decimal."""
    if abs(count) >= 10 * 1024**3:
        return f"{count / 1024**3:,.1f} GiB"
    if abs(count) >= 1024**2:
        return f"{count / 1024**2:,.1f} MiB"
    if abs(count) >= 1024:
        return f"{count / 1024:,.1f} KiB"
    return f"{count} B"
