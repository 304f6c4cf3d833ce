"""Whether a value can be what it was given for. Each check is a ValueError that begins with the field's name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any


@dataclass(frozen=True)
class Number:
    """A number from `low` to `high`."""

    low: float
    high: float
    whole: bool = False
    above: bool = False  #: `low` itself is not allowed
    optional: bool = False  #: None is

    def check(self, name: str, value: Any) -> None:
        if value is None and self.optional:
            return
        kind = Integral if self.whole else Real
        fits = isinstance(value, kind) and not isinstance(value, bool) and (self.whole or math.isfinite(value))
        if not fits or not self.low <= value <= self.high or (self.above and value == self.low):
            raise ValueError(f"{name} is {value!r}: it must be {self._words()}")

    def _words(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.above:
            words = f"{kind} above {self.low:g} and at most {self.high:g}"
        elif self.high == math.inf:
            words = f"{kind}, at least {self.low:g}"
        else:
            words = f"{kind} from {_digits(self.low)} to {_digits(self.high)}"
        return words + (", or None" if self.optional else "")


def _digits(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def flag(name: str, value: Any, *, optional: bool = False) -> None:
    if not isinstance(value, bool) and not (optional and value is None):
        raise ValueError(f"{name} is {value!r}: it must be True or False")


def token_ids(name: str, value: Any) -> None:
    for token in _items(name, value, "token ids"):
        if not isinstance(token, Integral) or isinstance(token, bool) or token < 0:
            raise ValueError(f"{name} holds {token!r}: a token id is a whole number from 0")


def texts(name: str, value: Any) -> None:
    """Texts that are not empty."""
    for text in _items(name, value, "texts"):
        if not isinstance(text, str):
            raise ValueError(f"{name} holds {text!r}: it must be a text")
        if not text:
            raise ValueError(f"{name} holds an empty text: leave it out")


def _items(name: str, value: Any, what: str) -> Iterable[Any]:
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ValueError(f"{name} is {value!r}: it must be a list of {what}")
    return value
