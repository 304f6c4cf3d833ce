"""Volley under Ray Serve: replicas of `volley serve`, as many as the load asks for, behind one address.

    serve run volley.serve_ray:build_app options="--model Qwen/Qwen3-8B --draft auto" num_gpus=1 max_replicas=4

Each replica is the server with its whole API in a process of its own; what Ray hands the replica is passed on, and the
answer comes back byte by byte. Needs the extra `volley[ray]`.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import aiohttp
from ray import serve
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

# What belongs to one connection (RFC 9110, 7.6.1), or is the connection's to say anew.
_OF_ONE_CONNECTION = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"),
    *("upgrade", "host", "content-length", "expect"),
}
_DEATH_SIGNAL = 1  # of prctl()


@dataclass(frozen=True)
class Settings:
    """What build_app() takes; from a command line every value is a text."""

    options: str = ""  # of `volley serve`, in a shell's words; --host and --port are set here
    name: str = "volley"  # of the deployment
    min_replicas: int = 1
    max_replicas: int = 1
    target_ongoing_requests: float = 8.0  # requests a replica should have, waiting ones included; more adds a replica
    max_ongoing_requests: int = 256  # that a replica is given; further ones wait at Ray's proxies
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 300.0
    metrics_interval_s: float = 2.0
    look_back_period_s: float = 10.0
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    drain_timeout_s: float = 30.0  # for running requests when a replica goes

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Settings:
        kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)}
        unknown = sorted(set(arguments) - set(kinds))
        if unknown:
            raise ValueError(f"there is no setting {unknown[0]!r}; these are: {', '.join(kinds)}")
        return cls(**{name: kinds[name](value) for name, value in arguments.items()})


def build_app(arguments: Mapping[str, Any]) -> Application:
    """The application for serve.run() and `serve run`: `arguments` are fields of Settings."""
    settings = Settings.of(arguments)
    deployment = serve.deployment(
        name=settings.name,
        max_ongoing_requests=settings.max_ongoing_requests,
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus},
        graceful_shutdown_timeout_s=settings.drain_timeout_s + 5,
        health_check_period_s=5,
        autoscaling_config={
            "min_replicas": settings.min_replicas,
            "max_replicas": settings.max_replicas,
            "target_ongoing_requests": settings.target_ongoing_requests,
            "upscale_delay_s": settings.upscale_delay_s,
            "downscale_delay_s": settings.downscale_delay_s,
            "metrics_interval_s": settings.metrics_interval_s,
            "look_back_period_s": settings.look_back_period_s,
        },
    )(VolleyServer)
    return deployment.bind(settings.options, settings.drain_timeout_s)


class VolleyServer:
    """One replica: a `volley serve` on a port of the loopback interface, and the way to it."""

    def __init__(self, options: str = "", drain_timeout_s: float = 30) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._server = subprocess.Popen(
            [
                *(_program(), "serve", *shlex.split(options)),
                *("--host", "127.0.0.1", "--port", "0", "--drain-timeout", str(max(1, round(drain_timeout_s)))),
            ],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=_end_with_parent,
        )
        assert self._server.stdout is not None
        line = self._server.stdout.readline()  # comes when the models are loaded
        found = re.search(r"https?://\S+", line)
        if not found:
            # Without the options, which may hold a key.
            raise RuntimeError(f"`volley serve` ended with {self._server.wait()}; the replica's log says why")
        self._url = found.group()

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        headers = {name: value for name, value in request.headers.items() if name not in _OF_ONE_CONNECTION}
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            answer = await self._client().request(
                request.method, self._url + target, data=body or None, headers=headers, allow_redirects=False
            )
        except aiohttp.ClientError as error:
            message = f"The replica's server does not answer ({error}). Send the request again."
            details = {"message": message, "type": "server_error", "param": None, "code": "replica_unavailable"}
            return JSONResponse({"error": details}, status_code=503)
        passed_on = {name: value for name, value in answer.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        return StreamingResponse(_pieces(answer), status_code=answer.status, headers=passed_on)

    async def check_health(self) -> None:
        """Ray replaces the replica when this raises."""
        if self._server.poll() is not None:
            raise RuntimeError(f"the server ended with {self._server.returncode}")
        async with self._client().get(self._url + "/health") as answer:
            answer.raise_for_status()

    def __del__(self) -> None:
        """Running requests end first: Ray has stopped sending any."""
        server = getattr(self, "_server", None)
        if server is None or server.poll() is not None:
            return
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(self._drain_timeout_s + 3)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def _client(self) -> aiohttp.ClientSession:
        """Made by the loop that uses it. No limit of time or connections: both are the server's to set."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None),
                connector=aiohttp.TCPConnector(limit=0),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        return self._session


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it comes. Whoever stops reading closes the connection, which cancels the request."""
    try:
        async for piece in answer.content.iter_any():
            yield piece
    finally:
        if not answer.content.at_eof():
            answer.close()
        answer.release()


def _program() -> str:
    """VOLLEY_PROGRAM, else the one that the wheel holds."""
    return os.environ.get("VOLLEY_PROGRAM") or str(Path(__file__).parent / "bin" / "volley")


def _end_with_parent() -> None:
    """A replica that is killed takes its server along (Linux)."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)
