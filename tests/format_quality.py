"""What formats of weights and of the cache cost in quality, on the pocket pair: held-out word problems that come out right,
the loss on held-out conversations, and tokens per step with the pocket drafter.

    python3 tests/format_quality.py [--program build/cpu/bin/volley] [--formats bf16 "kv fp8"] [--problems 500] [--texts 300]

A format is an option of the program, or a checkpoint that the field's own tools quantise here, from the pocket target's
weights. The latter need what make_quantised_fixtures.py needs; without --formats they are left out where that is missing.
"""
from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "train" / "pocket"), str(ROOT / "tests" / "make")]
import tasks  # noqa: E402

POCKET, DRAFTER = ROOT / "models" / "pocket", ROOT / "models" / "pocket-dflash"
HELD_OUT = 880_001  # a seed of no training stream

OPTIONS = {
    "bf16": [],
    "kv fp8": ["--kv-cache-dtype", "fp8"],
    "fp8": ["--quantization", "fp8"],
    "fp8, kv fp8": ["--quantization", "fp8", "--kv-cache-dtype", "fp8"],
    "int4": ["--quantization", "int4"],
    "int4, kv fp8": ["--quantization", "int4", "--kv-cache-dtype", "fp8"],
}


def schemes():
    """Checkpoints by name: the schemes of make_quantised_fixtures.py, with the sizes that files of the field have."""
    import make_quantised_fixtures as make

    def int4(**more):
        return make.compressed("pack-quantized", {**make.INT4, "strategy": "group", **more})

    def fp8(**more):
        activations = make.QuantizationArgs(**make.DYNAMIC)
        return make.compressed("float-quantized", {**make.FP8, **more}, input_activations=activations)

    return {
        "FP8 a tensor (modelopt)": make.modelopt_fp8(),
        "FP8 a channel (compressed-tensors)": fp8(strategy="channel"),
        "FP8 128x128 (fp8)": make.transformers_fp8((128, 128)),
        "FP8 128x128 ue8m0 (fp8)": make.transformers_fp8((128, 128), "ue8m0"),
        "INT4 groups of 32 (compressed-tensors)": int4(symmetric=True, group_size=32),
        "INT4 groups of 128 (compressed-tensors)": int4(symmetric=True, group_size=128),
        "INT4 groups of 32, zero points (compressed-tensors)": int4(symmetric=False, group_size=32),
        "AWQ groups of 32": make.autoawq(32),
        "AWQ groups of 128": make.autoawq(128),
        "GPTQ groups of 32": make.gptq(32),
        "GPTQ groups of 128, act-order": make.gptq(128, act_order=True),
        "MXFP4 (compressed-tensors)": make.compressed(
            "mxfp4-pack-quantized", {**make.FP4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}),
        "NVFP4 (compressed-tensors)": make.compressed(
            "nvfp4-pack-quantized", {**make.FP4, "strategy": "tensor_group", "group_size": 16}),
    }


def write_checkpoint(folder: Path, scheme, left_alone=()):
    """The pocket target, quantised. Rounding is to the nearest: nothing is calibrated."""
    import make_quantised_fixtures as make
    from safetensors.torch import load_file

    quantization, quantise = scheme
    stored = {}
    for key, tensor in load_file(POCKET / "model.safetensors").items():
        coded = make.is_quantised(key, tensor) and not any(part in key for part in left_alone)
        stored |= quantise(key.removesuffix(".weight"), tensor.float())[0] if coded else {key: tensor}
    shutil.copytree(POCKET, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    make.write_tensors(folder, stored)
    config = json.loads((POCKET / "config.json").read_text())
    make.write_json(folder / "config.json", {**config, "quantization_config": quantization})


def problems(count: int) -> list[dict]:
    lines = (ROOT / "tests" / "data" / "word_problems.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[:count]]


def texts(count: int) -> list[tuple[str, str]]:
    """Conversations of all tasks: the text up to the answer, and the answer."""
    r = random.Random(HELD_OUT)
    drawn = [tasks.draw(r) for _ in range(count)]
    return [(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n", f"{answer}<|im_end|>")
            for _, prompt, answer in drawn]


def batch_of(cases: list[dict], held_out: list[tuple[str, str]]) -> list[dict]:
    """One file of requests: a chat for each problem, an echo for each text."""
    lines = [("/v1/chat/completions", {"messages": case["messages"], "max_tokens": case["max_tokens"], "temperature": 0})
             for case in cases]
    lines += [("/v1/completions", {"prompt": before + answer, "max_tokens": 0, "echo": True, "logprobs": 1})
              for before, answer in held_out]
    return [{"custom_id": str(i), "method": "POST", "url": url, "body": body} for i, (url, body) in enumerate(lines)]


def answered(program: str, options: list[str], requests: list[dict]) -> list[dict]:
    """The bodies of the answers, in the order of the requests."""
    with tempfile.TemporaryDirectory() as folder:
        asked, results = Path(folder) / "asked.jsonl", Path(folder) / "results.jsonl"
        asked.write_text("".join(json.dumps(request) + "\n" for request in requests))
        run = subprocess.run([program, "batch", "--input", str(asked), "--output", str(results), *options],
                             capture_output=True, text=True)
        lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        failed = [line for line in lines if line["error"] or line["response"]["status_code"] != 200]
        if run.returncode != 0 or failed:
            raise RuntimeError(f"{' '.join(options)}: {failed[0] if failed else run.stderr.strip()}")
    by_id = {line["custom_id"]: line["response"]["body"] for line in lines}
    return [by_id[request["custom_id"]] for request in requests]


def answer_losses(body: dict, start: int) -> list[float]:
    """Of the tokens from character `start` of an echoed text on, in nats."""
    found = body["choices"][0]["logprobs"]
    return [-value for value, offset in zip(found["token_logprobs"], found["text_offset"]) if offset >= start]


def measure(program: str, options: list[str], cases: list[dict], held_out: list[tuple[str, str]]) -> dict:
    started = time.monotonic()
    bodies = answered(program, options, batch_of(cases, held_out))
    right = tokens = accepted = 0
    for case, body in zip(cases, bodies):
        right += tasks.expected_answer(body["choices"][0]["message"]["content"]) == case["expected"]
        tokens += body["usage"]["completion_tokens"]
        accepted += body["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
    losses = [loss for (before, _), body in zip(held_out, bodies[len(cases):])
              for loss in answer_losses(body, len(before))]
    loss = sum(losses) / max(1, len(losses))
    return {"right": right, "problems": len(cases), "loss": loss, "perplexity": math.exp(loss), "tokens": len(losses),
            "tokens_per_step": tokens / max(1, tokens - accepted), "seconds": time.monotonic() - started}


def is_good(found: dict, first: dict) -> bool:
    return (found["right"] >= 0.97 * found["problems"] and found["loss"] <= 1.02 * first["loss"] and
            found["tokens_per_step"] >= 0.95 * first["tokens_per_step"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build" / "cpu" / "bin" / "volley"))
    parser.add_argument("--formats", nargs="+", metavar="NAME", help="[all that can be made here]")
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--left-alone", default="", help="parts of names of matrices that stay as they are, by commas")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each format instead of a table")
    parser.add_argument("--check", action="store_true",
                        help="exit with 1 where a format gets fewer than 97 of 100 problems right, or has a loss 2 %% above "
                             "or tokens per step 5 %% below those of the first format")
    options = parser.parse_args()

    checkpoints = {}
    if not options.formats or any(name not in OPTIONS for name in options.formats):
        try:
            checkpoints = schemes()
        except ImportError as error:
            print(f"without quantised checkpoints: {error}", file=sys.stderr)
    names = options.formats or [*OPTIONS, *checkpoints]
    cases, held_out = problems(options.problems), texts(options.texts)
    first, failed = None, False
    if not options.json:
        print("| format | right | loss | perplexity | tokens per step |\n|---|---|---|---|---|")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            model = POCKET
            if name not in OPTIONS:
                if name not in checkpoints:
                    parser.error(f"no format {name!r}: there are {'; '.join([*OPTIONS, *checkpoints])}")
                model = Path(folder) / "model"
                write_checkpoint(model, checkpoints[name], [part for part in options.left_alone.split(",") if part])
            flags = ["--model", str(model), "--draft", str(DRAFTER), "--device", options.device, "--verify", "full",
                     *OPTIONS.get(name, [])]
            found = measure(options.program, flags, cases, held_out)
        first = first or found
        if options.check and not is_good(found, first):
            failed = True
            print(f"{name} is worse than it may be", file=sys.stderr)
        if options.json:
            print(json.dumps({"format": name, **found}), flush=True)
        else:
            print(f"| {name} | {found['right']} of {found['problems']} | {found['loss']:.5f} | {found['perplexity']:.4f} | "
                  f"{found['tokens_per_step']:.3f} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
