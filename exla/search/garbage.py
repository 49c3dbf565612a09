"""Planning without looking for garbage.

    with uncollected():
        ...

A plan is made of many small objects that all live until it is there, among the hundreds of thousands that JAX keeps.
Python's collector walks over them again and again and frees next to nothing, which takes a third of the time.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_inside = 0
_was_enabled = False


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Run what follows while Python's cyclic collector is off; it is as before when the last thread has left."""
    global _inside, _was_enabled
    with _lock:
        if not _inside:
            _was_enabled = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _was_enabled:
                gc.enable()
