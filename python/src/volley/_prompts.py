"""The forms that a prompt may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ._errors import VolleyError

#: Text, token ids, or {"prompt": text} or {"prompt_token_ids": ids}, with "cache_salt" or not.
Prompt: TypeAlias = "str | Sequence[int] | Mapping[str, Any]"
#: Messages of one conversation: {"role": …, "content": …} each. A content is a text or a list of parts: {"type": "text",
#: "text": …} and {"type": "image", "image": …}, a PIL image, the bytes of a file or its path.
Messages: TypeAlias = "Sequence[Mapping[str, Any]]"


@dataclass(frozen=True)
class Prepared:
    """A prompt that is ready for the engine."""

    text: str | None  #: None: it was token ids
    ids: list[int]
    cache_salt: str = ""  #: cached prefixes are shared among requests with the same one only
    continued: bool = True  #: the answer goes on with the prompt's text; False: it is a chat's
    pictures: Sequence[Any] = ()  #: a chat's, as the engine made them


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]  # one prompt of token ids
    return list(prompts)  # type: ignore[arg-type]  # several: told apart by the first element


def split(prompt: Prompt) -> tuple[str | None, list[int] | None, str]:
    """The text or the token ids of a prompt, and its cache_salt."""
    if isinstance(prompt, str):
        return prompt, None, ""
    if not isinstance(prompt, Mapping):
        return None, list(prompt), ""
    for key, value in prompt.items():
        if key not in ("prompt", "prompt_token_ids", "cache_salt") and value is not None:
            raise ValueError(f"a prompt's {key!r} is not supported: prompts are text or token ids")
    salt = prompt.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise ValueError(f"cache_salt is {salt!r}: it must be a text that is not empty")
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and ids is None:
        raise ValueError("a prompt's mapping must have \"prompt\" or \"prompt_token_ids\"")
    return text if text is None else str(text), ids if ids is None else list(ids), salt or ""


def of_prompt(error: VolleyError, prompt: int, prompts: Sequence[int]) -> VolleyError:
    """The error with the number of its prompt, where there are several."""
    if prompts[-1] == 0:
        return error
    return type(error)(f"prompt {prompt}: {error}", error.code)
