"""Lets the target answer prompts, which is what drafters train on: half of the answers are greedy, half sampled at
temperature 1. Writes rows of tokens, and which of them belong to an answer.

    python3 answers.py --target DIR --out FILE [--prompts 120000]
"""
from __future__ import annotations

import argparse
import json
import random
import time

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import tasks
from model import Target
from train_target import LENGTH, begin, generate


def load_target(folder, device):
    target = Target(json.load(open(f"{folder}/config.json")))
    target.load_state_dict(load_file(f"{folder}/model.safetensors"))
    return target.to(device, torch.bfloat16).eval().requires_grad_(False)


def prompt_of(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--target", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--prompts", type=int, default=120_000)
    a, device = begin(ap)
    tok, target = Tokenizer.from_file(f"{a.target}/tokenizer.json"), load_target(a.target, device)
    t0, r = time.time(), random.Random(31)
    prompts = [tok.encode(prompt_of(tasks.draw(r)[1])).ids for _ in range(a.prompts)]
    half = len(prompts) // 2
    answers = generate(target, prompts[:half], 144, device)
    answers += generate(target, prompts[half:], 144, device, temperature=1.0)
    order = list(range(len(prompts)))
    r.shuffle(order)
    rows, flags, row, flag = [], [], [], []
    nl = tok.encode("\n").ids
    for p, ans in ((prompts[i], answers[i]) for i in order):
        if len(row) + len(p) + len(ans) + 2 > LENGTH:
            rows.append((row + [0] * LENGTH)[:LENGTH])
            flags.append((flag + [0] * LENGTH)[:LENGTH])
            row, flag = [], []
        row += p + ans + [2] + nl
        flag += [0] * len(p) + [1] * (len(ans) + 1) + [0] * len(nl)
    save_file({"ids": torch.tensor(rows, dtype=torch.int16), "flags": torch.tensor(flags, dtype=torch.uint8)}, a.out)
    print(f"answers {len(answers)} rows {len(rows)} in {time.time() - t0:.0f} s", flush=True)


if __name__ == "__main__":
    main()
