from __future__ import annotations

from collections.abc import Iterator

import pytest
from volley import LLM


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", max_num_seqs=8) as model:
        yield model
