"""Features that the engine computes and hands on through a ring in shared memory (src/decode/features): the target need not
be one that PyTorch computes here, nor fit beside the trainer."""
from __future__ import annotations

import json
import mmap
import os
import subprocess
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .engine import request

MAGIC, PAGE = 0x31474E4952594C56, 4096
_BYTES, _READER, _ROW, _COLUMNS, _VALUE, _WRITTEN, _READ = range(1, 8)


class Ring:
    """The reader's side. The engine says at its start how large a row is."""

    def __init__(self, gigabytes: float) -> None:
        size = PAGE + int(gigabytes * 1e9) // PAGE * PAGE
        handle, self.path = tempfile.mkstemp(prefix="volley-features-", dir="/dev/shm")
        try:
            os.posix_fallocate(handle, 0, size)  # a page that cannot be had later would end the engine
        except OSError as error:
            os.unlink(self.path)
            raise ValueError(f"--stream {gigabytes:g}: /dev/shm has no room for it ({error.strerror}): ask for less.") from error
        self.memory = mmap.mmap(handle, size)
        os.close(handle)
        self.head = np.frombuffer(self.memory, np.int64, PAGE // 8)
        self.head[_BYTES], self.head[_READER] = size - PAGE, os.getpid()
        self.head[0] = MAGIC

    def take(self) -> tuple[np.ndarray, Tensor] | None:
        """Rows that have come: token, slot and position [n, 3], and their features [n, columns]."""
        read, written = int(self.head[_READ]), int(self.head[_WRITTEN])
        if read == written:
            return None
        row = int(self.head[_ROW])
        count = int(self.head[_BYTES]) // row
        begin = read % count
        n = min(written - read, count - begin, max(1, (64 << 20) // row))
        rows = np.frombuffer(self.memory, np.uint8, n * row, PAGE + begin * row).reshape(n, row).copy()
        self.head[_READ] = read + n
        width = int(self.head[_COLUMNS] * self.head[_VALUE])
        dtype = torch.bfloat16 if self.head[_VALUE] == 2 else torch.float32
        return rows[:, :12].copy().view(np.int32), torch.from_numpy(rows)[:, 16:16 + width].view(dtype)

    def close(self) -> None:
        Path(self.path).unlink(missing_ok=True)


class Assembler:
    """Puts rows together by slot. Features depend on the tokens before alone, so those of a conversation are those of any
    longer one that begins with it."""

    def __init__(self) -> None:
        self.parts: dict[int, list[tuple[np.ndarray, Tensor]]] = {}
        self.length: dict[int, int] = {}
        self.wanted: dict[bytes, int] = defaultdict(int)

    def add(self, facts: np.ndarray, features: Tensor) -> Iterator[tuple[bytes, Tensor]]:
        edges = np.flatnonzero((np.diff(facts[:, 1]) != 0) | (np.diff(facts[:, 2]) != 1)) + 1
        for part in np.split(np.arange(len(facts)), edges):
            slot, at = int(facts[part[0], 1]), int(facts[part[0], 2])
            if at == 0:
                self.parts[slot], self.length[slot] = [], 0
            elif self.length.get(slot) != at:
                continue  # not of a prompt: what decoding adds after its end
            self.parts[slot].append((facts[part, 0], features[part[0]:part[-1] + 1]))
            self.length[slot] += len(part)
            key = np.concatenate([ids for ids, _ in self.parts[slot]]).astype(np.int32).tobytes()
            while self.wanted.get(key):
                self.wanted[key] -= 1
                yield key, torch.cat([f for _, f in self.parts[slot]])


class Stream:
    """Features of conversations, in the order in which they are asked for. `conversations` may be endless."""

    def __init__(self, program: str, target: str, layers: list[int], folder: Path, gigabytes: float, more: list[str]) -> None:
        self.ring, self.assembler = Ring(gigabytes), Assembler()
        self.ready: dict[bytes, deque[Tensor]] = defaultdict(deque)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(
            {"architectures": ["FeatureStream"], "layers": layers, "ring": self.ring.path}))
        self.process = subprocess.Popen(
            [program, "generate", "--model", target, "--draft", str(folder), "--verify", "0", "--input", "-", "--no-prefix-cache",
             "--step-timeout", "0", *more], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.lock, self.rows = threading.Lock(), 0

    def ask(self, conversations: Iterable[np.ndarray]) -> None:
        """Asks for them while the engine takes requests."""
        try:
            for ids in conversations:
                with self.lock:
                    self.assembler.wanted[ids.astype(np.int32).tobytes()] += 1
                self.process.stdin.write(request(ids.tolist(), 1, 0.0, 1))
                self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # the engine has ended, which take() says, or the trainer has enough

    def feed(self, conversations: Iterable[np.ndarray]) -> None:
        """The same on a thread of its own."""
        threading.Thread(target=self.ask, args=(conversations,), daemon=True).start()

    def take(self, ids: np.ndarray) -> Tensor:
        """The features of a conversation that was fed: [tokens, layers * hidden]."""
        key = ids.astype(np.int32).tobytes()
        while not self.ready[key]:
            ended = self.process.poll() is not None
            if (rows := self.ring.take()) is not None:
                self.rows += len(rows[0])
                with self.lock:
                    for found, features in self.assembler.add(*rows):
                        self.ready[found].append(features)
            elif ended:
                raise ValueError(f"the engine ended with status {self.process.returncode}: see what it printed above.")
            else:
                time.sleep(0.0005)
        features = self.ready[key].popleft()
        if not self.ready[key]:
            del self.ready[key]
        return features

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.ring.close()
