"""The engine's options, from what a caller asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import _engine
from ._location import cache_home

#: Where the engine says which words it takes.
_NOTES = {
    "dtype": "; float16 is not built",
    "quantization": "; a quantised checkpoint says so itself, so leave it out",
}


def set_options(options: _engine.EngineOptions, asked: Mapping[str, Any]) -> None:
    """`asked`: by the names of EngineOptions; None leaves the engine its own choice."""
    for name, value in asked.items():
        if value is None:
            continue
        if name == "verify":
            value = str(value)
        if name == "dtype" and value == "float":  # vLLM's word
            value = "float32"
        try:
            setattr(options, name, value)
        except TypeError:
            raise TypeError(f"{name} is {value!r}: it must be another kind of value") from None
        except ValueError as error:
            raise ValueError(f"{error}{_NOTES.get(name, '')}") from None


def cost_cache_dir(asked: str | Path | None) -> str:
    """The folder to keep what a step costs in, as the program's --cost-cache; empty: nowhere."""
    if asked is None or asked in ("", "none"):
        return ""
    if asked != "auto":
        return str(asked)
    home = cache_home()
    return str(home / "volley") if home is not None else ""
