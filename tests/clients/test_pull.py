"""`volley pull` and names of models that are not there yet, against a hub of our own: what it sends, what it keeps."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support import PROGRAM, ROOT

MODEL, DRAFTER = "Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16"  # a pair that is known; here it is the pocket pair
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.hub.answer(self, self.server.is_store)  # type: ignore[attr-defined]

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Hub:
    """The hub, and the store on another port that it sends clients to for large files."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {
            name: {p.name: p.read_bytes() for p in (ROOT / "models" / folder).iterdir() if p.is_file()}
            for name, folder in ((MODEL, "pocket"), (DRAFTER, "pocket-dflash"))
        }
        self.files[MODEL] |= {"pytorch_model.bin": b"x", "original/model.safetensors": b"x", "README.md": b"x"}
        self.seen: list[tuple[str, str, str | None, str | None]] = []  # method, path, range, authorization
        self.status = 200
        self.cuts: list[int] = []  # after so many bytes of a large file the connection ends
        self.spoilt = self.changed = self.stalls = False
        self.linked_size: int | None = None
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
        for server, is_store in zip(self.servers, (False, True)):
            server.hub, server.is_store = self, is_store  # type: ignore[attr-defined]
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url, self.store = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)

    def answer(self, request: Handler, is_store: bool) -> None:
        path = request.path
        authorization = request.headers["Authorization"]
        self.seen.append((request.command, path, request.headers["Range"], authorization))
        if is_store:
            return self.send_large(request)
        if self.status != 200:
            return request.send(self.status)
        if path.startswith("/api/models/"):
            name = path.removeprefix("/api/models/").removesuffix("/revision/main")
            if name not in self.files:
                return request.send(404)
            siblings = [{"rfilename": file} for file in self.files[name]]
            return request.send(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())
        name, file = path[1:].split(f"/resolve/{COMMIT}/")
        body = self.files[name][file]
        if not file.endswith((".safetensors", ".gguf")):
            return request.send(200, body, ETag=f'W/"{hashlib.sha1(body).hexdigest()}"')
        etag = hashlib.sha256(b"other" if self.changed and request.command == "GET" else body).hexdigest()
        headers = {"X_Linked_Etag": f'"{etag}"', "X_Linked_Size": str(self.linked_size or len(body))}
        request.send(302, b"elsewhere", Location=f"{self.store}/{name}/{file}?signed", **headers)

    def send_large(self, request: Handler) -> None:
        owner, name, file = request.path.split("?")[0][1:].split("/")
        whole = self.files[f"{owner}/{name}"][file]
        if self.spoilt:
            whole = bytes(len(whole))
        begin = int((request.headers["Range"] or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        request.send_response(206 if begin else 200)
        request.send_header("Content-Length", str(len(whole) - begin))
        request.send_header("ETag", '"the-store\'s-own"')
        if begin:
            request.send_header("Content-Range", f"bytes {begin}-{len(whole) - 1}/{len(whole)}")
        request.end_headers()
        cut = self.cuts.pop(0) if self.cuts else len(whole)
        request.wfile.write(whole[begin : begin + cut])
        request.wfile.flush()
        while self.stalls:
            time.sleep(0.01)
        request.close_connection = True

    def ranges(self) -> list[str | None]:
        """Of the requests for large files."""
        return [range_ for method, path, range_, _ in self.seen if path.endswith("?signed") and method == "GET"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.stalls = False
    for server in hub.servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    own = {"HF_ENDPOINT": hub.url + "/", "HF_HOME": str(tmp_path), "HF_TOKEN": TOKEN, "NO_PROXY": "*"}
    return {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | own


def start(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([PROGRAM, *words], env=environment, stdout=pipe, stderr=pipe, text=True)


def volley(environment: dict[str, str], *words: str) -> tuple[int, str, str]:
    process = start(environment, *words)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def refusal(environment: dict[str, str], *words: str, status: int = 3) -> str:
    code, _, err = volley(environment, *words)
    assert code == status, err
    assert err.rstrip().endswith((".", "ORG/NAME")), err
    return err


def folder(environment: dict[str, str], name: str) -> Path:
    return Path(environment["HF_HOME"]) / "hub" / ("models--" + name.replace("/", "--"))


def until(true: Any) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_model_and_drafter_come_into_the_hubs_cache(hub: Hub, environment: dict[str, str]) -> None:
    code, out, err = volley(environment, "pull", MODEL)
    assert code == 0, err
    model = folder(environment, MODEL)
    snapshot = model / "snapshots" / COMMIT
    assert out.splitlines() == [str(snapshot), str(folder(environment, DRAFTER) / "snapshots" / COMMIT)]
    assert (model / "refs/main").read_text() == COMMIT
    wanted = {f for f in hub.files[MODEL] if f.endswith(".json") or f == "model.safetensors"}
    assert {p.name for p in snapshot.iterdir()} == wanted
    for file in wanted:
        link = snapshot / file
        assert os.readlink(link).startswith("../../blobs/") and link.read_bytes() == hub.files[MODEL][file]
    weights = hub.files[MODEL]["model.safetensors"]
    assert (snapshot / "model.safetensors").resolve().name == hashlib.sha256(weights).hexdigest()
    assert not list(model.rglob("*.incomplete"))
    for _, path, _, authorization in hub.seen:
        assert authorization == (None if path.endswith("?signed") else f"Bearer {TOKEN}"), path
    assert TOKEN not in out + err
    hub.seen.clear()
    assert volley(environment, "pull", MODEL)[0] == 0
    assert {method for method, path, *_ in hub.seen if "resolve" in path} == {"HEAD"}, "what is there is kept"
    words = ("--model", MODEL, "--draft", "auto", "--offline", "--prompt", "a", "--max-tokens", "2")
    assert volley(environment, "generate", *words)[0] == 0


def test_a_missing_model_is_pulled_unless_that_is_off(hub: Hub, environment: dict[str, str]) -> None:
    words = ("generate", MODEL, "--prompt", "a", "--max-tokens", "2")
    assert "volley pull " + MODEL in refusal(environment, *words, "--offline")
    assert "volley pull " + MODEL in refusal(environment | {"HF_HUB_OFFLINE": "1"}, *words)
    assert "HF_HUB_OFFLINE" in refusal(environment | {"HF_HUB_OFFLINE": "1"}, "pull", MODEL, status=2)
    assert not hub.seen
    code, _, err = volley(environment, *words, "--draft", "auto")
    assert code == 0 and len(hub.ranges()) == 2, err
    hub.seen.clear()
    assert volley(environment, *words)[0] == 0 and not hub.seen


def test_run_takes_the_known_drafter(hub: Hub, environment: dict[str, str]) -> None:
    words = [PROGRAM, "run", MODEL, "--max-tokens", "2"]
    done = subprocess.run(words, input="Hi", env=environment, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0 and len(hub.ranges()) == 2, done.stderr


def test_a_cut_connection_is_gone_on_with(hub: Hub, environment: dict[str, str]) -> None:
    hub.cuts = [1_000_000, 0, 2_000_000]
    assert volley(environment, "pull", MODEL, "--draft", "none")[0] == 0
    assert hub.ranges() == [None, "bytes=1000000-", "bytes=1000000-", "bytes=3000000-"]


def test_what_ctrl_c_leaves_is_gone_on_with(hub: Hub, environment: dict[str, str]) -> None:
    hub.cuts, hub.stalls = [1_000_000], True
    process = start(environment, "pull", MODEL, "--draft", "none")
    blobs = folder(environment, MODEL) / "blobs"
    until(lambda: any(p.stat().st_size == 1_000_000 for p in blobs.glob("*.incomplete")))
    other = start(environment, "pull", MODEL, "--draft", "none")
    assert other.stderr is not None
    until(lambda: "waiting for it" in other.stderr.readline())
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    hub.stalls = False
    other.communicate(timeout=300)
    assert other.returncode == 0 and hub.ranges() == [None, "bytes=1000000-"]


def test_damage_and_change_are_not_kept(hub: Hub, environment: dict[str, str]) -> None:
    hub.spoilt = True
    assert "SHA-256" in refusal(environment, "pull", MODEL)
    hub.spoilt, hub.changed = False, True
    assert "changed on" in refusal(environment, "pull", MODEL)
    assert not (folder(environment, MODEL) / "refs/main").exists()
    assert not (folder(environment, MODEL) / "snapshots" / COMMIT / "config.json").exists()
    hub.changed = False
    assert volley(environment, "pull", MODEL, "--draft", "none")[0] == 0


@pytest.mark.parametrize("file", ["../../evil.json", "/tmp/evil.json", "a/../../evil.json", "a\\evil.json"])
def test_files_stay_in_their_folder(hub: Hub, environment: dict[str, str], file: str) -> None:
    hub.files[MODEL][file] = b"{}"
    assert "outside its folder" in refusal(environment, "pull", MODEL)
    assert not folder(environment, MODEL).exists()


def test_refusals_say_what_to_do(hub: Hub, environment: dict[str, str]) -> None:
    for status, words in ((401, "accept the model's terms"), (403, "HF_TOKEN"), (404, "check the name"), (500, "500")):
        hub.status = status
        assert words in refusal(environment, "pull", MODEL, status=2 if status in (401, 403) else 3)
    hub.status = 200
    hub.linked_size = 1 << 60
    assert "free some" in refusal(environment, "pull", MODEL)
    assert "there is a network" in refusal(environment | {"HF_ENDPOINT": "http://127.0.0.1:1"}, "pull", MODEL)
    refusal(environment, "pull", status=2)


def test_one_gguf_file_with_its_parts(hub: Hub, environment: dict[str, str]) -> None:
    parts = [f"Q4_K_M/Tiny-Q4_K_M-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.files["a/Tiny-GGUF"] = {f: f.encode() for f in [*parts, "Tiny-BF16.gguf", "mmproj-F16.gguf", "Tiny-F16.gguf"]}
    hub.send_large = lambda r: r.send(200, r.path.split("?")[0].removeprefix("/a/Tiny-GGUF/").encode())  # type: ignore
    snapshot = folder(environment, "a/Tiny-GGUF") / "snapshots" / COMMIT
    for name, files in (
        ("a/Tiny-GGUF:q4_k_m", parts),
        ("a/Tiny-GGUF:F16", ["Tiny-F16.gguf"]),
        ("a/Tiny-GGUF/Tiny-BF16.gguf", ["Tiny-BF16.gguf"]),
    ):
        before = {p for p in snapshot.rglob("*.gguf")}
        code, out, err = volley(environment, "pull", name)
        assert code == 0 and out == f"{snapshot / files[0]}\n", err
        assert {p for p in snapshot.rglob("*.gguf")} - before == {snapshot / file for file in files}
        assert all((snapshot / file).read_bytes() == file.encode() for file in files)
    assert "Tiny-F16.gguf" in refusal(environment, "pull", "a/Tiny-GGUF")
    assert "no such GGUF" in refusal(environment, "pull", "a/Tiny-GGUF:Q8_0")
