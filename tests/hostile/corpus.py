"""The attacks in tests/data/hostile, made from their recipes (README.md there), and how each is sent."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data/hostile"
NUMBER = re.compile(r"%(0\d+)?d")
PATIENCE_S = 600.0  # for an answer; what an attack may cost is judged by the server's CPU time, not by this


def text_of(parts: list[Any]) -> str:
    """Parts one behind the other. [text, count]: so many times, with %d (or %07d …) counting up from 0."""
    pieces = []
    for part in parts:
        if isinstance(part, str):
            pieces.append(part)
        elif NUMBER.search(part[0]):
            pieces += [NUMBER.sub(lambda found: found[0] % i, part[0]) for i in range(part[1])]
        else:
            pieces.append(part[0] * part[1])
    return "".join(pieces)


def _numbered(value: Any, number: int) -> Any:
    if value == "%d":
        return number
    if isinstance(value, str):
        return NUMBER.sub(lambda found: found[0] % number, value)
    if isinstance(value, list):
        return [_numbered(one, number) for one in value]
    if isinstance(value, dict):
        return {key: _numbered(one, number) for key, one in value.items()}
    return value


def expand(value: Any) -> Any:
    """JSON with recipes in it: {"$text": parts}, {"$list": [item, count]}, {"$object": [key, value, count]}."""
    if isinstance(value, list):
        return [expand(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "$text" in value:
        return text_of(value["$text"])
    if "$list" in value:
        item, count = value["$list"]
        item = expand(item)
        numbered = NUMBER.search(json.dumps(item))
        return [_numbered(item, i) for i in range(count)] if numbered else [item] * count
    if "$object" in value:
        key, member, count = value["$object"]
        return {key % i: _numbered(member, i) for i in range(count)}
    expanded: dict[str, Any] = {}
    for key, member in value.items():
        if key == "$merge":
            expanded |= expand(member)
        elif key == "$key":  # [parts of the key, value]
            expanded[text_of(member[0])] = member[1]
        else:
            expanded[key] = expand(member)
    return expanded


def to_bytes(text: str) -> bytes:
    """UTF-8, where U+DC80 to U+DCFF stand for single bytes that are none."""
    return text.encode("utf-8", "surrogateescape")


def load(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


@dataclass
class Attack:
    id: str
    what: str
    allow: list[str]
    row: dict[str, Any]
    answers: list[str] = field(default_factory=list)  # of its last run: a status, "closed", "left", "silent"

    def wrong(self) -> str:
        """What the last run's answers say against it; empty: nothing."""
        for answer in self.answers:
            if not any(_allowed(answer, allowed) for allowed in self.allow):
                return f"{self.id}: {answer} is none of {self.allow}"
        return ""

    def run(self, port: int) -> None:
        self.answers = list(_connections(port, self.row)) if "send" in self.row else list(_requests(port, self.row))


def _allowed(answer: str, allowed: str) -> bool:
    return allowed in ("any", answer) or (len(allowed) == 3 and allowed[1:] == "xx" and answer[:1] == allowed[0])


# A request that its own cost ends, alone, is a fair answer wherever 400 is one: it took too long (504), the
# bodies of others or a busy machine left it no room (503), or grammars that run take all of their memory (429).
ENDED = ["429", "503", "504"]


def attacks() -> list[Attack]:
    """All that go to a running server."""
    made = [Attack(row["id"], row["attacks"], row["allow"], row) for row in load("connections.jsonl") + load("requests.jsonl")]
    fields = {"regex": "regex", "ebnf": "ebnf", "lark": "guided_grammar", "schema": "guided_json", "choice": "guided_choice"}
    for row in load("grammars.jsonl"):
        text = row["text"] if "text" in row else text_of(row["parts"])
        value = [text] if row["kind"] == "choice" else text
        body = {"prompt": "Hello", "max_tokens": 24, fields[row["kind"]]: value}
        allow = ["400"] if row["expect"] == "refused" else ["2xx", "400"]
        made.append(Attack(f"{row['kind']}: {row['name']}", "a grammar", allow, {"path": "/v1/completions", "json": body}))
    for attack in made:
        if "400" in attack.allow:
            attack.allow = attack.allow + ENDED
    assert len({attack.id for attack in made}) == len(made)
    return made


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def _reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def _read_all(client: socket.socket) -> bytes:
    """Until the server closes; keeps the beginning of what may be hundreds of megabytes."""
    answer = b""
    try:
        while piece := client.recv(1 << 18):
            answer += piece if len(answer) < (1 << 20) else b""
    except ConnectionError:
        pass
    return answer


def _statuses(answer: bytes) -> list[str]:
    """Of each answer but 100 Continue: an answer's body is JSON or text, in which no such line stands."""
    return [status.decode() for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer) if status != b"100"]


# ---- Requests ----


def _bodies(row: dict[str, Any]) -> Iterator[bytes]:
    if "body" in row:
        yield to_bytes(text_of(row["body"]))
    elif "values" in row:
        name, values = row["values"]
        for value in values:
            yield json.dumps({**row["json"], name: value}).encode()
    elif "vary" in row:
        name, first, count = row["vary"]
        for number in range(first, first + count):
            yield json.dumps(row["json"]).replace('"%d"', str(number)).encode()
    else:
        yield json.dumps(expand(row["json"])).encode()


def _post(port: int, path: str, body: bytes, leave: float | None) -> str:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    with _connect(port) as client:
        try:
            client.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        except ConnectionError:
            pass  # refused while it was sent; the answer may be there
        if leave is not None:
            time.sleep(leave)
            _reset(client)
            return "left"
        return (_statuses(_read_all(client)) or ["closed"])[0]


def _requests(port: int, row: dict[str, Any]) -> Iterator[str]:
    for body in _bodies(row):
        with ThreadPoolExecutor(row.get("times", 1)) as pool:
            tasks = [pool.submit(_post, port, row["path"], body, row.get("leave")) for _ in range(row.get("times", 1))]
            yield from [task.result() for task in tasks]


# ---- Raw connections ----


def _send(client: socket.socket, steps: list[Any]) -> None:
    parts: list[Any] = []
    for step in [*steps, {"pause": 0}]:
        if not isinstance(step, dict):
            parts.append(step)
            continue
        try:
            client.sendall(text_of(parts).encode("latin-1"))
        except (ConnectionError, TimeoutError):
            return
        parts = []
        time.sleep(step["pause"])


def _one_connection(port: int, row: dict[str, Any]) -> str:
    with _connect(port) as client:
        _send(client, row["send"])
        end = row.get("end")
        if end == "leave":
            client.settimeout(2)
            try:
                first = client.recv(4096)
            except (TimeoutError, ConnectionError):
                first = b""
            _reset(client)
            return (_statuses(first) or ["any"])[0]
        try:
            client.shutdown(socket.SHUT_WR)  # else a kept connection keeps this client until its idle time is over
        except OSError:
            pass
        statuses = _statuses(_read_all(client))
    if len(statuses) > row.get("most_answers", 1 << 30):
        return f"{len(statuses)} answers"
    return (statuses or ["closed"])[0]


def _crowd(port: int, row: dict[str, Any]) -> str:
    """Many connections at once. Those that the server refuses are part of the attack."""
    clients = []
    pending = None
    for _ in range(row["connections"]):
        try:
            client = socket.create_connection(("127.0.0.1", port), timeout=2)
        except OSError:
            continue
        client.settimeout(0.2)  # a body whose room is taken is not read
        clients.append(client)
    for step in row["send"] + [{"pause": 0}]:
        if not isinstance(step, dict):
            pending = [*(pending or []), step]
            continue
        data = text_of(pending or []).encode("latin-1")
        pending = None
        for client in clients:
            try:
                client.sendall(data)
            except OSError:
                pass
        time.sleep(step["pause"])
    if row["end"] == "wait":
        time.sleep(1)
    for client in clients:
        _reset(client)
    return "any"


def _connections(port: int, row: dict[str, Any]) -> Iterator[str]:
    yield _crowd(port, row) if row.get("connections", 1) > 1 else _one_connection(port, row)


# ---- Model folders ----


def _safetensors(recipe: dict[str, Any]) -> bytes:
    header = recipe["header"]
    text = to_bytes(text_of(header["text"])) if "text" in header else json.dumps(expand(header["json"])).encode()
    return struct.pack("<Q", recipe.get("length", len(text))) + text + bytes(recipe.get("data", 0))


def _make_file(path: Path, original: Path, recipe: dict[str, Any]) -> None:
    if "set" in recipe:
        path.write_text(json.dumps(json.loads(original.read_text()) | expand(recipe["set"])))
    elif "json" in recipe:
        path.write_text(json.dumps(expand(recipe["json"])))
    elif "text" in recipe:
        path.write_bytes(to_bytes(text_of(recipe["text"])))
    elif "cut" in recipe:
        path.write_bytes(original.read_bytes()[: recipe["cut"]])
    elif "fill" in recipe:  # the header stays
        whole = original.read_bytes()
        begin = 8 + struct.unpack("<Q", whole[:8])[0]
        path.write_bytes(whole[:begin] + recipe["fill"].encode("latin-1") * (len(whole) - begin))
    elif "safetensors" in recipe:
        path.write_bytes(_safetensors(recipe["safetensors"]))
    elif "sparse" in recipe:
        path.touch()
        os.truncate(path, recipe["sparse"])
    elif "link" in recipe:
        path.symlink_to(recipe["link"])
    elif "fifo" in recipe:
        os.mkfifo(path)
    elif "folder" in recipe:
        path.mkdir()
    else:
        assert "remove" in recipe


def make_folder(folder: Path, model: Path, files: dict[str, dict[str, Any]]) -> Path:
    """`model` with some files made by their recipes, and links to the others."""
    folder.mkdir(parents=True)
    for original in model.iterdir():
        if original.name not in files:
            (folder / original.name).symlink_to(original.resolve())
    for name, recipe in files.items():
        _make_file(folder / name, model / name, recipe)
    return folder
