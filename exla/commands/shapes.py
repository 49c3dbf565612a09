"""`--shapes`: the arguments of a function, in JAX's own notation.

    f32[20000,16] f32[20000,16]            two arrays
    (f32[3,4], {w: bf16[5], b: None})      one tuple that holds an array and a dict
    f32[8,128] causal=True scale=0.5       an array, and two arguments by name

Grammar (spaces are free, but within a name or number; arguments are separated by spaces or commas):

    arguments = [argument (" " | ",") ...]        argument = [name "="] value
    value     = array | "(" values ")" | "[" values "]" | "{" [key ":" value, ...] "}" | literal
    array     = dtype "[" [size, ...] "]"         key      = name | text | whole number
    literal   = number | True | False | None | 'text'

A dtype is `f32`, `bf16`, `i8`, `u32`, `c64`, `bool`, ... or its whole name, and `key<fry>` for PRNG keys; `f32[]` is an
array without axes. Parentheses are Python's: `(f32[3],)` is a tuple, `(f32[3])` is its array. A literal is the Python
value itself. Nothing is evaluated.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from exla.failure import UsageError

_NAME = re.compile(r"[A-Za-z_]\w*")
_DIGITS = r"\d+(?:_\d+)*"
_NUMBER = re.compile(rf"[+-]?(?:inf|nan|(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?\d+)?j?)(?!\w)")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_DTYPE = re.compile(r"[A-Za-z_]\w*(?:<\w+>)?")
_SIZE = re.compile(rf"{_DIGITS}(?!\w)")
_CONSTANTS = {"True": True, "False": False, "None": None}
_DTYPES = (
    *("bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32"),
    *("uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float4_e2m1fn"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu"),
)
_KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of one call.

    Attributes:
      positional: pytrees of ShapeDtypeStructs and Python values.
      keywords: likewise, by name.
    """

    positional: tuple[Any, ...]
    keywords: Mapping[str, Any]


def short_name(dtype: str) -> str:
    """JAX's short name of a dtype: "f32" of "float32"."""
    for long, short in (("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        dtype = dtype.replace(long, short)
    return dtype


DTYPES = {name: dtype for dtype in _DTYPES for name in (short_name(dtype), dtype)}
"""Short and whole name -> whole name."""


def read_shapes(text: str) -> Arguments:
    """Read the arguments of a call.

    Args:
      text: as the module's docstring describes.

    Raises:
      UsageError: where it is not; the message has the position and what was expected there.
    """
    try:
        return _Reader(text).arguments()
    except RecursionError:
        raise UsageError("--shapes: the brackets are nested too deeply") from None


class _Reader:
    """A recursive-descent parser: one method for each line of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def arguments(self) -> Arguments:
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        self._space()
        while self._at < len(self._text):
            start, name = self._at, self._keyword()
            if name is None and keywords:
                self._fail("name=value, because positional arguments come before those by name", start)
            if name in keywords:
                self._fail(f"another name: {name} is given twice", start)
            value = self.value()
            if name is None:
                positional.append(value)
            else:
                keywords[name] = value
            end = self._at
            self._space()
            if not self._take(",") and self._at == end < len(self._text):
                self._fail("a space or a comma between two arguments")
            self._space()
        return Arguments(positional=tuple(positional), keywords=keywords)

    def value(self) -> Any:
        self._space()
        if self._take("("):
            values, commas = self._several(")", self.value)
            return values[0] if len(values) == 1 and not commas else tuple(values)
        if self._take("["):
            return self._several("]", self.value)[0]
        if self._take("{"):
            return dict(self._several("}", self._item)[0])
        start = self._at
        if found := self._match(_TEXT) or self._match(_NUMBER):
            return self._literal(found, start)
        name = self._match(_DTYPE)
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name is None:
            self._fail("an array such as f32[20,16], a tuple, list or dict, a number, True, False, None or 'text'")
        return self._array(name, start)

    def _array(self, name: str, start: int) -> jax.ShapeDtypeStruct:
        if name not in DTYPES and name not in _KEYS:
            near = difflib.get_close_matches(name, [*DTYPES, *_KEYS], n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            listed = ", ".join([*map(short_name, _DTYPES), *_KEYS])
            self._fail(f"a dtype in place of {name!r}{hint}: {listed}; text is quoted", start)
        if not self._take("["):
            self._fail(f"'[' after {name}; an array without axes is {name}[]")
        shape = tuple(self._several("]", self._size)[0])
        if name in _KEYS:
            key = jax.eval_shape(lambda: jax.random.key(0, impl=_KEYS[name]))
            return jax.ShapeDtypeStruct(shape, key.dtype)
        dtype = jnp.dtype(DTYPES[name])
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            self._fail(f"a narrower dtype than {name}, or --x64: JAX has 64-bit values only then", start)
        return jax.ShapeDtypeStruct(shape, dtype)

    def _several(self, close: str, read: Callable[[], Any]) -> tuple[list[Any], int]:
        """What stands before a closing bracket, and how many commas."""
        found: list[Any] = []
        commas = 0
        self._space()
        while not self._take(close):
            if len(found) > commas:
                self._fail(f"',' or {close!r}")
            found.append(read())
            self._space()
            commas += self._take(",")
            self._space()
        return found, commas

    def _item(self) -> tuple[Any, Any]:
        start = self._at
        quoted = self._match(_TEXT) or self._match(_SIZE)
        key = self._match(_NAME) if quoted is None else self._literal(quoted, start)
        if key is None:
            self._fail("a key: a name, a 'text' or a whole number")
        self._space()
        if not self._take(":"):
            self._fail("':' after the key")
        return key, self.value()

    def _literal(self, text: str, start: int) -> Any:
        if text[-3:] in ("inf", "nan"):
            return float(text)
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError):
            self._fail(f"a number or text as Python writes it, not {text}", start)

    def _size(self) -> int:
        found = self._match(_SIZE)
        if found is None:
            self._fail("a size (a whole number) or ']'")
        return int(found)

    def _keyword(self) -> str | None:
        start, name = self._at, self._match(_NAME)
        self._space()
        if name is not None and self._take("="):
            return name
        self._at = start
        return None

    def _match(self, form: re.Pattern[str]) -> str | None:
        found = form.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found.group()

    def _take(self, mark: str) -> bool:
        is_next = self._text.startswith(mark, self._at)
        self._at += len(mark) * is_next
        return is_next

    def _space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _fail(self, expected: str, at: int | None = None) -> NoReturn:
        position = self._at if at is None else at
        end = "" if position < len(self._text) else " (the end)"
        raise UsageError(
            f"--shapes: at position {position + 1}{end}, expected {expected}\n  {self._text}\n  {' ' * position}^"
        )
