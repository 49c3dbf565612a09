"""A word to whoever waits for a search that takes long: that it goes on, and what it has found so far.

It is a warning of the logger "exla", the first after half a minute and each after twice the time of the one before.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

FIRST_S = 30.0
LOGGER = logging.getLogger("exla")


@contextlib.contextmanager
def patience(so_far: Callable[[], str]) -> Iterator[None]:
    """Say what a block is about while it runs, once it takes long.

    Args:
      so_far: what is known, in words; called by another thread.
    """
    begin, ended = time.monotonic(), threading.Event()

    def watch() -> None:
        wait = FIRST_S
        while not ended.wait(wait):
            LOGGER.warning("exla has searched for %.0f s: %s", time.monotonic() - begin, so_far())
            wait *= 2

    threading.Thread(target=watch, name="exla-patience", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
