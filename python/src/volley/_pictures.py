"""Pictures in messages: PIL images, bytes and files become the data: URLs that the engine reads."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Members of a part that may have a picture, as transformers and vLLM name them.
_MEMBERS = ("image", "image_pil")
#: Modes of PIL images that a PNG file can have.
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")


def with_data_urls(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages in which each picture is an `image_url` part."""
    return [_message(message) for message in messages]


def _message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": [_part(part) for part in content]}


def _part(part: Any) -> Any:
    if not isinstance(part, Mapping) or part.get("type") not in _MEMBERS:
        return part
    name = next((name for name in _MEMBERS if part.get(name) is not None), None)
    if name is None:
        raise ValueError(f'a part of the type {part["type"]!r} must have the picture in "image"')
    return {"type": "image_url", "image_url": {"url": _url(part[name])}}


def _url(picture: Any) -> str:
    if isinstance(picture, str) and picture.startswith(("data:", "http://", "https://")):
        return picture
    if isinstance(picture, str | os.PathLike):
        data = Path(picture).read_bytes()
    elif isinstance(picture, bytes | bytearray | memoryview):
        data = bytes(picture)
    elif hasattr(picture, "save") and hasattr(picture, "mode"):
        if picture.mode not in _PNG_MODES:
            picture = picture.convert("RGB")
        buffer = io.BytesIO()
        picture.save(buffer, "PNG", exif=picture.getexif())
        data = buffer.getvalue()
    else:
        raise ValueError(f"a picture is {type(picture).__name__}: it must be a PIL image, bytes or a path")
    return "data:;base64," + base64.b64encode(data).decode()
