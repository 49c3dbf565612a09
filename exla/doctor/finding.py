"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
      name: what was looked at.
      status: OK; NOTE, which may be meant so; or PROBLEM, which somebody has to mend.
      found: what was found.
      next_step: what can be done about it, or "".
    """

    name: str
    status: str
    found: str
    next_step: str = ""
