"""The engine's options, from what a caller asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import _engine
from ._location import cache_home

_CHOICES: dict[str, dict[str, Any]] = {
    "dtype": {
        "auto": _engine.ComputeType.AUTO,
        "bfloat16": _engine.ComputeType.BFLOAT16,
        "float32": _engine.ComputeType.FLOAT32,
    },
    "kv_cache_dtype": {
        "auto": _engine.KvCacheType.AUTO,
        "bfloat16": _engine.KvCacheType.BFLOAT16,
        "float32": _engine.KvCacheType.FLOAT32,
        "fp8": _engine.KvCacheType.FP8,
        "fp8_e4m3": _engine.KvCacheType.FP8,
    },
    "quantization": {
        "none": _engine.Quantization.NONE,
        "fp8": _engine.Quantization.FP8,
        "int4": _engine.Quantization.INT4,
    },
    "draft_quantization": {
        "auto": _engine.DraftQuantization.AUTO,
        "none": _engine.DraftQuantization.NONE,
        "fp8": _engine.DraftQuantization.FP8,
    },
    "draft_window_mask": {
        "auto": _engine.DraftWindowMask.AUTO,
        "causal": _engine.DraftWindowMask.CAUSAL,
        "bidirectional": _engine.DraftWindowMask.BIDIRECTIONAL,
    },
}


def _verify(policy: str | int) -> _engine.VerifyPolicy:
    kinds = {"auto": _engine.VerifyPolicy.Kind.AUTO, "full": _engine.VerifyPolicy.Kind.FULL}
    result = _engine.VerifyPolicy()
    if isinstance(policy, str) and policy in kinds:
        result.kind = kinds[policy]
    elif isinstance(policy, int) and not isinstance(policy, bool) and 0 <= policy < 1024:
        result.kind = _engine.VerifyPolicy.Kind.FIXED
        result.tokens = policy
    else:
        raise ValueError(f"verify is {policy!r}: it must be 'auto', 'full' or a number of drafted tokens from 0 to 1023")
    return result


def _value(name: str, asked: Any) -> Any:
    if name == "verify":
        return _verify(asked)
    if name not in _CHOICES:
        return asked
    choices = _CHOICES[name]
    if asked not in choices:
        raise ValueError(f"{name} is {asked!r}: it must be one of {', '.join(choices)}")
    return choices[asked]


def set_options(options: _engine.EngineOptions, asked: Mapping[str, Any]) -> None:
    """`asked`: by the names of EngineOptions; None leaves the engine its own choice."""
    for name, value in asked.items():
        if value is None:
            continue
        value = _value(name, value)
        try:
            setattr(options, name, value)
        except TypeError:
            raise TypeError(f"{name} is {value!r}: it must be another kind of value") from None


def cost_cache_dir(asked: str | Path | None) -> str:
    """The folder to keep what a step costs in, as the program's --cost-cache; empty: nowhere."""
    if asked is None or asked in ("", "none"):
        return ""
    if asked != "auto":
        return str(asked)
    home = cache_home()
    return str(home / "volley") if home is not None else ""
