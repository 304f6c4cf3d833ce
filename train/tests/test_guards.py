"""Each fault that a guard is for makes it fail, and the pocket pair passes. The fixtures of tests/data
are what transformers and the DFlash reference make of tiny random models."""
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from volley_train import guards
from volley_train.blocks import Layout, Rows, block_rule, draft, features_of, pick_anchors
from volley_train.data import grams, held_grams, loop_start, pack
from volley_train.judge import BEYOND, noise_of_choice, walk
from volley_train.losses import distillation, dpace
from volley_train.stream import Assembler
from volley_train.targets import Bundle
from volley_train.training import load_drafter

ROOT = Path(__file__).resolve().parents[2]
MODELS, DATA = ROOT / "models", ROOT / "tests" / "data"
torch.set_num_threads(1)
LAYOUT = Layout.of([4, 8, 4], "cpu")


@pytest.fixture(scope="module")
def bundle():
    return Bundle(str(MODELS / "pocket"), "cpu", torch.float32)


@pytest.fixture(scope="module")
def rows(bundle):
    asked = [bundle.encode(bundle.render([{"role": "user", "content": text}]))
             for text in ("What is 3 + 4?", "Sort these numbers: 5, 2, 9.", "Who are you?")]
    talks = []
    for ids in asked:
        talk = torch.tensor([ids])
        while talk.shape[1] < len(ids) + 32 and int(talk[0, -1]) not in bundle.stops:
            with torch.no_grad():
                hidden, _ = bundle.model(talk, torch.arange(talk.shape[1])[None], None, [])
            talk = torch.cat((talk, bundle.model.lm_head(hidden[:, -1:]).argmax(-1)), 1)
        talks.append((talk[0].numpy(), len(ids)))
    return pack(talks, 96)[torch.arange(2)]


@pytest.fixture(scope="module")
def drafter():
    return load_drafter(MODELS / "pocket-dflash", "cpu")


def test_decoding_and_the_packed_pass_agree_and_the_drafter_is_accepted(bundle, rows, drafter):
    with torch.no_grad():
        hidden, features = features_of(bundle.model, rows, [1, 5], flex=False)
        chosen = bundle.model.lm_head(hidden).argmax(-1)[:, :-1]
        told = rows.answers[:, 1:] > 0
        assert (chosen == rows.ids[:, 1:])[told].float().mean() > 0.99
        anchors, usable = pick_anchors(rows, 6)
        drafts = draft(drafter, bundle.model.lm_head.weight, rows, features, anchors, usable, Layout.of([16] * 6, "cpu"), False)
        right = bundle.model.lm_head(drafts.hidden).argmax(-1) == drafts.truth
        assert right[drafts.live].float().mean() > 0.7


@pytest.mark.parametrize("name", ["plain", "llama_tied", "qwen2_tied"])
def test_features_equal_those_of_transformers_and_a_layer_off_by_one_fails(name):
    expected = load_file(DATA / "targets" / name / "expected" / "model.safetensors")
    target, ids = Bundle(str(DATA / "targets" / name), "cpu", torch.float32).model, expected["prompt_ids"].long()[None]
    layers = list(range(len(expected["layers"])))
    one = Rows(ids, torch.arange(ids.shape[1])[None], torch.zeros_like(ids), torch.zeros_like(ids))
    with torch.no_grad():
        hidden, ours = features_of(target, one, layers, flex=False)
    assert torch.allclose(target.lm_head(hidden)[0], expected["logits"], atol=2e-3)
    assert min(guards.same_features(ours[0], torch.cat(list(expected["layers"]), -1), layers)) > 0.9999
    with pytest.raises(guards.GuardError, match="layer 0"):
        guards.same_features(ours[0], torch.cat([expected["layers"][i] for i in (*layers[1:], 0)], -1), layers)


@pytest.mark.parametrize("name", ["causal", "three_features"])
def test_the_network_is_the_references(name):
    folder = DATA / "drafters" / name
    expected, loaded = load_file(folder / "expected" / "model.safetensors"), load_drafter(folder, "cpu")
    target = DATA / "targets" / (folder / "expected" / "target.txt").read_text().strip()
    parts = [load_file(path) for path in target.glob("*.safetensors")]
    embedding = next(part["model.embed_tokens.weight"] for part in parts if "model.embed_tokens.weight" in part).float()
    for context in (1, 9, 40):
        block = expected[f"block_ids.{context}"].long()
        size, at = len(block), torch.arange(context + len(block))[None]
        seen = (at[0, context:, None] >= at) | (not loaded.c["is_causal"])
        with torch.no_grad():
            ours = loaded(expected["features"][None, :context], at[:, :context], embedding[block][None],
                          at[:, context:], torch.arange(size), seen[None, None])
        assert torch.allclose(ours[0], expected[f"hidden.{context}"], atol=2e-3)


@pytest.mark.parametrize("fault", [None, "anchor", "block", "blind"])
def test_a_leak_between_blocks_fails(bundle, rows, drafter, monkeypatch, fault):
    def leaky(rows, anchors, layout, c, size):
        rule = block_rule(rows, anchors, layout, c, size)

        def wrong(b, h, q, k):
            if fault == "anchor":
                return rule(b, h, q, k) | (k == anchors[b, layout.block[q]])
            if fault == "block":
                return rule(b, h, q, k) | (k == size)
            return rule(b, h, q, k) & (k >= size)

        return wrong if fault else rule

    monkeypatch.setattr("volley_train.blocks.block_rule", leaky)
    with torch.no_grad():
        features = features_of(bundle.model, rows, [1, 5], flex=False)[1]
    torch.manual_seed(0)
    arguments = (drafter, bundle.model.lm_head.weight, rows, features, LAYOUT, False)
    if fault is None:
        return guards.no_leak(*arguments)
    with pytest.raises(guards.GuardError, match={"anchor": "at or behind", "block": "other blocks", "blind": "does not see"}[fault]):
        guards.no_leak(*arguments)


def test_the_mask_token_and_the_template_are_checked(rows):
    guards.mask_token_unused(3, rows, 2048)
    for token in (int(rows.ids[0, 0]), 2048):
        with pytest.raises(guards.GuardError, match=f"mask token {token}"):
            guards.mask_token_unused(token, rows, 2048)
    with pytest.raises(guards.GuardError, match="template"):
        guards.same_template("a", "b")


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_the_loss_and_its_gradient_are_autograds(bundle, rows, drafter, alpha):
    with torch.no_grad():
        hidden, features = features_of(bundle.model, rows, [1, 5], flex=False)
    anchors, usable = pick_anchors(rows, 3)
    head = bundle.model.lm_head.weight
    drafts = draft(drafter, head, rows, features, anchors, usable, LAYOUT, False)
    drafts.hidden = drafts.hidden.detach().requires_grad_()
    loss, _ = distillation(drafts, hidden, head, LAYOUT, 4.0, alpha, chunk=16)
    loss.backward()
    ours, drafts.hidden.grad = drafts.hidden.grad, None
    own = (drafts.hidden @ head.T).log_softmax(-1)
    told = (hidden @ head.T).log_softmax(-1)[torch.arange(2)[:, None], drafts.chose]
    p = own.gather(-1, drafts.truth[..., None])[..., 0].exp().detach()
    weights = torch.exp(-LAYOUT.depth / 4) * drafts.live
    if alpha:
        weights = torch.zeros_like(p)
        for b in range(2):
            for q in range(len(LAYOUT.depth)):
                reach = 1.0  # of the proposals from the block's first on
                for j in range(int(q - LAYOUT.depth[q]) + 1, int(LAYOUT.last[q]) + 1):
                    reach *= (1 - alpha) * float(p[b, j]) + alpha if drafts.live[b, j] else 0.0
                    weights[b, q] += reach if j >= q and drafts.live[b, q] else 0.0
        assert torch.allclose(weights, dpace(p, drafts.live, LAYOUT, alpha), atol=1e-5)
    wanted = ((told.exp() * (told - own)).sum(-1) * weights).sum() / weights.sum()
    wanted.backward()
    assert torch.allclose(loss, wanted, rtol=1e-4)
    assert torch.allclose(ours, drafts.hidden.grad, rtol=1e-3, atol=1e-6)


def test_noise_of_a_choice_makes_it_and_walks_count_steps():
    logits = torch.randn(2000, 5)
    chosen = torch.randint(5, (2000,))
    assert torch.equal((logits + noise_of_choice(logits, chosen)).argmax(-1), chosen)
    ranks = torch.tensor([[0, 0, 1], [2, 5, 3], [0, 2, 0], [0, 0, BEYOND], [0, BEYOND, BEYOND]]).numpy()
    assert walk(ranks, 4) == ([3, 2], [(1, BEYOND)])
    assert walk(ranks, 4, leaves=1) == ([4, 1], [(1, BEYOND)])
    assert walk(ranks, 3) == ([3, 2], [])
    assert walk(ranks[2:], 4, leaves=1) == ([2, 1], [(2, 0)])
    assert walk(ranks[2:], 4, leaves=2) == ([3], [(2, 0)])
    assert loop_start([7, 8, 1, 2, 3, 1, 2, 3, 1, 2, 3]) == 5


def test_what_is_held_out_is_found_again_but_not_what_all_prompts_share():
    held = [[*range(20), *range(100 * i, 100 * i + 30)] for i in (1, 2)]
    forbidden = held_grams(held)
    copied, fresh = [5, *range(110, 123), 6], [*range(20), *range(500, 530), *range(110, 122)]
    assert torch.isin(torch.from_numpy(grams(copied).astype("int64")), torch.from_numpy(forbidden.astype("int64"))).any()
    assert not torch.isin(torch.from_numpy(grams(fresh).astype("int64")), torch.from_numpy(forbidden.astype("int64"))).any()


def test_streamed_rows_become_conversations():
    assembler, found = Assembler(), {}
    talks = {"a": [5, 6, 7, 8], "b": [9, 9], "a's begin": [5, 6]}
    for ids in talks.values():
        assembler.wanted[np.array(ids, np.int32).tobytes()] += 1
    # Chunks of two slots, a row of decoding behind a prompt's, and a slot that begins anew: token, slot, position.
    chunks = [[(5, 1, 0), (6, 1, 1), (9, 3, 0)], [(9, 3, 1), (4, 3, 7), (7, 1, 2), (8, 1, 3)], [(5, 3, 0)]]
    for chunk in chunks:
        facts = np.array(chunk, np.int32)
        for key, features in assembler.add(facts, torch.from_numpy(facts[:, :1] * 10.0)):
            found[tuple(np.frombuffer(key, np.int32))] = features[:, 0].tolist()
    assert found == {tuple(ids): [10.0 * i for i in ids] for ids in talks.values()}
