from collections.abc import Iterator

import pytest
from openai import OpenAI

from support import Asker, Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests that need no options of their own. It must end with 0, and with nothing leaked."""
    # On a busy machine the verify budget may find that drafts do not pay.
    yield from serving("--max-num-seqs 16 --verify full", idle=True)


@pytest.fixture
def client(server: Server) -> OpenAI:
    return server.client()


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def ask(client: OpenAI, request: pytest.FixtureRequest) -> Asker:
    """Runs a test twice: with whole answers and with streams."""
    return Asker(client, request.param)
