"""exla's version, and a hash of the code that decides how programs are rewritten."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def rules_hash() -> str:
    """Hash of the source of the IR, the rules and the passes: records made with other code are not replayed."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for folder in ("ir", "rules", "passes", "search"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
