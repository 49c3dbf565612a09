"""All checks, in the order in which they are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from exla.doctor.devices import compilers, default_device
from exla.doctor.environment import exla_variables, other_variables
from exla.doctor.finding import PROBLEM, Finding
from exla.doctor.installed import extras, requirements, versions
from exla.doctor.machine import cores, memory
from exla.doctor.records import tuning_records

Check = Callable[[], Sequence[Finding]]
CHECKS: tuple[Check, ...] = (
    *(versions, requirements, extras),
    *(memory, cores, default_device, compilers),
    *(tuning_records, exla_variables, other_variables),
)


def examine(checks: Sequence[Check] = CHECKS) -> Iterator[Finding]:
    """Run checks one after the other.

    Args:
      checks: what to run.

    Yields:
      Their findings; of a check that fails, the failure.
    """
    for check in checks:
        try:
            yield from check()
        except Exception as error:
            yield Finding(
                name=check.__name__.replace("_", " "),
                status=PROBLEM,
                found=f"cannot be looked at: {type(error).__name__}: {error}",
                next_step="mend what the message names" if isinstance(error, ImportError) else "please report it",
            )
