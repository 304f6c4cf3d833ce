#!/usr/bin/env python3
"""What an HTTP client gets of the engine's tokens: `volley bench` and `volley serve` of the same shapes, one after the
other, with a made-up tokenizer as large as the model's vocabulary. docs/benchmarks.md has the command.

Both run closed loops of the same requests: random prompts as token ids, a fixed number of greedy tokens, whatever ends
a sequence ignored. tok/s are all tokens over all the time, the ramps included. A stream's rate is its tokens over the
time from its first to its last piece.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any


def spellings() -> list[str]:
    """How a byte-level vocabulary spells each byte."""
    spelled, more = [], 256
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        spelled.append(chr(byte if printable else more))
        more += not printable
    return spelled


def make_tokenizer(tokens: int) -> dict[str, Any]:
    """Byte-level BPE: syllables, words of them with and without a space before, characters of three bytes."""
    draw, spelled = random.Random(1), spellings()
    vocab: dict[str, int] = {}
    merges: list[list[str]] = []
    for text in spelled:
        vocab[text] = len(vocab)

    def merge(left: str, right: str) -> str:
        if left + right not in vocab and len(vocab) < tokens:
            vocab[left + right] = len(vocab)
            merges.append([left, right])
        return left + right

    letters = [spelled[byte] for byte in b"abcdefghijklmnopqrstuvwxyz"]
    tails = [merge(a, b) for a in letters for b in letters]
    heads = tails + [merge(spelled[32], letter) for letter in letters] + [spelled[byte] for byte in range(65, 91)]
    while len(vocab) < tokens:
        if draw.random() < 0.1:
            code = chr(draw.randrange(0x4E00, 0x9000)).encode()
            merge(merge(spelled[code[0]], spelled[code[1]]), spelled[code[2]])
            continue
        head, tail = draw.choice(heads), draw.choice(tails)
        if len(head) + len(tail) <= 12:
            heads.append(merge(head, tail))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }  # fmt: skip


def with_tokenizer(model: Path, folder: Path) -> tuple[Path, int]:
    """The model's configuration beside a tokenizer of its size, and that size."""
    made = folder / model.name
    shutil.copytree(model, made)
    tokens = json.loads((made / "config.json").read_text())["vocab_size"]
    (made / "tokenizer.json").write_text(json.dumps(make_tokenizer(tokens), ensure_ascii=False))
    return made, tokens


class Stream:
    """One answer as it came."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.first = self.last = 0.0
        self.tokens = self.pieces = self.bytes = 0


async def ask(port: int, body: bytes) -> Stream:
    stream = Stream()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    tail = b""
    while data := await reader.read(1 << 16):
        stream.last = time.monotonic()
        if not stream.first and b'"text"' in data:
            stream.first = stream.last
        stream.pieces += data.count(b"data: ")
        stream.bytes += len(data)
        tail = (tail + data)[-4096:]
    writer.close()
    usage = re.findall(rb'"completion_tokens":(\d+)', tail)
    if b"data: [DONE]" not in tail or not usage:
        raise RuntimeError(f"a stream broke off: {tail[-500:]!r}")
    stream.tokens = int(usage[-1])
    return stream


def work(index: int, port: int, streams: int, bodies: list[bytes], start: Any, out: Any) -> None:
    """One process: `streams` answers at once until all are there."""

    async def run() -> list[Stream]:
        waiting, done = iter(bodies), []

        async def one() -> None:
            for body in waiting:
                done.append(await ask(port, body))

        await asyncio.gather(*[one() for _ in range(streams)])
        return done

    start.wait()
    begun = time.monotonic()
    try:
        out.put((begun, time.monotonic(), asyncio.run(run())))
    except BaseException as error:
        out.put((begun, begun, repr(error)))


def threads_cpu(pid: int) -> dict[int, float]:
    ticks = os.sysconf("SC_CLK_TCK")
    used = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        used[int(task.name)] = (int(fields[11]) + int(fields[12])) / ticks
    return used


def load(server: Server, streams: int, requests: int, options: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(streams * 1000 + requests)
    processes = max(1, min(options.processes, streams))
    bodies = []
    for _ in range(requests):
        prompt = [draw.randrange(server.vocabulary) for _ in range(options.prompt_tokens)]
        fields = {"prompt": prompt, "max_tokens": options.output_tokens, "ignore_eos": True, "temperature": 0}
        bodies.append(json.dumps({**fields, "stream": True, "stream_options": {"include_usage": True}}).encode())
    start, out = multiprocessing.Event(), multiprocessing.Queue()
    workers = []
    for i in range(processes):
        share = streams // processes + (i < streams % processes)
        arguments = (i, server.port, share, bodies[i::processes], start, out)
        workers.append(multiprocessing.Process(target=work, args=arguments))
    for worker in workers:
        worker.start()
    before = threads_cpu(server.process.pid)
    start.set()
    answers: list[Stream] = []
    begun, failed = [], []
    for _ in workers:
        at, _, got = out.get(timeout=options.timeout)
        begun.append(at)
        failed += [got] if isinstance(got, str) else []
        answers += [] if isinstance(got, str) else got
    after = threads_cpu(server.process.pid)
    for worker in workers:
        worker.join()
    if failed:
        raise RuntimeError(failed[0])
    wall = max(answer.last for answer in answers) - min(begun)
    tokens = sum(answer.tokens for answer in answers)
    assert tokens == requests * options.output_tokens, (tokens, requests)
    cpu = sorted((used - before.get(thread, 0) for thread, used in after.items()), reverse=True)
    rates = [answer.tokens / (answer.last - answer.first) for answer in answers if answer.last > answer.first]
    return {
        "streams": streams, "requests": requests, "tokens": tokens, "wall_s": wall, "tok_s": tokens / wall,
        "stream_tok_s": statistics.median(rates), "stream_tok_s_p10": sorted(rates)[len(rates) // 10],
        "ttft_ms": 1000 * statistics.median(answer.first - answer.begun for answer in answers),
        "pieces": sum(answer.pieces for answer in answers), "bytes": sum(answer.bytes for answer in answers),
        "cpu_us_token": 1e6 * sum(cpu) / tokens, "thread_cpu_us_token": [1e6 * each / tokens for each in cpu[:6]],
    }  # fmt: skip


class Server:
    def __init__(self, model: Path, vocabulary: int, options: argparse.Namespace) -> None:
        command = [options.volley, "serve", "--port", "0", "--model", model, *engine_options(options)]
        command += ["--max-num-seqs", str(max(options.streams)), "--log-level", "warning"]
        self.vocabulary = vocabulary
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)\b(?!.*://)", line[line.find("http://") + 7 :] if "http://" in line else "")
        if not found:
            raise SystemExit(f"http_load: the server did not start: {line!r}")
        self.port = int(found.group(1))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)


def engine_options(options: argparse.Namespace) -> list[str]:
    common = ["--draft", options.draft, "--dummy-weights", "1", "--simulate-acceptance", options.simulate_acceptance]
    return [*map(str, common), "--no-prefix-cache", *options.engine]


def bench(model: Path, streams: int, requests: int, options: argparse.Namespace) -> dict[str, Any]:
    command = [options.volley, "bench", "--model", model, *engine_options(options), "--spec", "dflash", "--json"]
    command += ["--concurrency", streams, "--requests", requests, "--max-num-seqs", max(options.streams)]
    command += ["--prompt-tokens", options.prompt_tokens, "--output-tokens", options.output_tokens]
    before = os.times()
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    after = os.times()
    if done.returncode != 0:
        raise SystemExit(f"http_load: volley bench ended with {done.returncode}")
    report = json.loads(done.stdout.splitlines()[-1])
    user, system = after.children_user - before.children_user, after.children_system - before.children_system
    report["process_cpu_s"] = user + system
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--volley", default="build/cuda/bin/volley")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--simulate-acceptance", default="geometric:0.8553")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--more", type=int, default=300, help="streams, on as many slots as the most of --streams")
    parser.add_argument("--requests", type=int, nargs="+", default=[16, 128, 512], help="for each of --streams")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=512)
    parser.add_argument("--processes", type=int, default=8, help="of the client")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--no-bench", action="store_true", help="HTTP alone")
    parser.add_argument("--json", type=Path)
    parser.add_argument("engine", nargs="*", help="options of the engine, behind --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, vocabulary = with_tokenizer(options.model, Path(folder))
        print(f"a tokenizer of {vocabulary} tokens", flush=True)
        report: dict[str, Any] = {"http": [], "bench": []}
        pairs = list(zip(options.streams, options.requests))
        if not options.no_bench:
            for pair in pairs:
                report["bench"].append(row := bench(model, *pair, options))
                each = row["rows"][0]
                rate, full = each["completion_tokens"] / each["wall_s"], each["full"]["tok_s"]
                cpu = 1e6 * row["process_cpu_s"] / each["completion_tokens"]
                print(f"bench {pair}: {rate:.0f} tok/s, all at once {full:.0f}, CPU {cpu:.1f} us a token", flush=True)
        server = Server(model, vocabulary, options)
        try:
            load(server, max(options.streams), max(options.streams), options)  # warm
            for streams, requests in pairs + [(options.more, 2 * options.more)]:
                for _ in range(options.repeat):
                    row = load(server, streams, requests, options)
                    report["http"].append(row)
                    print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        finally:
            server.stop()
        if options.json:
            options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
