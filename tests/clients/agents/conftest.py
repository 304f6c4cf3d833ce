from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import Workspace, serve_options, write_model
from proxy import ScriptedProxy
from support import Server, serving


@pytest.fixture(scope="session")
def agent_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from serving(serve_options(write_model(tmp_path_factory.mktemp("model"))))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.make(tmp_path)


@pytest.fixture
def scripted(agent_server: Server) -> Iterator[Callable[..., ScriptedProxy]]:
    """Makes a proxy that has the model say these turns."""
    proxies: list[ScriptedProxy] = []

    def make(turns: list[str], **options: object) -> ScriptedProxy:
        proxies.append(ScriptedProxy(agent_server.url, turns, **options))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()
