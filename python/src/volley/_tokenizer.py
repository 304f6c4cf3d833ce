"""The tokenizer of a loaded model, under the names of transformers' methods."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _engine
from ._pictures import with_data_urls


# transformers' arguments that would else become variables of the template, which ignores what it does not know.
_REFUSED = (
    *("chat_template", "return_dict", "return_tensors", "truncation", "padding", "max_length"),
    *("return_assistant_tokens_mask", "tokenizer_kwargs"),
)


class Tokenizer:
    """Text to tokens and back, by the engine: no other library is needed. Thread-safe, and alive as long as its LLM."""

    def __init__(self, info: _engine.EngineInfo, running: Callable[[], _engine.Engine]) -> None:
        """`running`: the engine, or RuntimeError when it is closed."""
        self._info, self._running = info, running

    @property
    def vocab_size(self) -> int:
        return self._info.vocab_size

    @property
    def eos_token_ids(self) -> list[int]:
        return self._info.eos_token_ids

    @property
    def eos_token_id(self) -> int | None:
        """The first of them."""
        ids = self._info.eos_token_ids
        return ids[0] if ids else None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._running().encode(text, add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._running().decode(ids, skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> dict[str, Any]:
        """{"input_ids": …, "attention_mask": …}, lists of lists for several texts; nothing is padded."""
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        each = [self.encode(one, add_special_tokens) for one in text]
        return {"input_ids": each, "attention_mask": [[1] * len(ids) for ids in each]}

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **template_variables: Any,
    ) -> str | list[int]:
        for name in _REFUSED:
            if template_variables.pop(name, None) not in (None, False):
                raise ValueError(f"{name} is not supported: the model's template gives a text or a list of token ids")
        prompt = self._running().chat_prompt(
            json.dumps(with_data_urls(conversation)),
            json.dumps(list(tools)) if tools else "",
            json.dumps(template_variables) if template_variables else "",
            add_generation_prompt,
            continue_final_message,
        )
        return prompt.tokens if tokenize else prompt.text

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, eos_token_ids={self.eos_token_ids})"
