from __future__ import annotations

from collections.abc import Iterator

import pytest
from volley import LLM


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    # Whether it pays to draft is a matter of time on a busy machine.
    with LLM(dtype="float32", max_num_seqs=8, verify="full") as model:
        yield model
