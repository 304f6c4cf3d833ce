"""Writes tests/data/special_tokens: a tiny tokenizer.json, and the ids that transformers makes of a text with it for
several files tokenizer_config.json beside it. Needs transformers 4, for which DeepSeek's distilled models and others
were published: 5 takes the special tokens of tokenizer.json alone, where these have none.
"""
from __future__ import annotations

import json
import tempfile
from pathlib import Path

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

FOLDER = Path(__file__).resolve().parent.parent / "data" / "special_tokens"
TEXT = "A hat costs $30, but it is on sale."
BEGIN, END, TURN = "<｜begin｜>", "<｜end｜>", "<｜turn｜>"
NAMES = {"bos_token": BEGIN, "eos_token": END}
AS_OBJECT = {"__type": "AddedToken", "content": BEGIN, "lstrip": False, "normalized": True, "rstrip": False,
             "single_word": False}

# name: (tokenizer_class, whether tokenizer.json adds BEGIN itself, the rest of tokenizer_config.json)
CASES = {
    "asked": ("LlamaTokenizerFast", False, {**NAMES, "add_bos_token": True, "add_eos_token": False}),
    "asked_of_the_slow_class": ("LlamaTokenizer", False, {**NAMES, "add_bos_token": True}),
    "token_as_object": ("LlamaTokenizerFast", False, {**NAMES, "add_bos_token": True, "bos_token": AS_OBJECT}),
    "by_default": ("LlamaTokenizerFast", False, NAMES),
    "both": ("LlamaTokenizerFast", False, {**NAMES, "add_bos_token": True, "add_eos_token": True}),
    "end_alone": ("LlamaTokenizerFast", False, {**NAMES, "add_bos_token": False, "add_eos_token": True}),
    "refused": ("LlamaTokenizerFast", False, {**NAMES, "add_bos_token": False}),
    "null_is_false": ("LlamaTokenizerFast", False, {**NAMES, "add_bos_token": None}),
    "template_and_asked": ("LlamaTokenizerFast", True, {**NAMES, "add_bos_token": True}),
    "template_by_default": ("LlamaTokenizerFast", True, NAMES),
    "template_refused": ("LlamaTokenizerFast", True, {**NAMES, "add_bos_token": False}),
    "no_begin_token": ("LlamaTokenizerFast", False, {"bos_token": None, "eos_token": END, "add_bos_token": False}),
    "another_class": ("PreTrainedTokenizerFast", False, NAMES),
    "another_class_with_template": ("PreTrainedTokenizerFast", True, NAMES),
}


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 2, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (BEGIN, END, TURN)])
    return tokenizer


def template(tokenizer: Tokenizer):
    return processors.TemplateProcessing(single=f"{BEGIN}:0 $A:0", pair=f"{BEGIN}:0 $A:0 {BEGIN}:1 $B:1",
                                         special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))])


def encode(tokenizer: Tokenizer, config: dict) -> list[int]:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(str(Path(folder) / "tokenizer.json"))
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
        (Path(folder) / "config.json").write_text(json.dumps({"model_type": "llama"}))
        return transformers.AutoTokenizer.from_pretrained(folder).encode(TEXT)


def main() -> None:
    if not transformers.__version__.startswith("4."):
        raise SystemExit(f"This is transformers {transformers.__version__}, and version 4 is needed.")
    plain = make_tokenizer()
    adding = make_tokenizer()
    adding.post_processor = template(adding)
    cases = {}
    for name, (kind, with_template, fields) in CASES.items():
        config = {"tokenizer_class": kind, **fields}
        ids = encode(adding if with_template else plain, config)
        cases[name] = {"template": with_template, "config": config, "ids": ids}
    FOLDER.mkdir(parents=True, exist_ok=True)
    plain.save(str(FOLDER / "tokenizer.json"))
    post_processor = json.loads(adding.to_str())["post_processor"]
    text = json.dumps({"text": TEXT, "template": post_processor, "cases": cases}, indent=1, ensure_ascii=False)
    (FOLDER / "cases.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
