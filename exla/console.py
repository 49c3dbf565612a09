"""Where every command prints its tables: as wide as the terminal, and wide where there is none.

to_output().print(table)
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console

WIDE = 200
"""Columns where standard output is no terminal and COLUMNS does not say: rich would take 80, and fold every cell."""


def to_output(**how: Any) -> Console:
    """Standard output as it is now.

    Args:
      **how: other arguments of `rich.console.Console`.
    """
    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(width=None if is_known else WIDE, **how)
