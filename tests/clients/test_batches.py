"""Files and batches through OpenAI's own client, and what a crash, a full disk and another key's client do to them."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from support import MODEL, PROGRAM, SORT, Server, serving, user

SORTED = "35, 49, 50, 79"


def line(custom_id: str, body: dict[str, Any], url: str = "/v1/chat/completions") -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n"


def sort_line(custom_id: str) -> str:
    return line(custom_id, {"model": MODEL, "messages": user(SORT), "temperature": 0})


def count_line(custom_id: str, tokens: int = 24) -> str:
    body = {"prompt": "Count from " + custom_id, "max_tokens": tokens, "ignore_eos": True, "seed": 1}
    return line(custom_id, body, "/v1/completions")


def upload(client: OpenAI, text: str, name: str = "in.jsonl") -> str:
    return client.files.create(file=(name, text.encode()), purpose="batch").id


def create(client: OpenAI, text: str, endpoint: Any = "/v1/chat/completions", window: Any = "24h") -> Any:
    return client.batches.create(input_file_id=upload(client, text), endpoint=endpoint, completion_window=window)


def wait(client: OpenAI, batch_id: str, statuses: tuple[str, ...] = ("completed",), seconds: float = 300) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        batch = client.batches.retrieve(batch_id)
        if batch.status in statuses:
            return batch
        assert batch.status in ("validating", "in_progress", "finalizing", "cancelling"), batch
        time.sleep(0.02)
    raise AssertionError(f"still {batch.status} after {seconds} s")


def results(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


@pytest.fixture(scope="module")
def files_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def batch_server(files_dir: Path) -> Iterator[Server]:
    environment = {"VOLLEY_API_KEYS": "one,two"}
    yield from serving(f"--max-num-seqs 8 --verify full --files-dir {files_dir}", environment)


@pytest.fixture
def one(batch_server: Server) -> OpenAI:
    return batch_server.client(api_key="one")


def test_a_file_comes_back_as_it_went(one: OpenAI) -> None:
    text = "x\r\n--b\r\n" * 100_000 + "no line end"  # more than a piece, nearly boundaries
    file = one.files.create(file=("näme 1.jsonl", text.encode()), purpose="batch")
    assert (file.object, file.bytes, file.filename) == ("file", len(text), "näme 1.jsonl")
    assert (file.purpose, file.status) == ("batch", "processed")
    assert one.files.retrieve(file.id) == file
    assert one.files.content(file.id).read() == text.encode()
    assert one.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        one.files.retrieve(file.id)


def test_files_are_listed_in_pages(one: OpenAI) -> None:
    ids = [upload(one, sort_line(str(i))) for i in range(5)]
    page = one.files.list(limit=2, order="asc", after=ids[0])
    assert [file.id for file in page.data] == ids[1:3] and page.has_more
    assert [file.id for file in one.files.list(limit=2, purpose="batch")][:5] == ids[::-1]  # all pages
    with pytest.raises(openai.BadRequestError, match="limit"):
        one.files.list(limit=0)
    with pytest.raises(openai.BadRequestError, match="after"):
        one.files.list(after="file-none")


def test_a_batch_is_answered(one: OpenAI) -> None:
    text = sort_line("a") + "\n" + line("hot", {"messages": user("x"), "temperature": "hot"}) + sort_line("b")
    text += line("else", {"prompt": "x"}, "/v1/completions") + line("stream", {"messages": user("x"), "stream": True})
    file_id = upload(one, text)
    batch = one.batches.create(
        input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"who": "me"}
    )
    assert batch.object == "batch" and batch.metadata == {"who": "me"}
    batch = wait(one, batch.id)
    assert batch.request_counts.model_dump() == {"total": 5, "completed": 2, "failed": 3}
    assert batch.errors is None and batch.completed_at >= batch.in_progress_at >= batch.created_at
    answers = {each["custom_id"]: each for each in results(one, batch.output_file_id)}
    assert sorted(answers) == ["a", "b"]
    for answer in answers.values():
        assert answer["response"]["body"]["choices"][0]["message"]["content"] == SORTED
    failures = {each["custom_id"]: each for each in results(one, batch.error_file_id)}
    assert failures["hot"]["response"]["status_code"] == 400
    assert failures["hot"]["response"]["body"]["error"]["param"] == "temperature"
    assert failures["else"]["error"]["code"] == "mismatched_url"
    assert failures["stream"]["error"]["code"] == "unsupported_parameter"
    output = one.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output" and output.filename == f"{batch.id}_output.jsonl"
    assert one.batches.list(limit=1).data[0].id == batch.id


def test_lines_may_have_grammars_of_their_own(one: OpenAI) -> None:
    def schema_line(number: int) -> str:
        name = f"n{number}"
        schema = {"properties": {name: {"enum": [number]}}, "required": [name], "additionalProperties": False}
        body = {"prompt": "x", "guided_json": {"type": "object", **schema}, "max_tokens": 60, "seed": number}
        return line(str(number), body, "/v1/completions")

    batch = wait(one, create(one, "".join(map(schema_line, range(40))), "/v1/completions").id)
    assert batch.request_counts.completed == 40
    for result in results(one, batch.output_file_id):
        number = int(result["custom_id"])
        text = result["response"]["body"]["choices"][0]["text"]
        assert json.loads(text) == {f"n{number}": number}


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/responses"])
def test_other_endpoints(one: OpenAI, endpoint: str) -> None:
    body = {"prompt": "x", "max_tokens": 4} if endpoint == "/v1/completions" else {"input": SORT, "temperature": 0}
    batch = wait(one, create(one, line("a", body, endpoint), endpoint).id)
    (answer,) = results(one, batch.output_file_id)
    assert answer["response"]["body"]["object"] == ("text_completion" if "prompt" in body else "response")


def test_a_file_that_is_no_batch_names_its_lines(one: OpenAI) -> None:
    batch = wait(one, create(one, sort_line("a") + "{\n" + sort_line("b") + '{"method": "POST"}\n').id, ("failed",))
    assert [(error.line, error.code) for error in batch.errors.data] == [(2, "invalid_line"), (4, "invalid_line")]
    assert "custom_id" in batch.errors.data[1].message and batch.output_file_id is None
    batch = wait(one, create(one, sort_line("a") + sort_line("b") + sort_line("a")).id, ("failed",))
    assert [(error.line, error.code) for error in batch.errors.data] == [(3, "duplicate_custom_id")]
    batch = wait(one, create(one, "\n").id, ("failed",))
    assert batch.errors.data[0].code == "empty_file"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"extra_body": {"output_expires_after": {"seconds": 1}}}, "output_expires_after"),
    ],
)
def test_wrong_batches_are_refused(one: OpenAI, fields: dict[str, Any], param: str) -> None:
    good = {"input_file_id": upload(one, sort_line("a")), "endpoint": "/v1/completions", "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError) as caught:
        one.batches.create(**{**good, **fields})
    assert caught.value.param == param


def test_wrong_uploads_are_refused(batch_server: Server, one: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose"):
        one.files.create(file=("a", b"x"), purpose="assistants")
    with pytest.raises(openai.BadRequestError) as caught:
        one.files.create(file=("a", b"x"), purpose="batch", extra_body={"expires_after[seconds]": "60"})
    assert caught.value.param == "expires_after[seconds]"
    headers = {"Authorization": "Bearer one"}
    form = {**headers, "Content-Type": "multipart/form-data; boundary=b"}
    for body in (b"", b"--b--\r\n", b"--b\r\n", b"x" * 2_000_000):
        status, _, answer = batch_server.request("POST", "/v1/files", body, form)
        assert status == 400, answer
    assert batch_server.request("POST", "/v1/files", b"{}", headers)[0] == 415
    assert batch_server.request("POST", "/v1/files", b"", {**form, "Origin": "https://evil.example"})[0] == 403
    assert batch_server.request("POST", "/v1/files", b"", {"Content-Type": form["Content-Type"]})[0] == 401


def test_a_key_sees_its_own_alone(batch_server: Server, one: OpenAI) -> None:
    two = batch_server.client(api_key="two")
    file_id = upload(one, sort_line("a"))
    batch = one.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
    assert file_id not in [file.id for file in two.files.list()] and batch.id not in [b.id for b in two.batches.list()]
    for ask in (two.files.retrieve, two.files.content, two.files.delete):
        with pytest.raises(openai.NotFoundError):
            ask(file_id)
    for ask in (two.batches.retrieve, two.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            ask(batch.id)
    with pytest.raises(openai.BadRequestError, match="input_file_id"):
        two.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
    wait(one, batch.id)


def test_delete_in_use_cancel_and_live_requests(one: OpenAI) -> None:
    file_id = upload(one, "".join(count_line(str(i), 400) for i in range(200)))
    batch = one.batches.create(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
    wait(one, batch.id, ("in_progress",))
    with pytest.raises(openai.ConflictError, match=batch.id):
        one.files.delete(file_id)
    answer = one.chat.completions.create(model=MODEL, messages=user(SORT), temperature=0)  # beside it
    assert answer.choices[0].message.content == SORTED
    assert one.batches.retrieve(batch.id).status == "in_progress"
    assert one.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = wait(one, batch.id, ("cancelled",))
    counts = batch.request_counts
    assert counts.completed < counts.total == 200 and counts.failed == 0
    assert len(results(one, batch.output_file_id)) == counts.completed
    with pytest.raises(openai.ConflictError):
        one.batches.cancel(batch.id)
    assert one.files.delete(file_id).deleted


def test_a_batch_expires(one: OpenAI) -> None:
    batch = create(one, "".join(count_line(str(i), 400) for i in range(200)), "/v1/completions", "1s")
    batch = wait(one, batch.id, ("expired",))
    failures = results(one, batch.error_file_id)
    assert len(failures) == batch.request_counts.failed > 0
    assert {failure["error"]["code"] for failure in failures} == {"batch_expired"}
    assert batch.request_counts.completed + batch.request_counts.failed == 200
    assert batch.expired_at and batch.completed_at is None


def test_a_killed_server_goes_on(tmp_path: Path) -> None:
    """SIGKILL at five moments of a batch, and each line has one result."""
    options = f"--max-num-seqs 8 --files-dir {tmp_path / 'files'}"
    lines, batch_id, output = 150, "", tmp_path / "none"
    for kills in range(6):
        with Server(options) as running:
            client = running.client()
            if not batch_id:
                text = "".join(count_line(str(i)) for i in range(lines))
                text += line("bad", {"prompt": 1.5}, "/v1/completions")
                batch_id = create(client, text, "/v1/completions").id
                output = tmp_path / "files/batches" / f"{batch_id}.output.jsonl"
            if kills == 5:
                batch = wait(client, batch_id)
                assert batch.request_counts.model_dump() == {"total": lines + 1, "completed": lines, "failed": 1}
                answers = results(client, batch.output_file_id)
                assert sorted(int(answer["custom_id"]) for answer in answers) == list(range(lines))
                assert all(answer["response"]["body"]["usage"]["completion_tokens"] == 24 for answer in answers)
                assert len(results(client, batch.error_file_id)) == 1
                assert list((tmp_path / "files/batches").iterdir()) == [tmp_path / f"files/batches/{batch_id}.json"]
                assert running.stop() == 0
                return
            grown = output.stat().st_size if output.exists() else 0
            end = time.monotonic() + 60
            while time.monotonic() < end and (not output.exists() or output.stat().st_size <= grown):
                time.sleep(0.002)
            assert output.stat().st_size > grown and client.batches.retrieve(batch_id).status == "in_progress"
            running.process.send_signal(signal.SIGKILL)
            running.process.wait()


def test_a_stopped_server_goes_on(tmp_path: Path) -> None:
    """SIGTERM does not wait for a batch, and leaves no line with the server's own end as its result."""
    options = f"--max-num-seqs 8 --files-dir {tmp_path}"
    with Server(options) as running:
        batch_id = create(running.client(), "".join(count_line(str(i), 300) for i in range(100)), "/v1/completions").id
        wait(running.client(), batch_id, ("in_progress",))
        assert running.stop() == 0
    with Server(options) as running:
        running.client().batches.cancel(batch_id)
        batch = wait(running.client(), batch_id, ("cancelled",))
        assert batch.request_counts.failed == 0 and batch.request_counts.completed < 100


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """Files may have 20,000 bytes in this process: uploads past them fail, and a batch whose results need more."""
    options = f"--port 0 --max-num-seqs 8 --files-dir {tmp_path}"
    limit = ["prlimit", "--fsize=20000", "--"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [*limit, PROGRAM, "serve", *options.split()],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip
    try:
        url = process.stdout.readline().split(" at ")[1].split()[0].rstrip(",;")
        client = OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.InternalServerError, match="disk") as caught:
            upload(client, "x" * 100_000)
        assert caught.value.status_code == 503
        assert client.files.list().data == []
        batch = create(client, "".join(count_line(str(i)) for i in range(120)), "/v1/completions")
        batch = wait(client, batch.id, ("failed",))
        assert batch.errors.data[0].code == "storage_failed" and "disk" in batch.errors.data[0].message
        answers = results(client, batch.output_file_id)  # what there was room for
        assert len(answers) == batch.request_counts.completed > 0
        answer = client.chat.completions.create(model=MODEL, messages=user(SORT), temperature=0)
        assert answer.choices[0].message.content == SORTED
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_bounds(tmp_path: Path) -> None:
    with Server(f"--files-dir {tmp_path} --max-file-bytes 300000 --max-files-bytes 400000 --max-files 2") as running:
        client = running.client()
        with pytest.raises(openai.APIStatusError) as caught:
            upload(client, "x" * 300_001)
        assert caught.value.status_code == 413
        before = running.resident_bytes()
        with pytest.raises(openai.APIStatusError):  # refused by its head, or after a piece
            upload(client, "x" * 50_000_000)
        assert running.resident_bytes() - before < 10_000_000
        upload(client, "x" * 300_000)
        with pytest.raises(openai.BadRequestError, match="max-files-bytes"):
            upload(client, "x" * 200_000)
        upload(client, "x" * 100_000)
        with pytest.raises(openai.BadRequestError, match="max-files"):
            upload(client, "")
        assert running.stop() == 0


def test_without_a_folder_they_are_refused(server: Server, client: OpenAI) -> None:
    for ask in (
        lambda: upload(client, "x"),
        lambda: client.files.list(),
        lambda: client.batches.list(),
        lambda: client.batches.create(input_file_id="x", endpoint="/v1/completions", completion_window="24h"),
    ):
        with pytest.raises(openai.BadRequestError, match="--files-dir"):
            ask()
