"""exla's version, and a hash of the code that decides how programs are rewritten."""

from __future__ import annotations

import hashlib
import itertools
from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def rules_hash() -> str:
    """Hash of the source of the IR, the rules and the passes, of what judges compiled code, and of rules that are data:
    records made with other code are not replayed."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    folders = (root / name for name in ("ir", "rules", "passes", "search"))
    paths = (sorted(p for kind in ("*.py", "*.json") for p in folder.rglob(kind)) for folder in folders)
    for path in (*itertools.chain.from_iterable(paths), root / "targets" / "hlo_text.py", root / "scratch.py"):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
