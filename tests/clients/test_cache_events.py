"""KV-cache events: an index made of them says exactly what the server finds in its cache."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from support import MODEL, Server, user

END = (-1).to_bytes(8, "big", signed=True)


# The schema as a subscriber of vLLM declares it.
class Event(msgspec.Struct, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Index:
    """Subscribes, asks for what it missed, and keeps which pages are cached after which."""

    def __init__(self, folder: Path, server: Server) -> None:
        self._server = server
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.SUB)
        self._live.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        self._live.connect(f"ipc://{folder}/events")
        self._again = self._context.socket(zmq.DEALER)
        self._again.connect(f"ipc://{folder}/replay")
        self._next = 0
        self._pages: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        self.stored = self.removed = 0

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _apply(self, topic: bytes, number: bytes, payload: bytes) -> None:
        assert topic == b"kv@pod@pocket" and int.from_bytes(number, "big") == self._next
        self._next += 1
        batch = msgspec.msgpack.decode(payload, type=Batch)
        assert abs(batch.ts - time.time()) < 300 and batch.data_parallel_rank == 0 and batch.events
        for event in batch.events:
            if isinstance(event, BlockStored):
                parent = event.parent_block_hash
                assert parent is None or parent in self._pages
                assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                for place, page in enumerate(event.block_hashes):
                    tokens = event.token_ids[place * event.block_size : (place + 1) * event.block_size]
                    assert page not in self._pages
                    self._pages[page] = (parent, tuple(tokens))
                    parent = page
                self.stored += len(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                for page in event.block_hashes:
                    del self._pages[page]
                    assert all(parent != page for parent, _ in self._pages.values())
                self.removed += len(event.block_hashes)
            else:
                self._pages.clear()

    def replay(self) -> int:
        """Takes what was sent before; how many batches."""
        self._again.send_multipart([b"", self._next.to_bytes(8, "big")])
        count = 0
        while True:
            assert self._again.poll(10_000)
            empty, topic, number, payload = self._again.recv_multipart()
            if number == END:
                assert (empty, topic, payload) == (b"", b"", b"")
                return count
            self._apply(topic, number, payload)
            count += 1

    def catch_up(self) -> None:
        """Takes what comes, until it is all that the server has sent. A batch is counted once it is sent, so one look is
        not enough."""
        quiet = 0
        while quiet < 5:
            running = self._server.metric("num_requests_running") > 0
            quiet = 0 if running or self._next < self._server.metric("kv_event_batches_total") else quiet + 1
            while self._live.poll(20):
                quiet = 0
                self._apply(*self._live.recv_multipart())

    def cached_tokens(self, prompt: list[int]) -> int:
        """Of a prompt in pages: all but its last token, which has to be computed in any case."""
        by_place = {place: page for page, place in self._pages.items()}
        parent, found = None, 0
        while found + 16 < len(prompt):
            page = by_place.get((parent, tuple(prompt[found : found + 16])))
            if page is None:
                break
            parent, found = page, found + 16
        return found

    def __len__(self) -> int:
        return len(self._pages)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{tmp_path}/events",
        "replay_endpoint": f"ipc://{tmp_path}/replay",
        "topic": "kv@pod@pocket",
    }
    # Few pages, so that some have to go.
    options = f"--threads 1 --max-num-seqs 2 --max-model-len 512 --kv-pages 72 --kv-events-config '{json.dumps(config)}'"
    with Server(options) as running:
        yield running


def wait_for_a_batch(server: Server) -> None:
    """Pages are cached when their request has ended, just after its answer."""
    while server.metric("num_requests_running") > 0 or server.metric("kv_event_batches_total") < 1:
        time.sleep(0.01)


def prompt_tokens(server: Server, messages: list[dict[str, str]]) -> list[int]:
    return server.post_json("/tokenize", {"model": MODEL, "messages": messages})["tokens"]


def test_an_index_of_events_is_what_the_cache_holds(server: Server, tmp_path: Path) -> None:
    client = server.client()
    chat = client.chat.completions.create
    chat(model=MODEL, messages=user("Before anybody listens."), max_tokens=40, temperature=0)
    wait_for_a_batch(server)
    index = Index(tmp_path, server)
    try:
        assert index.replay() >= 1 and len(index) >= 1
        chosen = random.Random(7)
        conversations = [user(f"Conversation {name}: what do you know of {name}s?") for name in ("horse", "river", "lamp", "tea")]
        for _ in range(28):
            place = chosen.randrange(len(conversations))
            messages = conversations[place]
            index.catch_up()
            prompt = prompt_tokens(server, messages)
            expected = index.cached_tokens(prompt)
            answer = chat(model=MODEL, messages=messages, max_tokens=30, temperature=0)
            assert answer.usage.prompt_tokens == len(prompt)
            assert answer.usage.prompt_tokens_details.cached_tokens == expected
            messages = [*messages, {"role": "assistant", "content": answer.choices[0].message.content}, *user("Go on.")]
            conversations[place] = messages if len(prompt) < 380 else user(f"Again, number {chosen.randrange(1000)}.")
        index.catch_up()
        assert index.removed > 0 and index.stored > index.removed, "some pages had to go, and some stayed"
        assert len(index) == server.metric("kv_pages_used"), "nothing runs: what is used is cached"
        assert server.metric("kv_event_batches_dropped_total") == 0
    finally:
        index.close()


def test_a_namespace_is_an_extra_key(server: Server, tmp_path: Path) -> None:
    body = {"model": MODEL, "prompt": "word " * 40, "max_tokens": 1, "cache_salt": "tenant-a"}
    server.post_json("/v1/completions", body)
    wait_for_a_batch(server)
    subscriber = Index(tmp_path, server)
    again = subscriber._again
    try:
        again.send_multipart([b"", bytes(8)])
        assert again.poll(10_000)
        payload = again.recv_multipart()[3]
        stored = msgspec.msgpack.decode(payload, type=Batch).events[0]
        assert isinstance(stored, BlockStored) and stored.extra_keys is not None
        assert stored.extra_keys[0] == ("tenant-a",) and set(stored.extra_keys[1:]) <= {None}
        raw = msgspec.msgpack.decode(payload)[1][0]
        assert raw["type"] == "BlockStored" and "lora_name" in raw
    finally:
        subscriber.close()


def test_a_wrong_option_ends_the_start() -> None:
    for config, word in (("{", "JSON object"), ('{"hwm": 0}', "hwm"), ('{"enable_kv_cache_events": true, "endpoint": "x"}', "x")):
        with pytest.raises(RuntimeError, match=word):
            Server(f"--kv-events-config '{config}'")
    with pytest.raises(RuntimeError, match="no-prefix-cache"):
        Server("--no-prefix-cache --kv-events-config '{\"enable_kv_cache_events\": true}'")
