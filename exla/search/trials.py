"""What a search by measuring is asked, what it tells while it runs, and what it answers."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable
from dataclasses import dataclass

from exla.passes.decisions import Decision
from exla.search.choice import Call, Choice


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a search may spend: seconds of this process, and trials, those that records answer among them."""

    seconds: float = math.inf
    trials: int = 32


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One candidate and how it went.

    Attributes:
      decisions: the candidate; () = the program as jax.jit compiles it.
      status: as of a record.
      peak_bytes: what it takes by the compiler's word.
      run_s: median seconds of one run, set against the plain program's; None where it was not measured.
      source: "measured", "record", or "twin" where it compiles to the code of an earlier one.
    """

    decisions: tuple[Decision, ...]
    status: str
    peak_bytes: int | None = None
    run_s: float | None = None
    source: str = "measured"

    def __str__(self) -> str:
        return "; ".join(map(str, self.decisions)) or "the program as jax.jit compiles it"


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a search found.

    Attributes:
      choice: what won; None where nothing obeyed the limit.
      trials: every candidate, the plain program first.
      stop: why it ended: "exhausted", "trials", "seconds" or "interrupted".
      seconds: how long it took.
      plain_s: what the plain program takes, within the limit or not; None where that was not measured.
      call: what was searched for.
      not_kept: why the next process will not find the winner; "" where it will, or where there is none.
    """

    choice: Choice | None
    trials: tuple[Trial, ...]
    stop: str
    seconds: float
    plain_s: float | None = None
    call: Call
    not_kept: str = ""


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Who follows the searches of a block: there, what an earlier search found is no reason not to search.

    Attributes:
      seed: of the strategies.
      trial: called with each trial, and the best so far.
      done: called with what a search found.
      learned: called with what was learned from it, in words.
    """

    seed: int = 0
    trial: Callable[[Trial, Trial | None], None] = lambda trial, best: None
    done: Callable[[Tuned], None] = lambda tuned: None
    learned: Callable[[str], None] = lambda words: None


listener: contextvars.ContextVar[Listener | None] = contextvars.ContextVar("exla_search_listener", default=None)
