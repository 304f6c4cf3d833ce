"""What trees of drafts would bring a drafter of the pocket target: where the target first leaves the drafted tokens,
which place its choice has among the drafter's candidates, and whether what is drafted after that choice would be right
again.

    python3 trees.py --target DIR --draft DIR --prompts FILE.jsonl [--temperature 0] [--count 100]

Walks through the target's own answers as verification does: a step accepts the drafted tokens up to the first wrong one
and takes the target's choice there. Above temperature 0 both choose with the same noise, as in Volley; the target's is
drawn so that it chooses what it chose.
"""
from __future__ import annotations

import argparse
import json

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from answers import load_target, prompt_of
from model import Drafter
from train_drafter import draft_blocks, score
from train_target import generate


def noise_of_choice(logits, chosen):
    """Gumbel noise g with argmax(logits + g) = chosen, drawn from its distribution given that."""
    likely = logits.log_softmax(-1)
    gumbel = -torch.empty_like(logits).exponential_().log()
    top = -torch.empty_like(logits[..., :1]).exponential_().log()
    rest = -torch.logaddexp(-top, -(likely + gumbel))
    return torch.where(torch.arange(logits.shape[-1]) == chosen[..., None], top, rest) - likely


def walk(places, siblings=0, follow=False):
    """Tokens that each step takes of an answer, and of each step with a wrong token the places from that one on.
    places: of each token of the answer the places of the target's choices among what is drafted after it: 1 is what is
    drafted, 0 no candidate. A tree adds so many siblings to each drafted token, next in place; where the choice is one
    of them, the step takes the target's choice behind it, too, and with `follow` what is drafted behind it."""
    at, taken, missed = 0, [], []
    while at < len(places):
        block = places[at]
        n = next((i for i, place in enumerate(block) if place != 1), len(block))
        if n < len(block):
            missed.append(block[n:])
            if 2 <= block[n] <= 1 + siblings:
                n += 1
                while follow and n < len(block) and block[n] == 1:
                    n += 1
        taken.append(min(n + 1, len(places) - at))
        at += n + 1
    return taken, missed


def share(part, whole):
    return f"{100 * part / max(1, whole):.0f} %"


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--target", required=True)
    ap.add_argument("--draft", required=True)
    ap.add_argument("--prompts", required=True)
    ap.add_argument("--temperature", type=float, default=0)
    ap.add_argument("--count", type=int, default=100)
    a = ap.parse_args()
    torch.manual_seed(0)
    target, tok = load_target(a.target, "cpu").float(), Tokenizer.from_file(f"{a.target}/tokenizer.json")
    drafter = Drafter(json.load(open(f"{a.draft}/config.json"))).eval()
    drafter.load_state_dict(load_file(f"{a.draft}/model.safetensors"))
    lines = [json.loads(line) for line in open(a.prompts)]
    lines = lines[::max(1, len(lines) // a.count)][:a.count]
    prompts = [tok.encode(prompt_of(x["prompt"])).ids for x in lines]
    answers = []  # of each token of an answer the places of what is drafted after it
    for p, answer in zip(prompts, generate(target, prompts, 144, "cpu", a.temperature)):
        ids = torch.tensor([p + answer + [2]])
        anchors = torch.arange(len(p), ids.shape[1] - 1)[None]
        if anchors.numel() == 0:
            continue
        with torch.inference_mode():
            logits, h, before, truth, live, chose = draft_blocks(target, drafter, ids, anchors, torch.ones_like(ids))
            scores, candidates = score(drafter, logits, h, before)
            if a.temperature > 0:
                noise = noise_of_choice(target.logits(chose) / a.temperature, truth)
                scores = scores / a.temperature + noise
            if candidates is not None:
                scores = scores.masked_fill(~candidates, float("-inf"))
            own = scores.gather(-1, truth[..., None])
            place = torch.where(own.squeeze(-1).isinf(), 0, 1 + (scores > own).sum(-1))
        answers.append([row[:n] for row, n in zip(place[0].tolist(), live[0].sum(-1).tolist())])

    def mean(siblings=0, follow=False):
        taken = [n for places in answers for n in walk(places, siblings, follow)[0]]
        return sum(taken) / len(taken)

    chain = [walk(places) for places in answers]
    steps, missed = sum(len(taken) for taken, _ in chain), [block for _, blocks in chain for block in blocks]
    print(f"{steps} steps, {mean():.2f} tokens a step; {share(len(missed), steps)} of the steps have a wrong token")
    for place in (2, 3, 4, 8):
        found = [block for block in missed if 2 <= block[0] <= place]
        behind = [block[1] == 1 for block in found if len(block) > 1]
        print(f"  the target's choice is among the best {place} in {share(len(found), len(missed))}; of these the next "
              f"drafted token is right in {share(sum(behind), len(behind))}; tokens a step with siblings up to there "
              f"{mean(place - 1):.2f}, with what is drafted behind them {mean(place - 1, True):.2f}")


if __name__ == "__main__":
    main()
