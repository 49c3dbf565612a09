"""The machine: memory and cores, and what of them this process may use."""

from __future__ import annotations

import os
from collections.abc import Sequence

from exla.doctor.finding import NOTE, OK, Finding


def memory() -> Sequence[Finding]:
    """What programs on the CPU may use where no memory_limit is named, and what leaves them less."""
    from exla.targets.cpu import available_bytes, cgroup_bytes
    from exla.units import format_bytes

    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free, allowed = available_bytes(), min(cgroup_bytes(), default=None)
    usable = free if allowed is None else min(free, allowed)
    found = [
        Finding(
            name="memory",
            status=OK,
            found=f"{format_bytes(usable)} may be used now, of the machine's {format_bytes(whole)}",
        )
    ]
    if allowed is not None and allowed < free:
        text = (
            f"this process's control group leaves it {format_bytes(allowed)} of the {format_bytes(free)} that are free"
        )
        found.append(Finding(name="control group", status=NOTE, found=text))
    return found


def cores() -> Sequence[Finding]:
    """The cores that this process may run on."""
    allowed, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    if allowed == there:
        return (Finding(name="cores", status=OK, found=str(there)),)
    return (Finding(name="cores", status=NOTE, found=f"{allowed} of {there}: this process is bound to these"),)
