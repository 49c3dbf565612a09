"""exla's version, and a hash of the code that decides how programs are rewritten."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def rules_hash() -> str:
    """Hash of the source of the IR, the rules and the passes, and of rules that are data: records made with other code
    are not replayed."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for folder in ("ir", "rules", "passes", "search"):
        for path in sorted(p for kind in ("*.py", "*.json") for p in (root / folder).rglob(kind)):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
