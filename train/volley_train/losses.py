"""Losses of draft rows over the whole vocabulary, without ever keeping the logits of more than a step: forward and
gradient are computed together, in chunks of one shape."""
from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .blocks import Drafts, Layout
from .networks import Drafter


def _compare(own: Tensor, target: Tensor, truth: Tensor, told: bool) -> tuple[Tensor, ...]:
    """Logits own, target [N, V]. Returns the gradient of KL(target || own) to the own logits, the own probability of the
    true token, whether it is the own choice, and KL, which is computed only where it is to be told."""
    q, p = (logits.softmax(-1, dtype=torch.float32) for logits in (own, target))
    kl = q.new_zeros(len(q))
    if told:
        s, t = own.float(), target.float()
        kl = (p * (t - s)).sum(-1) - torch.logsumexp(t, -1) + torch.logsumexp(s, -1)
    return (q - p).to(own.dtype), q.gather(1, truth[:, None])[:, 0], own.argmax(-1) == truth, kl


compare = _compare


def use_compiled() -> None:
    global compare
    compare = torch.compile(_compare, dynamic=False)


def summed(t: Tensor) -> Tensor:
    """Over all ranks, if there are several: shares of a loss have one denominator."""
    if dist.is_initialized():
        dist.all_reduce(t)
    return t


def dpace(p: Tensor, live: Tensor, layout: Layout, alpha: float) -> Tensor:
    """D-PACE's weight of each draft row: what the block's acceptance owes to it. p, live: [B, Q]."""
    log = torch.where(live, (1 - alpha) * p + alpha, 1.0).double().log().cumsum(1)
    first = torch.arange(len(layout.depth), device=p.device) - layout.depth
    ahead = torch.where(first > 0, log[:, (first - 1).clamp(min=0)], 0.0)
    reach = torch.where(live, (log - ahead).exp(), 0.0)
    sums = reach.cumsum(1)
    return (sums[:, layout.last] - sums + reach).float() * live


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, run: Any) -> Tensor:
        loss, grad = run(hidden)
        ctx.save_for_backward(grad)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * grad, None


def distillation(drafts: Drafts, target_hidden: Tensor, head: Tensor, layout: Layout, gamma: float,
                 alpha: float | None, chunk: int, told: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
    """KL from the target's exact distribution to the drafter's, a weighted mean over live rows: by exp(-k / gamma) for
    the k-th proposal, or by D-PACE with `alpha`. head: [V, H]; chunk: rows whose logits are computed at once. Where it is
    not told, the loss is 0 and its gradient right."""
    live = drafts.live
    index = live.flatten().nonzero()[:, 0]
    count = len(index)
    padded = F.pad(index, (0, -count % chunk if index.is_cuda else 0))  # compiled code has one shape
    real = torch.arange(len(padded), device=index.device) < count
    truth = drafts.truth.flatten()[padded]
    size = target_hidden.shape[1]
    row = torch.arange(len(live), device=index.device)[:, None] * size
    chose = (drafts.chose + row).flatten()[padded]
    info: dict[str, Tensor] = {}

    def run(hidden: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            h = hidden.flatten(0, 1)[padded].to(head.dtype)
            target = target_hidden.flatten(0, 1).to(head.dtype) @ head.T
            grads, found = [], []
            for part in (slice(at, at + chunk) for at in range(0, len(padded), chunk)):
                gap, *facts = compare(h[part] @ head.T, target[chose[part]], truth[part], told)
                grads.append(gap @ head)
                found.append(facts)
            right, hit, kl = (torch.cat(parts) for parts in zip(*found))
            p = torch.zeros(live.numel(), device=h.device)
            p[index] = right[:count]
            if alpha is None:
                weights = torch.exp(-layout.depth / gamma) * live
            else:
                weights = dpace(p.view_as(live), live, layout, alpha)
            w = weights.flatten()[padded] * real
            w = w / summed(w.sum())
            grad = torch.zeros_like(hidden.flatten(0, 1))
            grad.index_add_(0, padded, (torch.cat(grads) * w[:, None]).to(grad.dtype))
            hits = torch.zeros(live.numel(), device=h.device, dtype=torch.bool)
            hits[index] = hit[:count]
            info.update(kl=(kl * real).sum() / count, hits=hits.view_as(live))
            return (kl * w).sum(), grad.view_as(hidden)

    return _Step.apply(drafts.hidden, run), info


def of_head(drafter: Drafter, drafts: Drafts, target_hidden: Tensor, head: Tensor, layout: Layout, gamma: float,
            chunk: int) -> Tensor:
    """The loss of the heads of DFlash 2 and DSpark, which learn beside, from the true token before: which candidate is right (the true
    one counts as one), or the whole distribution and the overlap of the target's and the drafter's."""
    own = drafter.c["dflash_config"]
    row = torch.arange(len(drafts.live), device=head.device)[:, None] * target_hidden.shape[1]
    chose = (drafts.chose + row).flatten()
    weights = (torch.exp(-layout.depth / gamma) * drafts.live).flatten()

    def part_loss(h: Tensor, part: Tensor) -> Tensor:
        truth, before, logits = drafts.truth.flatten()[part], drafts.before.flatten()[part], F.linear(h, head.to(h.dtype))
        if "selector_rank" in own:
            best = logits.topk(own["selector_top_k"], -1).indices
            out = torch.ones_like(logits, dtype=torch.bool).scatter(-1, best, False).scatter(-1, truth[:, None], False)
            scores = (logits + drafter.candidate_selector(h, before)).float().masked_fill(out, -1e9)
            return (F.cross_entropy(scores, truth, reduction="none") * weights[part]).sum()
        scores = (logits + drafter.markov_head(h, before)).float()
        odds = drafter.confidence_head(h.detach(), drafter.markov_head.markov_w1(before).detach())
        with torch.no_grad():
            p = F.linear(target_hidden.flatten(0, 1)[chose[part]].to(head.dtype), head).float().softmax(-1)
            overlap = torch.minimum(p, scores.softmax(-1)).sum(-1).clamp(max=1)
        each = F.cross_entropy(scores, truth, reduction="none")
        each = each + F.binary_cross_entropy_with_logits(odds.float(), overlap, reduction="none")
        return (each * weights[part]).sum()

    hidden = drafts.hidden.flatten(0, 1)
    parts = drafts.live.flatten().nonzero()[:, 0].split(chunk)
    return sum(checkpoint(part_loss, hidden[part], part, use_reentrant=False) for part in parts) / summed(weights.sum())


def accepted(hits: Tensor, layout: Layout, first: int) -> Tensor:
    """How many proposals of each block are right from its first on, [B, blocks]; hits: [B, Q], true only where live;
    first: the block's first row that proposes."""
    grid = hits.new_zeros(len(hits), layout.blocks, int(layout.depth.max()) + 1)
    grid[:, layout.block, layout.depth] = hits
    return grid[:, :, first:].long().cumprod(-1).sum(-1)
