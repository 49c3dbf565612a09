"""Registries: how exla is extended by adding one file.

A `Registry` maps names to objects. A module adds to it with the `register` decorator, a second entry under
the same name is an error, and `load` imports every module of a package in sorted order so that the contents
never depend on who imported what first:

    FACTOR_RULES = Registry("factor rule")

    @FACTOR_RULES.register("sin", "cos")
    def elementwise(context): ...

A registry is the only global mutable state in exla.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Named objects of one kind.

    Args:
      kind: what the entries are, in words, for error messages.
      package: dotted name of the package whose modules register the entries; imported on first use.
      rare: those of its modules that are imported last, and only where a name is not among the others' or all names
        are asked for.
    """

    def __init__(self, kind: str, package: str | None = None, rare: Sequence[str] = ()) -> None:
        self.kind = kind
        self._package = package
        self._rare = tuple(rare)
        self._has_common = False
        self._entries: dict[str, T] = {}
        self._lock = threading.RLock()
        self._is_loading = False

    def register(self, *names: str) -> Callable[[T], T]:
        """Return a decorator that adds its argument under every name.

        Raises:
          ValueError: if a name is taken already.
        """

        def add(entry: T) -> T:
            for name in names:
                if name in self._entries:
                    raise ValueError(f"{self.kind} {name!r} is registered twice")
                self._entries[name] = entry
            return entry

        return add

    def find(self, name: str) -> T | None:
        """Return the entry, or None where there is none."""
        self._load(rare=False)
        if name not in self._entries:
            self._load()
        return self._entries.get(name)

    def get(self, name: str) -> T:
        """Return the entry.

        Raises:
          KeyError: if there is none; the message lists the valid names.
        """
        entry = self.find(name)
        if entry is None:
            near = difflib.get_close_matches(name, self._entries, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise KeyError(f"no {self.kind} named {name!r}{hint}; there are: {', '.join(self)}")
        return entry

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._entries))

    def in_order(self, *, rare: bool = True) -> list[str]:
        """The names in the order in which they were registered: that of the modules.

        Args:
          rare: whether to import the modules that are rarely needed, if they are not yet.
        """
        self._load(rare=rare)
        return list(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def _load(self, *, rare: bool = True) -> None:
        if self._package is None or self._has_common and not rare:
            return
        with self._lock:  # another thread waits until all is there
            if self._package is None or self._has_common and not rare or self._is_loading:
                return
            self._is_loading = True
            try:
                package = importlib.import_module(self._package)
                modules = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
                for module in (*(m for m in modules if m not in self._rare), *(self._rare if rare else ())):
                    importlib.import_module(f"{package.__name__}.{module}")
                self._has_common = True
                if rare:
                    self._package = None
            finally:
                self._is_loading = False
