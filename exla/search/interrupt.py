"""Ctrl-C while candidates are measured."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets besides raising KeyboardInterrupt, which a callback from C++ may swallow."""
    event = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield event
        return

    def interrupt(number: int, frame: Any) -> None:
        event.set()
        before(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
