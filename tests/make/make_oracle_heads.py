"""Writes drafters with heads that are often right, for the pocket model: OUT/dflash2, OUT/vanilla, OUT/gated and OUT/rnn are
models/pocket-dflash with small random heads, which change some of its choices. Needs numpy.

    make_oracle_heads.py OUT
    VOLLEY_TEST_DRAFTER=OUT/dflash2 invariance_test
"""
from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from make_selector_fixtures import DATA, head_tensors, read_tensors, to_bf16, write_json, write_tensors

DRAFTER = DATA.parent.parent / "models" / "pocket-dflash"
HEADS = {"dflash2": {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 16, "selector_top_k": 16},
         **{kind: {"projector_type": "dspark", "shift_label": False, "markov_rank": 16, "markov_head_type": kind,
                   "enable_confidence_head": True, "confidence_head_with_markov": True} for kind in ("vanilla", "gated", "rnn")}}


def make(out, name, head):
    random, config = np.random.default_rng(17), json.loads((DRAFTER / "config.json").read_text())
    config["architectures"] = ["DFlash2DraftModel" if name == "dflash2" else "DSparkDraftModel"]
    config["dflash_config"] |= head
    tensors, hidden = read_tensors(DRAFTER / "model.safetensors"), config["hidden_size"]
    # Scores differ by a few units where a choice is clear.
    own = head_tensors(config, random, lambda rows, columns: random.standard_normal((rows, columns)) * columns**-0.5)
    tensors |= {n: t * (0.15 if n.endswith(("codebook", "w2.weight")) else 1) for n, t in own.items()}
    for layer in range(config["num_hidden_layers"]) if name == "dflash2" else ():
        for conv in ("attention_conv", "mlp_conv"):
            base = 0.02 * random.standard_normal((2, 2, hidden))
            base[:, 0] += 1
            tensors[f"layers.{layer}.{conv}.base_kernel"] = base
            tensors[f"layers.{layer}.{conv}.kernel_projection.weight"] = 0.02 * random.standard_normal((4 * hidden // 16, hidden)) * hidden**-0.5
    write_tensors(out / name, {n: to_bf16(t) for n, t in tensors.items()})
    write_json(out / name / "config.json", config)


if __name__ == "__main__":
    for name, head in HEADS.items():
        make(Path(sys.argv[1]), name, head)
