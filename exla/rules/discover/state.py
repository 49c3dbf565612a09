"""The state of a discovery: a file with one line of JSON for each signature that is done.

The first line says of which search and of which code it is. A line is on disk before the next signature is begun.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class StateError(ValueError):
    """A state file that does not belong to this search."""


def read_state(state: Path, header: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Read what is done, and make the file where there is none; a line that was cut off is removed.

    Args:
      state: the file.
      header: what its first line must be.

    Returns:
      Signature -> its line.

    Raises:
      StateError: if the file is damaged or has another header.
    """
    data = state.read_bytes() if state.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if not whole:
        state.unlink(missing_ok=True)
        append(state, header)
        return {}
    if whole != data:
        with open(state, "r+b") as file:
            file.truncate(len(whole))
    try:
        first, *lines = [json.loads(line) for line in whole.splitlines()]
        done = {line["signature"]: line for line in lines}
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{state} is damaged ({error}); begin anew with --again") from error
    if first != header:
        differing = sorted(k for k in header if not isinstance(first, dict) or first.get(k) != header[k])
        raise StateError(f"{state} is of another run ({', '.join(differing)} differ); begin anew with --again")
    return done


def append(state: Path, line: dict[str, Any]) -> None:
    """Add a line and wait until it is on disk."""
    with open(state, "ab") as file:
        file.write(json.dumps(line, sort_keys=True).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
