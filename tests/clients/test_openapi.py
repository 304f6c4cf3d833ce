"""Requests generated from openapi.json by schemathesis, valid ones and broken ones: no answer is a 5xx, and each one is
what the document says. The seed is fixed: a failure comes again."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ROOT, Server, serving

# Requests that are drawn at random. The phase before goes through the document systematically: over 2,000 more.
CASES = int(os.environ.get("VOLLEY_API_CASES", "600"))
AT_LEAST = 2000
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
]


@pytest.fixture(scope="module")
def short() -> Iterator[Server]:
    """Answers are short, so that time goes into requests."""
    limits = "--max-model-len 128 --max-num-seqs 16 --max-n 4 --max-choices 8"
    yield from serving(f"{limits} --log-level error", idle=True)


def operations(server: Server) -> int:
    document = server.get_json("/openapi.json")
    methods = {"get", "post", "put", "delete", "patch", "head", "options"}
    return sum(method in methods for path in document["paths"].values() for method in path)


def test_generated_requests(short: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = Path(sys.executable).parent / "schemathesis"
    command = [
        program,
        "run",
        short.url + "/openapi.json",
        "--seed",
        "20",
        "--checks",
        ",".join(CHECKS),
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        str(-(-CASES // operations(short))),
        "--continue-on-failure",
        "--request-timeout",
        "60",
        "--no-color",
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": str(Path(__file__).parent)}
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    kept = ROOT / "build/clients/schemathesis.log"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(result.stdout + result.stderr)
    assert result.returncode == 0, f"see {kept}\n{result.stdout[-6000:]}"
    summary = re.search(r"(\d+) generated, (\d+) passed", result.stdout)
    assert summary and int(summary.group(2)) >= AT_LEAST
    with capsys.disabled():
        print(f"\nopenapi.json: {summary.group()}")
