"""What a campaign measures, as a small TOML file.

    name = "cpu"
    target = "cpu"                     # or tpu:v5e, …: then the compiler's estimate is the label, and nothing runs
    zoo = ["chamfer", "attention"]     # left out: all that can be split
    generated = 40                     # programs made up at random
    own = ["my_package.kernels:PROGRAMS"]  # a table of your own: name -> what has function, arguments and tiny
    megabytes = [32, 128]              # what the plain program is projected to take, at which sizes are found
    shares = [0.3, 0.1]                # of its temporaries: the room under the limit

Each program at each size under each limit is an *instance*, and its candidates are those of the pool
(`exla.search.pool`). What is left out has the default written in `Campaign`. A key that does not exist, or a value of
the wrong kind, is an `OptionError` that says what there is.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from exla.datasets.profiling.generated import generate
from exla.datasets.profiling.zoo.families import FAMILIES
from exla.datasets.profiling.zoo.programs import ZOO
from exla.errors import OptionError

SPLITS = (("train", 0.65), ("valid", 0.8), ("test", 1.0))
"""Split of the data set -> up to which share of the families it goes."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """A campaign.

    Fields:
      name: of the data set.
      target: what is compiled for; "cpu" is measured, a TPU estimated by its compiler.
      zoo: names of programs; () = every one that belongs to a family.
      own: tables of programs, as "module:NAME"; such a module is imported, as in `exla plan module:function`. Where
        there are any, `zoo` () = none.
      generated: how many programs are made up.
      first_generated: seed of the first of them.
      megabytes: projected peaks of the plain programs, 10^6 bytes; a size for each.
      shares: of the projected temporaries: what is left of them under the limit; above 1, more than is projected.
      candidates: most of an instance, those of `unsure` apart.
      walk: the factor between a chunk size and the next: every candidate of the walks is measured (`exla.search.pool`),
        however many they are. 0 = a part of the space, as `candidates` and `unsure` say.
      unsure: how many more are taken that, as far as the target's weights know, might be the fastest: the model's score
        less its doubt decides. 0 = none; needs weights.
      rounds_s: seconds for the rounds in which the candidates of an instance are timed.
      instance_s: seconds for one instance, after which no further candidate begins.
      timeout_s: seconds without a word after which a process is taken for hung.
      run_s: the same while it runs something: what takes longer is given up, as "timeout".
      seed: of what is chosen at random.
    """

    name: str = "campaign"
    target: str = "cpu"
    zoo: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    generated: int = 0
    first_generated: int = 0
    megabytes: tuple[float, ...] = (32.0, 128.0)
    shares: tuple[float, ...] = (0.3, 0.1)
    candidates: int = 40
    walk: int = 0
    unsure: int = 0
    rounds_s: float = 12.0
    instance_s: float = 120.0
    timeout_s: float = 120.0
    run_s: float = 120.0
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [n for n in self.zoo if n not in ZOO]
        if unknown:
            raise OptionError(f"zoo: no program is called {unknown[0]!r}{_nearest(unknown[0], list(ZOO))}")
        bad = [x for x in (*self.megabytes, *self.shares) if x <= 0]
        if bad or not self.megabytes or not self.shares:
            raise OptionError(f"megabytes and shares are above 0, one of each at least; got {bad}")
        above = (self.candidates, self.rounds_s, self.instance_s, self.timeout_s, self.run_s)
        if min(above) <= 0 or self.generated < 0:
            raise OptionError("candidates, rounds_s, instance_s, timeout_s and run_s are above 0, generated not below")
        if self.walk < 0 or self.walk == 1 or (self.walk and self.unsure):
            raise OptionError(
                f"walk is a factor from 2 on, or 0, and leaves nothing to be unsure of; got walk = {self.walk} and "
                f"unsure = {self.unsure}"
            )
        if self.unsure < 0:
            raise OptionError(f"unsure is how many candidates are added, not {self.unsure}")

    @property
    def label(self) -> str:
        """What is learned from: "wall_clock", or "tpu_estimate" where nothing runs."""
        return "wall_clock" if self.target == "cpu" or self.target.startswith("gpu") else "tpu_estimate"

    def instances(self) -> Iterator[Instance]:
        """Every instance: each program at one size and limit, then each at another, in an order that mixes families.

        So a campaign that is stopped early has seen a little of everything.
        """
        everything = () if self.own else tuple(name for family in FAMILIES.values() for name in family)
        programs = [(family_of(name), name) for name in self.zoo or everything]
        made = [generate(self.first_generated + k) for k in range(self.generated)]
        programs += [(g.family, g.name) for g in made]
        programs += [(name, f"{table}:{name}") for table in self.own for name in _table(table)]
        pairs = [(mb, share) for mb in self.megabytes for share in self.shares]
        mixed = sorted(programs, key=lambda pair: _hash(f"{self.seed} {pair[1]}"))
        for turn in range(len(pairs)):
            for family, name in mixed:
                mb, share = pairs[(_hash(name) + turn) % len(pairs)]
                yield Instance(family=family, program=name, megabytes=mb, share=share)


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A program at a size, under a limit.

    Attributes:
      family: what is trained on or held out together.
      program: name in the zoo, "generated_<seed>", or "module:NAME:name" in a table of the user's.
      megabytes: projected peak that its size is found by.
      share: of its projected temporaries, the room under the limit.
    """

    family: str
    program: str
    megabytes: float
    share: float

    @property
    def name(self) -> str:
        """As a file is called."""
        return f"{self.program.rpartition(':')[2]}-{self.megabytes:g}MB-{self.share:g}"

    @property
    def split(self) -> str:
        """Whether it is of "train", "valid" or "test": by family, the same in every campaign."""
        at = _hash(self.family) / 2**64
        return next(name for name, end in SPLITS if at < end)

    def made(self) -> tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]], int]:
        """The function, its arguments by size, and the smallest size."""
        table, _, name = self.program.rpartition(":")
        if table or name in ZOO:
            found = _table(table)[name] if table else ZOO[name]
            return found.function, found.arguments, found.tiny
        one = generate(int(self.program.removeprefix("generated_")))
        return one.function, one.arguments, 64


def _hash(text: str) -> int:
    """A number below 2^64, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _table(named: str) -> Mapping[str, Any]:
    """A table of the user's programs.

    Raises:
      OptionError: if there is none of that name.
    """
    module, _, name = named.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(f"own: {named!r} is no table of programs: {error}") from error
    lacks = [k for k, p in found.items() if not all(hasattr(p, a) for a in ("function", "arguments", "tiny"))]
    if lacks:
        raise OptionError(f"own: {named}: {lacks[0]!r} lacks function, arguments or tiny")
    return found


def family_of(program: str) -> str:
    """The family of a program of the zoo; its own name where it is in none."""
    return next((family for family, names in FAMILIES.items() if program in names), program)


def read_campaign(path: str | PathLike[str]) -> Campaign:
    """Read a campaign.

    Raises:
      OptionError: if the file is not there, is no TOML, or says something that is no campaign.
    """
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: no campaign can be read there: {error}") from error
    return from_dict(data, str(Path(path)))


def from_dict(data: dict[str, Any], where: str = "campaign") -> Campaign:
    """A campaign of TOML values, checked one by one.

    Raises:
      OptionError: if one is none.
    """
    known = {f.name: f for f in dataclasses.fields(Campaign)}
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in known:
            raise OptionError(f"{where}: no key is called {name!r}{_nearest(name, list(known))}")
        default = known[name].default
        values[name] = _as(value, default, f"{where}: {name}")
    return Campaign(**values)


def _as(value: Any, default: Any, what: str) -> Any:
    if isinstance(default, tuple):
        if not isinstance(value, list):
            raise OptionError(f"{what}: expected a list, got {value!r}")
        example: Any = default[0] if default else ""
        return tuple(_as(v, example, what) for v in value)
    kind = type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise OptionError(f"{what}: expected {kind.__name__}, got {value!r}")
    return value


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(sorted(known))}"
