"""A proxy between a coding agent and `volley serve`. What the model says is scripted: to each request it adds a grammar
that forces the text of that turn. All else is the agent's own request and the server's own answer."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from test_tools import written

GENERATES = ("/v1/messages", "/v1/chat/completions", "/v1/responses")
HOP_BY_HOP = ("connection", "transfer-encoding", "content-length", "host", "keep-alive")


@dataclass
class Exchange:
    """One request of the agent, as it sent it, and its answer."""

    method: str
    path: str  # with its query
    headers: dict[str, str]  # names in lower case
    body: dict[str, Any]  # empty if it is no JSON object
    status: int = 0
    answer_headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b""
    turn: int | None = None  # the number of the scripted turn that it got

    @property
    def generates(self) -> bool:
        return self.method == "POST" and urlsplit(self.path).path in GENERATES


def has_tools(exchange: Exchange) -> bool:
    return bool(exchange.body.get("tools"))


def has_form(body: dict[str, Any]) -> bool:
    """The agent asks for JSON of a schema of its own, in one of the three APIs."""
    places = [body.get("response_format"), body.get("text"), body.get("output_config")]
    return bool(places[0]) or any(isinstance(place, dict) and place.get("format") for place in places)


class ScriptedProxy:
    """The n-th request for which `is_turn` holds gets the n-th text of `turns`, and those behind the last text get it
    again. Other requests that generate, such as those for a title, get `aside`, unless they ask for a form of their own.
    """

    def __init__(
        self,
        server_url: str,
        turns: list[str],
        is_turn: Callable[[Exchange], bool] = has_tools,
        aside: str = "A title",
    ) -> None:
        self._upstream = urlsplit(server_url)
        self._turns, self._is_turn, self._aside = turns, is_turn, aside
        self._lock = threading.Lock()
        self.exchanges: list[Exchange] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy._pass_on(self)

            do_GET = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @property
    def turns(self) -> list[Exchange]:
        """The requests that got a turn of the script, in their order."""
        return [exchange for exchange in self.exchanges if exchange.turn is not None]

    def failures(self) -> list[tuple[str, int, bytes]]:
        """Requests for an answer that the server refused."""
        return [(e.path, e.status, e.answer) for e in self.exchanges if e.generates and e.status != 200]

    def _pass_on(self, client: BaseHTTPRequestHandler) -> None:
        raw = client.rfile.read(int(client.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in client.headers.items()}
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            body = {}
        exchange = Exchange(client.command, client.path, headers, body if isinstance(body, dict) else {})
        forced = self._forced_text(exchange)
        if forced is not None:
            raw = json.dumps({**exchange.body, **written(forced)}).encode()
        upstream = http.client.HTTPConnection(self._upstream.hostname, self._upstream.port, timeout=300)
        try:
            sent = {name: value for name, value in headers.items() if name not in HOP_BY_HOP}
            upstream.request(client.command, client.path, raw or None, sent)
            self._answer(client, upstream.getresponse(), exchange)
        except OSError:
            client.close_connection = True  # one of the two has left
        finally:
            upstream.close()

    def _forced_text(self, exchange: Exchange) -> str | None:
        with self._lock:
            self.exchanges.append(exchange)
            if not exchange.generates:
                return None
            if self._is_turn(exchange):
                exchange.turn = len(self.turns)
                return self._turns[min(exchange.turn, len(self._turns) - 1)]
        return None if has_form(exchange.body) else self._aside

    def _answer(self, client: BaseHTTPRequestHandler, answer: http.client.HTTPResponse, exchange: Exchange) -> None:
        exchange.status = answer.status
        exchange.answer_headers = {name.lower(): value for name, value in answer.getheaders()}
        client.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                client.send_header(name, value)
        client.send_header("Transfer-Encoding", "chunked")
        client.end_headers()
        while piece := answer.read1(1 << 16):
            exchange.answer += piece
            client.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            client.wfile.flush()
        client.wfile.write(b"0\r\n\r\n")

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
