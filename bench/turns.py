#!/usr/bin/env python3
"""How much of their prompts conversations find in the prefix cache, with one replica and with several.

For each of --replicas a `volley serve --data-parallel-size N` gets the same conversations, --open at once: random turns as
token ids behind a beginning that all share, each turn sent with all that was said before. Reports the share of prompt
tokens that were cached, of all that could have been (whole pages of the shared beginning, then of a conversation's last
prompt and answer), and that share against the first one's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any


async def complete(port: int, prompt: list[int], tokens: int) -> tuple[list[int], int]:
    """The answer's tokens, and how many of the prompt's were cached."""
    fields = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    body = json.dumps(fields).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    data = await reader.read(-1)
    writer.close()
    answer = json.loads(data[data.index(b"\r\n\r\n") + 4 :])
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


async def converse(port: int, options: argparse.Namespace) -> dict[str, int]:
    common = [random.Random(0).randrange(5, options.vocabulary) for _ in range(options.common_tokens)]
    counts = {"cached": 0, "possible": 0, "prompt": 0}
    places = asyncio.Semaphore(options.open)

    async def conversation(number: int) -> None:
        draw = random.Random(number + 1)
        said, before = list(common), len(common)
        async with places:
            for _ in range(options.turns):
                said += [draw.randrange(5, options.vocabulary) for _ in range(options.turn_tokens)]
                answer, cached = await complete(port, said, options.answer_tokens)
                counts["cached"] += cached
                counts["prompt"] += len(said)
                counts["possible"] += before // options.page_size * options.page_size
                said += answer
                before = len(said) - 1  # the last token's K and V are not computed
                await asyncio.sleep(draw.random() * options.pause)

    await asyncio.gather(*[conversation(number) for number in range(options.conversations)])
    return counts


def measure(replicas: int, options: argparse.Namespace) -> dict[str, Any]:
    command = [options.volley, "serve", "--port", "0", "--log-level", "warning", "--page-size", str(options.page_size)]
    command += ["--data-parallel-size", str(replicas), *options.engine]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+:(\d+)", server.stdout.readline())
        if not found:
            raise SystemExit("turns: the server did not start")
        counts = asyncio.run(converse(int(found[1]), options))
    finally:
        server.terminate()
        server.wait(timeout=60)
    return {"replicas": replicas, **counts, "share": counts["cached"] / counts["possible"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--volley", default="build/cpu/bin/volley")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--vocabulary", type=int, default=1000, help="turns are of tokens below")
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--open", type=int, default=16, help="conversations at once")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--common-tokens", type=int, default=48)
    parser.add_argument("--turn-tokens", type=int, default=24)
    parser.add_argument("--answer-tokens", type=int, default=24)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--pause", type=float, default=0.2, help="most seconds between an answer and the next turn")
    parser.add_argument("--json", type=Path)
    parser.add_argument("engine", nargs="*", help="options of the server, behind --")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for replicas in options.replicas:
        rows.append(measure(replicas, options))
        rows[-1]["against_first"] = rows[-1]["share"] / rows[0]["share"]
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
