"""Compares a GGUF file in Volley with the same file in transformers: prompts' ids, lines' ids, and greedy answers.

    python3 scripts/gguf_parity.py MODEL.gguf --prompts gsm8k_test.jsonl HumanEval.jsonl.gz [--lines FILE]

Needs torch, transformers, accelerate and gguf. Both compute in float32 with the values that the blocks stand for. transformers reads
each prompt with Volley's answer at once: where its likeliest token is the answer's next one at every place, its own greedy
answer is the same. A token whose logit is within 1e-5 of the likeliest one's is a tie, and counted as such.
"""
from __future__ import annotations

import argparse
import gzip
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import gguf
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

TIE = 1e-5


def prompts_of(path: Path, count: int) -> list[str]:
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)
    with opened as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(count))]
    return [row.get("question") or row["prompt"] for row in rows]


def tokenizer_of(model: Path):
    """transformers' reader leaves out that each digit is a piece of its own, which the file says by a name."""
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    cut = gguf.GGUFReader(model).fields.get("tokenizer.ggml.pre")
    if cut and cut.contents() in ("smollm", "starcoder", "refact"):
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    return tokenizer


class Server:
    """volley serve, for its tokenizer."""

    def __init__(self, volley: str, model: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.process = subprocess.Popen([volley, "serve", str(model), "--port", self.url.rsplit(":", 1)[1], "--threads", "1",
                                         "--max-model-len", "64"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(1200):
            try:
                urllib.request.urlopen(self.url + "/health")
                return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"{volley} serve has ended")
                time.sleep(0.1)
        sys.exit("the server does not answer")

    def ids(self, text: str) -> list[int]:
        body = json.dumps({"prompt": text}).encode()
        request = urllib.request.Request(self.url + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens"]


def answers_of(options: argparse.Namespace, prompts: list[list[int]]) -> list[list[int]]:
    lines = "".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in prompts)
    command = [options.volley, "generate", str(options.model), "--input", "-", "--dtype", "float32", "--temperature", "0",
               "--ignore-eos", "--max-tokens", str(options.tokens), "--max-model-len", "1024", "--concurrency", "8",
               "--threads", str(options.threads)]
    made = subprocess.run(command, input=lines, text=True, stdout=subprocess.PIPE, check=True).stdout
    return [json.loads(line)["token_ids"] for line in made.splitlines()]


@torch.inference_mode()
def differences(model, prompt: list[int], answer: list[int]) -> list[float]:
    """How far each token that is not the likeliest lies below it."""
    ids = torch.tensor([prompt + answer[:-1]])
    logits = model(ids, logits_to_keep=len(answer), use_cache=False).logits[0]
    below = logits.max(-1).values - logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    return [gap for gap, best, token in zip(below.tolist(), logits.argmax(-1).tolist(), answer) if best != token]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="JSON lines with a question or a prompt")
    parser.add_argument("--lines", type=Path, help="a text whose lines are tokenised, too")
    parser.add_argument("--volley", default="build/cpu/bin/volley")
    parser.add_argument("--count", type=int, default=100, help="prompts of each file")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = tokenizer_of(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model.parent, gguf_file=options.model.name, dtype=torch.float32)
    texts = [text for path in options.prompts for text in prompts_of(path, options.count)]
    lines = options.lines.read_text().splitlines() if options.lines else []

    server = Server(options.volley, options.model)
    prompts, wrong = [], 0
    for number, text in enumerate(texts + lines):
        ids = server.ids(text)
        if number < len(texts):
            prompts.append(ids)
        if tokenizer(text).input_ids != ids:
            wrong += 1
            print(f"ids differ: {text!r}\n  volley       {ids}\n  transformers {tokenizer(text).input_ids}")
    server.process.terminate()
    print(f"{len(texts)} prompts and {len(lines)} lines tokenised, {wrong} differ", flush=True)

    answers = answers_of(options, prompts)
    ties = others = 0
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        gaps = differences(model, prompt, answer)
        for gap in gaps:
            print(f"prompt {number}: a token {gap:.3g} below the likeliest")
        ties += bool(gaps) and max(gaps) <= TIE
        others += bool(gaps) and max(gaps) > TIE
    print(f"{len(answers)} answers of {options.tokens} tokens: {len(answers) - ties - others} equal, {ties} with ties, "
          f"{others} differ")
    return 1 if wrong or others else 0


if __name__ == "__main__":
    sys.exit(main())
