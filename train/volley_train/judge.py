"""Expected acceptance of a drafter, teacher-forced: walks through the target's own answers as verification does."""
from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .blocks import Layout, Rows, draft, features_of
from .data import Answers, pack
from .networks import Drafter, Target


def noise_of_choice(logits: Tensor, chosen: Tensor) -> Tensor:
    """Gumbel noise g with argmax(logits + g) = chosen, drawn from its distribution given that."""
    likely = logits.log_softmax(-1)
    gumbel = -torch.empty_like(logits).exponential_().log()
    top = -torch.empty_like(logits[..., :1]).exponential_().log()
    rest = -torch.logaddexp(-top, -(likely + gumbel))
    return torch.where(torch.arange(logits.shape[-1], device=logits.device) == chosen[..., None], top, rest) - likely


def walk(hits: np.ndarray, block: int) -> list[int]:
    """Tokens that each verification step commits. hits [anchors, proposals]: which proposals of each anchor are right."""
    taken, at = [], 0
    right = hits[:, :block - 1].astype(np.int64).cumprod(1).sum(1)
    while at < len(hits):
        taken.append(min(int(right[at]) + 1, len(hits) - at))
        at += taken[-1]
    return taken


@torch.no_grad()
def hits_of(target: Target, drafter: Drafter, rows: Rows, temperatures: Tensor, layout: Layout, flex: bool) -> list[np.ndarray]:
    """For each row (one conversation) and each anchor, which proposals are what the target chose. temperatures [B]."""
    own = drafter.c["dflash_config"]
    device, most = rows.ids.device, layout.blocks
    with torch.autocast(device.type, torch.bfloat16):
        hidden, features = features_of(target, rows, own["target_layer_ids"], flex)
    out: list[list[np.ndarray]] = [[] for _ in rows.ids]
    anchors = rows.anchors
    first = drafter.first_proposal
    counts = anchors.sum(1).tolist()
    listed = [anchors[i].nonzero()[:, 0] for i in range(len(counts))]
    for begin in range(0, max(counts, default=0), most):
        at = torch.zeros(len(counts), most, dtype=torch.long, device=device)
        usable = torch.zeros_like(at, dtype=torch.bool)
        for i, where in enumerate(listed):
            part = where[begin:begin + most]
            at[i, :len(part)], usable[i, :len(part)] = part, True
        with torch.autocast(device.type, torch.bfloat16):
            drafts = draft(drafter, target.model.embed_tokens.weight, rows, features, at, usable, layout, flex)
        live = drafts.live.flatten().nonzero()[:, 0]
        row = torch.arange(len(counts), device=device)[:, None]
        chose = (drafts.chose + row * rows.ids.shape[1]).flatten()
        hot = temperatures[:, None].expand(drafts.live.shape).flatten()
        found = torch.zeros(drafts.live.numel(), dtype=torch.bool, device=device)
        head = target.lm_head
        for part in live.split(2048):
            h = drafts.hidden.flatten(0, 1)[part].to(head.weight.dtype)
            truth = drafts.truth.flatten()[part]
            scores, before = head(h).float(), drafts.before.flatten()[part]
            t = hot[part][:, None]
            warm = torch.where(t > 0, t, 1.0)
            noise = noise_of_choice(head(hidden.flatten(0, 1)[chose[part]].to(head.weight.dtype)).float() / warm, truth)
            if own.get("selector_rank"):
                best = scores.topk(own["selector_top_k"], -1).indices
                kept = torch.full_like(scores, -torch.inf).scatter(-1, best, 0.0)
                scores = scores + drafter.candidate_selector(h.float(), before) + kept
            elif own.get("markov_rank"):
                scores = scores + drafter.markov_head(h.float(), before)
            found[part] = torch.where(t > 0, scores / warm + noise, scores).argmax(-1) == truth
        grid = found.view(len(counts), most, -1)[:, :, first:].cpu().numpy()
        for i, count in enumerate(counts):
            if count > begin:
                out[i].append(grid[i, :min(most, count - begin)])
    return [np.concatenate(parts) if parts else np.zeros((0, 1), bool) for parts in out]


def judge(target: Target, drafter: Drafter, answers: Answers, which: list[int], length: int, batch: int, draft_rows: int,
          blocks: list[int], flex: bool) -> dict[str, Any]:
    """Tokens a step by domain and block length, of conversations `which`; T > 0 coupled by the target's noise. Answers
    that looped are a domain of their own."""
    device = target.lm_head.weight.device
    layout = Layout.of([drafter.c["block_size"]] * (draft_rows // drafter.c["block_size"]), str(device))
    taken: dict[tuple[str, int], list[int]] = defaultdict(list)
    for begin in range(0, len(which), batch):
        part = which[begin:begin + batch]
        packed = [pack([answers.conversation(i)], length) for i in part]
        packed += [packed[-1]] * (batch - len(part))
        rows = Rows(*(torch.cat([getattr(p, n) for p in packed]).to(device).long()
                      for n in ("ids", "positions", "documents", "answers")))
        t = [float(answers.temperature[i]) for i in part] + [0.0] * (batch - len(part))
        for i, hits in zip(part, hits_of(target, drafter, rows, torch.tensor(t, device=device), layout, flex)):
            name = answers.domains[answers.domain[i]] + (" (looping)" if answers.looped[i] else "")
            name += f" T={answers.temperature[i]:.1f}"
            for block in blocks:
                taken[name, block] += walk(hits, block + 1 - drafter.first_proposal)
    result: dict[str, Any] = defaultdict(dict)
    for (name, block), steps in sorted(taken.items()):
        if steps:
            result[name][str(block)] = round(sum(steps) / len(steps), 3)
    return dict(result)
