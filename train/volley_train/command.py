"""volley-train: from a target and prompts to a drafter. Each stage reads what the one before wrote and is skipped or
taken up again where its own output exists.

    volley-train answers --target PATH --prompts FILE --out DIR --volley PROGRAM    answers.safetensors
    volley-train train   --target PATH --out DIR                                    state.pt, then drafter/
    volley-train judge   --target PATH --out DIR [--draft DIR]                      judge.json
    volley-train engine  --target PATH --out DIR --volley PROGRAM                   engine.json
    volley-train run     --target PATH --prompts FILE --out DIR --volley PROGRAM    all

PATH is a folder of Hugging Face's layout or a GGUF file of a dense decoder. A line of FILE has "prompt" or "messages",
and "domain"; or "open", the start of a user's message that the target itself writes on, and "system". Lines with
"held_out" are judged and not trained on.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from . import blocks, engine, guards, losses
from .blocks import Rows
from .data import Answer, Answers, Prompt, grams, held_grams, pack, save_answers
from .judge import judge
from .networks import Drafter
from .stream import Stream
from .targets import Bundle
from .training import Recipe, Trainer, draft_config, export, layouts, load_drafter

HEADS: dict[str, dict[str, Any]] = {
    "dflash": {}, "dflash2": {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 64, "selector_top_k": 16},
    "dspark": {"projector_type": "dspark", "markov_rank": 64, "markov_head_type": "vanilla", "enable_confidence_head": True,
               "confidence_head_with_markov": True}}


class Log:
    """Lines of JSON, on the standard output and in the file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.begun, self.silent = path, time.time(), False

    def __call__(self, facts: dict[str, Any]) -> None:
        if self.silent:
            return
        line = json.dumps({"at": round(time.time() - self.begun, 1), **facts})
        print(line, flush=True)
        with self.path.open("a") as file:
            file.write(line + "\n")


class Run:
    def __init__(self, a: argparse.Namespace) -> None:
        self.a, self.out = a, Path(a.out)
        self.log = Log(self.out / "log.jsonl")
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.cuda = self.device == "cuda"
        if "LOCAL_RANK" in os.environ:
            if a.stage != "train":
                raise ValueError("torchrun's ranks share the stage train alone: run the others without it.")
            if self.cuda:
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            dist.init_process_group("nccl" if self.cuda else "gloo")
            self.log.silent = dist.get_rank() > 0
        torch.manual_seed(a.seed)
        self.bundle = Bundle(a.target, self.device, torch.bfloat16 if self.cuda else torch.float32)
        self.log({"stage": "loaded", "device": torch.cuda.get_device_name() if self.cuda else "cpu", "torch": torch.__version__})
        if self.cuda and not a.eager:
            torch.set_float32_matmul_precision("high")
            torch._dynamo.config.cache_size_limit = 64
            losses.use_compiled()
            blocks.use_compiled_masks()
            model = self.bundle.model
            model.layer = torch.compile(lambda layer, *inputs: layer(*inputs), dynamic=False)

    # --- answers --------------------------------------------------------------------------------------------------

    def answers(self) -> None:
        a, path = self.a, self.out / "answers.safetensors"
        if path.exists():
            return
        lines = [json.loads(line) for file in a.prompts for line in Path(file).read_text().splitlines()]
        if not lines:
            raise ValueError("there is nothing to answer: name files of prompts with --prompts.")
        draw = random.Random(a.seed)
        began = time.time()
        prompts: list[Prompt] = []
        opened: list[Prompt] = []
        for line in lines:
            if "open" in line:
                opened.append(Prompt(self._opening(line), 1.0, a.open_tokens, line["domain"]))
                continue
            ids = line.get("ids") or self._prompt_ids(line)
            temperatures = [0.0, 0.7] if line.get("held_out") else [0.0 if draw.random() < a.greedy else draw.uniform(0.5, 1.0)]
            for t in temperatures:
                prompts.append(Prompt(ids, t, a.answer_tokens, line["domain"], bool(line.get("held_out"))))
        written = self._write_prompts(opened, began + (a.answer_seconds * 0.2 or float("inf"))) if opened else []
        self.log({"stage": "prompts", "given": len(prompts), "written": len(written), "seconds": round(time.time() - began, 1)})
        for ids in written:
            t = 0.0 if draw.random() < a.greedy else draw.uniform(0.5, 1.0)
            prompts.append(Prompt(ids, t, a.answer_tokens, "own"))
        kept = [p for p in prompts if len(p.ids) + 32 < a.length]
        draw.shuffle(kept)
        kept.sort(key=lambda p: not p.held_out)
        done: list[Answer] = []
        tokens, told = 0, time.time()
        for answer in self._ask(kept, began + a.answer_seconds if a.answer_seconds else float("inf")):
            done.append(answer)
            tokens += len(answer.ids)
            if time.time() - told > 15:
                told = time.time()
                self.log({"answers": len(done), "tokens": tokens, "seconds": round(told - began, 1)})
        held = [x for x in done if x.prompt.held_out]
        forbidden = held_grams(list({tuple(x.prompt.ids): x.prompt.ids for x in held}.values()))
        free = [x for x in done if not x.prompt.held_out and not np.isin(grams(x.prompt.ids + x.ids), forbidden).any()]
        copied = len(done) - len(held) - len(free)
        if not free:
            raise ValueError("no answer is left to train on: give more prompts, or more --answer-seconds.")
        facts = {"target": Path(a.target).name, "template": self.bundle.template_hash, "seed": a.seed, "greedy": a.greedy}
        save_answers(self.out / "held_out.safetensors", held, facts)
        save_answers(path, free, facts)
        self.log({"stage": "answers", "answers": len(done), "held_out": len(held), "like held out": copied, "tokens": tokens,
                  "looped": sum(x.looped for x in done), "stopped": sum(x.ids[-1] in self.bundle.stops for x in done),
                  "seconds": round(time.time() - began, 1)})

    def _prompt_ids(self, line: dict[str, Any]) -> list[int]:
        messages = line.get("messages") or [{"role": "user", "content": line["prompt"]}]
        return self.bundle.encode(self.bundle.render(messages))

    def _parts(self, system: str | None) -> tuple[str, str]:
        """The texts that the template puts before a user's message, and behind it."""
        mark = "\x02mark\x02"
        messages = [{"role": "system", "content": system}] if system else []
        before, behind = self.bundle.render([*messages, {"role": "user", "content": mark}]).split(mark)
        return before, behind

    def _opening(self, line: dict[str, Any]) -> list[int]:
        return line.get("ids") or self.bundle.encode(self._parts(line.get("system"))[0] + line["open"])

    def _ask(self, prompts: list[Prompt], deadline: float) -> Iterator[Answer]:
        a = self.a
        return engine.answer(a.volley, a.target, prompts, a.seed, deadline, [
            "--concurrency", str(a.slots), "--max-model-len", str(a.length), *a.engine_options.split()])

    def _write_prompts(self, opened: list[Prompt], deadline: float) -> list[list[int]]:
        behind = self.bundle.encode(self._parts(None)[1])
        if behind[0] not in self.bundle.stops:
            raise ValueError("the template does not end a user's message with a stop token: give whole prompts.")
        return [x.prompt.ids + x.ids + behind[1:] for x in self._ask(opened, deadline)
                if x.ids[-1] == behind[0] and len(x.ids) > 4 and not x.looped]

    # --- training -------------------------------------------------------------------------------------------------

    def train(self) -> None:
        a, folder = self.a, self.out
        if (folder / "drafter" / "model.safetensors").exists():
            return
        data = Answers(folder / "answers.safetensors")
        guards.same_template(data.facts["template"], self.bundle.template_hash)
        began = time.time()
        packed = pack((data.conversation(i) for i in range(len(data))), a.row)
        rows = Rows(*(t.to(self.device) for t in (packed.ids, packed.positions, packed.documents, packed.answers)))
        share = float((rows.answers > 0).float().mean())
        self.log({"stage": "packed", "conversations": len(data), "rows": len(rows.ids), "tokens": int(data.total.sum()),
                  "answer share": round(share, 3), "seconds": round(time.time() - began, 1)})
        mask = self._unused_token(rows) if a.mask_token is None else a.mask_token
        config = draft_config(self.bundle.config, a.layers, a.block, a.window or None, not a.bidirectional, mask,
                              HEADS[a.kind], a.kind, a.features)
        drafter = Drafter(config).to(self.device)
        recipe = Recipe(seconds=a.seconds, steps=a.steps, batch=a.batch, draft_rows=a.draft_rows, short=min(a.short, a.block),
                        long=a.block, rate=a.rate, seed=a.seed, chunk=a.chunk, keep=a.keep, halt=a.halt)
        flex = self.cuda and not a.eager
        self._agreement(data)
        guards.before_training(self.bundle.model, drafter, rows, layouts(recipe, self.device)[1], False)
        self.log({"stage": "guards", "weights": sum(p.numel() for p in drafter.parameters()),
                  "features": config["dflash_config"]["target_layer_ids"], "seconds": round(time.time() - began, 1)})
        if self.cuda and not a.eager:
            self._same_masks(drafter, rows, recipe)
        stream = self._stream(config, rows) if a.stream else None
        trainer = Trainer(self.bundle.model, drafter, rows, recipe, flex, self.log, stream)
        if trainer.resume(folder):
            self.log({"stage": "resumed", "step": trainer.step})
        try:
            trainer.run(folder)
        finally:
            if stream:
                stream.close()
        if trainer.rank > 0 or a.halt < 1:
            return
        export(drafter, folder / "drafter")
        export(drafter, folder / "drafter-speculators", "speculators") if a.speculators else None
        self.log({"stage": "trained", "steps": trainer.step, "seconds": round(time.time() - began, 1)})

    def _stream(self, config: dict[str, Any], rows: Rows) -> Stream:
        """The engine's features, which must be those of the pass here; the target's layers then leave this process."""
        layers = [*config["dflash_config"]["target_layer_ids"], len(self.bundle.model.model.layers) - 1]
        stream = Stream(self.a.volley, self.a.target, layers, self.out / "stream", self.a.stream,
                        ["--concurrency", "16", "--max-model-len", str(self.a.row + 1), *self.a.engine_options.split()])
        few = rows[torch.arange(1, device=self.device)]
        first = (few.documents[0] == 0).nonzero()[:, 0]
        with torch.no_grad():
            ours = blocks.features_of(self.bundle.model, few, layers, False)[1][0, first]
        talk = few.ids[0, first].cpu().numpy()
        stream.ask([talk])
        cosines = guards.same_features(stream.take(talk), ours.cpu(), layers)
        self.log({"stage": "stream", "layers": layers, "cosines": [round(c, 6) for c in cosines]})
        self.bundle.model.model.layers = torch.nn.ModuleList()
        return stream

    def _agreement(self, data: Answers) -> None:
        """Whether the packed pass chooses what the decoding one chose in greedy answers."""
        which = [i for i in range(len(data)) if data.temperature[i] == 0][:64]
        if not which:
            return
        packed = pack((data.conversation(i) for i in which), self.a.row)
        rows = Rows(*(t.to(self.device).long() for t in (packed.ids, packed.positions, packed.documents, packed.answers)))
        right = total = 0
        for part in torch.arange(len(rows.ids), device=self.device).split(4):
            few = rows[part]
            with torch.no_grad():
                hidden, _ = blocks.features_of(self.bundle.model, few, [], False)
                chosen = self.bundle.model.lm_head(hidden).argmax(-1)[:, :-1]
            told = few.answers[:, 1:] > 0
            right += int((chosen == few.ids[:, 1:])[told].sum())
            total += int(told.sum())
        self.log({"stage": "agreement", "of greedy tokens": round(right / total, 4)})
        if right < 0.8 * total:
            raise guards.GuardError(f"the target chooses only {right} of {total} tokens of its own greedy answers.")

    def _unused_token(self, rows: Rows) -> int:
        """A special token that neither the data nor the template has: the last one."""
        used = set(rows.ids.unique().tolist()) | set(self.bundle.stops)
        special = [i for i, t in self.bundle.tokenizer.get_added_tokens_decoder().items()
                   if t.special and i not in used and t.content not in self.bundle.template]
        if not special:
            raise guards.GuardError("all special tokens occur in the data: name another with --mask-token.")
        return max(special)

    def _same_masks(self, drafter: Drafter, rows: Rows, recipe: Recipe) -> None:
        """Block masks against boolean ones."""
        few, layout = rows[torch.arange(recipe.batch, device=self.device)], layouts(recipe, self.device)[1]
        anchors, usable = blocks.pick_anchors(few, layout.blocks)
        model, ids, found, compiled = self.bundle.model, drafter.c["dflash_config"]["target_layer_ids"], [], self.bundle.model.layer
        real = few.documents >= 0
        for flex in (False, True):
            model.layer = compiled if flex else lambda layer, *inputs: layer(*inputs)
            if flex:
                drafter.compile(dynamic=False)
            with torch.autocast(self.device, torch.bfloat16):
                with torch.no_grad():
                    _, features = blocks.features_of(model, few, ids, flex)
                drafts = blocks.draft(drafter, model.model.embed_tokens.weight, few, features, anchors, usable, layout, flex)
            found.append((features[real].float(), drafts.hidden[drafts.live].detach().float()))
        for name, x, y in zip(("features", "drafts"), *found):
            error = float((x - y).norm() / y.norm())
            self.log({"block masks": name, "relative error": error})
            if not error < 0.1:
                raise guards.GuardError(f"{name} of block masks and of boolean ones differ by {error:.3f}.")

    # --- judge ----------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        a, path = self.a, self.out / "judge.json"
        if path.exists():
            return
        began = time.time()
        drafter = load_drafter(Path(a.draft) if a.draft else self.out / "drafter", self.device)
        held = Answers(self.out / "held_out.safetensors")
        which = list(range(len(held)))[:a.judged or None]
        sizes = sorted({b for b in (4, 5, 6, 8, 12, 16) if b <= a.block} | {a.block})
        self.bundle.model.layer = lambda layer, *inputs: layer(*inputs)
        found, trees = judge(self.bundle.model, drafter, held, which, a.row, a.batch, a.draft_rows, sizes, False)
        path.write_text(json.dumps(found, indent=1) + "\n")
        for name, by_block in found.items():
            self.log({"tokens a step": name, **by_block})
        for name, facts in trees.items():
            self.log({"leaves": name, **facts})
        self.log({"stage": "judged", "seconds": round(time.time() - began, 1)})


    def engine(self) -> None:
        """Serves held-out prompts with the drafter and without, and writes the judge's word on the served answers beside."""
        a, folder = self.a, self.out / "engine"
        draft = a.draft or str(self.out / "drafter")
        held = Answers(self.out / "held_out.safetensors")
        found, answers = engine.serve(a.volley, a.target, draft, held, engine.pick(held, a.each), a.served_tokens, folder,
                                      ["--concurrency", "4", *a.engine_options.split()])
        save_answers(folder / "served.safetensors", answers, held.facts, whole=True)
        drafter = load_drafter(Path(draft), self.device)
        served, size = Answers(folder / "served.safetensors"), str(a.block)
        longest = -(-int(served.total.max()) // 128) * 128
        judged, _ = judge(self.bundle.model, drafter, served, list(range(len(served))), longest, 4, 32 * a.block, [a.block], False)
        found["judge"] = {name: by_block[size] for name, by_block in judged.items()}
        found["apart, %"] = {name: round(100 * (found["judge"][name] / mean - 1), 1)
                             for name, mean in found["tokens a step"].items() if name in found["judge"]}
        (self.out / "engine.json").write_text(json.dumps(found, indent=1) + "\n")
        self.log({"stage": "engine", **found})
        if found["different from plain decoding"]:
            raise guards.GuardError("answers with the drafter differ from those without.")


def parser() -> argparse.ArgumentParser:
    ap = argparse.ArgumentParser(prog="volley-train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("stage", choices=("answers", "train", "judge", "engine", "run"))
    ap.add_argument("--target", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--prompts", nargs="*", default=[])
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--eager", action="store_true", help="no compiled code, on a GPU too")
    g = ap.add_argument_group("answers")
    g.add_argument("--answer-seconds", type=float, default=0, help="stop after so long (0: when all are answered)")
    g.add_argument("--answer-tokens", type=int, default=320)
    g.add_argument("--open-tokens", type=int, default=160)
    g.add_argument("--greedy", type=float, default=0.5, help="share of greedy answers; others at T 0.5 to 1")
    g.add_argument("--slots", type=int, default=1024, help="prompts that are answered at once")
    g.add_argument("--length", type=int, default=640, help="tokens of a prompt with its answer")
    g = ap.add_argument_group("drafter and training")
    g.add_argument("--kind", choices=HEADS, default="dflash")
    g.add_argument("--layers", type=int, default=3)
    g.add_argument("--block", type=int, default=16)
    g.add_argument("--short", type=int, default=8, help="block of the first part of training")
    g.add_argument("--window", type=int, default=512, help="0: none")
    g.add_argument("--bidirectional", action="store_true")
    g.add_argument("--features", type=int, nargs="+", metavar="LAYER", help="layers of the target that it reads; without them as many as fit its depth")
    g.add_argument("--mask-token", type=int, help="without it an unused special token")
    g.add_argument("--seconds", type=float, default=0, help="of training; 0: --steps")
    g.add_argument("--steps", type=int, default=1000)
    g.add_argument("--batch", type=int, default=32, help="rows of a step, of each of torchrun's processes")
    g.add_argument("--row", type=int, default=1024, help="tokens of a row")
    g.add_argument("--draft-rows", type=int, default=2048, help="of a row")
    g.add_argument("--rate", type=float, default=1.5e-3)
    g.add_argument("--stream", type=float, default=0, metavar="GB",
                   help="features come from the engine, through a ring of so many GB in shared memory")
    g.add_argument("--halt", type=float, default=1, help="the share of training at which it stops, to be continued")
    g.add_argument("--keep", type=float, default=0, help="GB of features that stay in memory for further epochs")
    g.add_argument("--speculators", action="store_true", help="also in the speculators library's schema")
    g.add_argument("--chunk", type=int, default=8192, help="draft rows whose logits are computed at once")
    g = ap.add_argument_group("judge")
    g.add_argument("--draft", help="a drafter's folder; without it the trained one")
    g.add_argument("--judged", type=int, default=0, help="so many conversations; 0: all")
    g = ap.add_argument_group("engine")
    g.add_argument("--volley", default="volley", help="the program, which answers and serves")
    g.add_argument("--each", type=int, default=16, help="so many prompts of each domain and temperature")
    g.add_argument("--served-tokens", type=int, default=128)
    g.add_argument("--engine-options", default="", help="what `volley generate` is told besides")
    return ap


def main(arguments: list[str] | None = None) -> int:
    a = parser().parse_args(arguments)
    try:
        run = Run(a)
        for stage in ("answers", "train", "judge", "engine") if a.stage == "run" else (a.stage,):
            getattr(run, stage)()
    except (ValueError, OSError, guards.GuardError) as error:
        print(f"volley-train: {error}", file=sys.stderr)
        return 1
    return 0
