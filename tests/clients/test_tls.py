"""HTTPS by the server itself: clients of Python's ssl and httpx, certificates of clients, and those who do no handshake."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from support import MODEL, PROGRAM, STORY, Server, serving, user

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Certificates:
    """An authority, a server's certificate of it, a client's, and one of a stranger's authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for authority in ("authority", "stranger"):
            self._create(authority, "-x509", "-addext", "basicConstraints=critical,CA:TRUE")
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self._issue("server", "authority")
        self._issue("client", "authority")
        self._issue("intruder", "stranger")

    def __getitem__(self, name: str) -> Path:
        return self.folder / name

    def _create(self, name: str, *more: str) -> None:
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", self[f"{name}.key"]]
        openssl("req", "-new", *key, "-subj", f"/CN={name}", "-days", "2", "-out", self[f"{name}.pem"], *more)

    def _issue(self, name: str, authority: str) -> None:
        self._create(name)
        self[f"{name}.pem"].rename(self[f"{name}.csr"])
        issuer = ["-CA", self[f"{authority}.pem"], "-CAkey", self[f"{authority}.key"], "-CAcreateserial"]
        openssl(
            "x509", "-req", "-in", self[f"{name}.csr"], *issuer, "-days", "2", "-extfile", self["names"],
            "-out", self[f"{name}.pem"],
        )  # fmt: skip

    def context(self, client: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self["authority.pem"])
        if client:
            context.load_cert_chain(self[f"{client}.pem"], self[f"{client}.key"])
        return context

    def options(self) -> str:
        return f"--ssl-certfile {self['server.pem']} --ssl-keyfile {self['server.key']}"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(certificates: Certificates) -> Iterator[Server]:
    yield from serving(f"{certificates.options()} --receive-timeout 6")


@pytest.fixture(scope="module")
def secure_for_members(certificates: Certificates) -> Iterator[Server]:
    options = f"{certificates.options()} --ssl-ca-certs {certificates['authority.pem']} --ssl-cert-reqs 2"
    yield from serving(options)


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def everything(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def test_openai_whole_and_streamed(secure: Server, certificates: Certificates) -> None:
    assert secure.url.startswith("https://")
    with httpx.Client(verify=certificates.context()) as transport:
        client = OpenAI(base_url=secure.url + "/v1", api_key="none", max_retries=0, http_client=transport)
        whole = client.chat.completions.create(model=MODEL, messages=user(STORY), temperature=0)
        stream = client.chat.completions.create(model=MODEL, messages=user(STORY), temperature=0, stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        assert len(pieces) > 3
        assert "".join(pieces) == whole.choices[0].message.content


def test_a_large_body_arrives(secure: Server, certificates: Certificates) -> None:
    body = {"model": MODEL, "prompt": "word " * 200_000}
    with httpx.Client(verify=certificates.context(), timeout=60) as client:
        answer = client.post(secure.url + "/tokenize", json=body)
        assert answer.status_code in (200, 400), answer.text
        assert client.get(secure.url + "/health").status_code == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions(secure: Server, certificates: Certificates, version: ssl.TLSVersion) -> None:
    context = certificates.context()
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    with context.wrap_socket(connect(secure), server_hostname="localhost") as connection:
        assert connection.selected_alpn_protocol() == "http/1.1"
        connection.sendall(REQUEST)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(secure: Server, certificates: Certificates) -> None:
    context = certificates.context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # else this client would not even try
    with pytest.raises(ssl.SSLError), connect(secure) as plain:
        context.wrap_socket(plain, server_hostname="localhost")


def test_the_end_of_a_connection_is_said(secure: Server, certificates: Certificates) -> None:
    """Without TLS's own end a client could not tell it from a connection that somebody cut."""
    context = certificates.context()
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    with context.wrap_socket(connect(secure), server_hostname="localhost", suppress_ragged_eofs=False) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert everything(connection).startswith(b"HTTP/1.0 200")


def test_stalled_handshakes_end_and_block_nobody(secure: Server, certificates: Certificates) -> None:
    stalled = [connect(secure) for _ in range(20)]
    for number, connection in enumerate(stalled):
        connection.sendall(b"\x16\x03\x01"[: number % 4])  # the beginning of a handshake, or nothing
    began = time.monotonic()
    with httpx.Client(verify=certificates.context()) as client:
        assert client.get(secure.url + "/health").status_code == 200
    assert time.monotonic() - began < 6, "nobody waited for the stalled ones to be closed"
    for connection in stalled:
        assert everything(connection) == b""  # closed, after --receive-timeout
        connection.close()
    assert time.monotonic() - began < 60


def test_past_the_limit_of_connections(certificates: Certificates) -> None:
    with Server(f"{certificates.options()} --max-connections 8") as running:
        held = [connect(running) for _ in range(8)]
        with pytest.raises((ssl.SSLError, OSError)), connect(running) as plain:
            certificates.context().wrap_socket(plain, server_hostname="localhost")
        for connection in held:
            connection.close()
        deadline = time.monotonic() + 20
        while True:
            try:
                with httpx.Client(verify=certificates.context()) as client:
                    assert client.get(running.url + "/health").status_code == 200
                return
            except httpx.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_plain_http_is_told_so(secure: Server) -> None:
    with connect(secure) as connection:
        connection.sendall(REQUEST)
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"https://" in answer


def test_bytes_that_are_no_tls(secure: Server, certificates: Certificates) -> None:
    for noise in (b"\x00" * 600, b"\x16\x03\x01\xff\xff" + b"\x01" * 600, b"\x80\x80\x01" + b"z" * 600):
        with connect(secure) as connection:
            connection.sendall(noise)
            connection.shutdown(socket.SHUT_WR)
            try:
                everything(connection)
            except ConnectionResetError:
                pass
    with httpx.Client(verify=certificates.context()) as client:
        assert client.get(secure.url + "/health").status_code == 200


def test_a_client_must_show_a_certificate(secure_for_members: Server, certificates: Certificates) -> None:
    with httpx.Client(verify=certificates.context("client")) as client:
        assert client.get(secure_for_members.url + "/health").status_code == 200
    for who in (None, "intruder"):
        with httpx.Client(verify=certificates.context(who)) as client, pytest.raises(httpx.TransportError):
            client.get(secure_for_members.url + "/health")


def test_a_client_may_show_a_certificate(certificates: Certificates) -> None:
    options = f"{certificates.options()} --ssl-ca-certs {certificates['authority.pem']} --ssl-cert-reqs optional"
    with Server(options) as running:
        for who in (None, "client"):
            with httpx.Client(verify=certificates.context(who)) as client:
                assert client.get(running.url + "/health").status_code == 200
        with httpx.Client(verify=certificates.context("intruder")) as client, pytest.raises(httpx.TransportError):
            client.get(running.url + "/health")


def test_what_cannot_be_used_ends_the_start_with_a_sentence(certificates: Certificates) -> None:
    locked = certificates["locked.key"]
    openssl("pkcs8", "-topk8", "-in", certificates["server.key"], "-passout", "pass:secret", "-out", locked)
    junk = certificates["junk.pem"]
    junk.write_text("nothing\n")
    certificate = certificates["server.pem"]
    for certfile, keyfile, expected in [
        ("/no/such/file", certificates["server.key"], "/no/such/file"),
        (junk, certificates["server.key"], "holds no certificate"),
        (certificate, junk, "holds no private key"),
        (certificate, locked, "with a password"),
        (certificate, certificates["client.key"], "is not that of the certificate"),
    ]:
        ended = subprocess.run(
            [PROGRAM, "serve", "--port", "0", "--ssl-certfile", certfile, "--ssl-keyfile", keyfile],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert ended.returncode == 2, ended.stderr
        assert expected in ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr
    ended = subprocess.run(
        [PROGRAM, "serve", "--port", "0", "--ssl-certfile", certificate, "--ssl-keyfile", certificates["server.key"],
         "--ssl-ca-certs", junk, "--ssl-cert-reqs", "required"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "holds no certificates" in ended.stderr


def test_certificate_and_key_in_one_file(certificates: Certificates) -> None:
    both = certificates["both.pem"]
    both.write_text(certificates["server.key"].read_text() + certificates["server.pem"].read_text())
    with Server(f"--ssl-certfile {both}") as running, httpx.Client(verify=certificates.context()) as client:
        assert client.get(running.url + "/health").status_code == 200
