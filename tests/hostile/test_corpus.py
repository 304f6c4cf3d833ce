"""The whole corpus against one server in 2 GB of address space: it never ends, each attack gets an answer that it may get,
others' answers stay the same, and all comes back.

Time is the server's own: a busy machine fails no test. How long neighbours wait is measured by neighbours.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import corpus
from server import Server

ADDRESS_SPACE = 2 << 30
# CPU seconds that one attack may cost: those of 9 MB of text, or of 128 choices, take some.
MOST_CPU_S = 30


@pytest.fixture(scope="module")
def jailed() -> Iterator[Server]:
    server = Server(address_space=ADDRESS_SPACE)
    try:
        yield server
    finally:
        server.process.kill()


def test_the_corpus_has_what_it_promises() -> None:
    folders = corpus.load("folders.jsonl")
    assert len(corpus.attacks()) >= 400 and len(folders) >= 150
    assert len({row["id"] for row in folders}) == len(folders)


def test_no_attack_ends_the_server_or_changes_others(jailed: Server) -> None:
    descriptors, answer = jailed.descriptors(), jailed.generate()
    wrong = []
    for attack in corpus.attacks():
        before = sum(jailed.cpu_s().values())
        try:
            attack.run(jailed.port)
        except OSError as error:
            wrong.append(f"{attack.id}: {error!r}")
        assert jailed.alive(), f"{attack.id} ended it: {jailed.process.returncode}\n{jailed.said()}"
        if said := attack.wrong():
            wrong.append(said)
        if (cost := sum(jailed.cpu_s().values()) - before) > MOST_CPU_S:
            wrong.append(f"{attack.id}: {cost:.1f} s of CPU time")
    assert jailed.generate() == answer
    assert jailed.left_over(descriptors) == ""
    print(f"most memory {jailed.memory_mib('VmHWM')} MiB")
    assert jailed.stop() == 0, jailed.said()
    assert wrong == []
