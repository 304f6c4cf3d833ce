"""Claude Code, as npm ships it, edits a file through /v1/messages."""

import json
from collections.abc import Callable

import pytest

from harness import CPU, ENDING, MODEL, Workspace, edit_turns, node_program
from proxy import Exchange, ScriptedProxy
from test_tools import call

PROGRAM = node_program(f"@anthropic-ai/claude-code-linux-{CPU}", "claude")
pytestmark = pytest.mark.skipif(not CPU, reason="npm has no Claude Code for this machine")


def run(workspace: Workspace, proxy: ScriptedProxy, *options: str) -> dict[str, object]:
    ended = workspace.run(
        [
            PROGRAM,
            "-p",
            "Correct the greeting.",
            "--output-format",
            "json",
            "--permission-mode",
            "acceptEdits",
            *options,
        ],
        {
            "ANTHROPIC_BASE_URL": proxy.url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    )
    assert ended.returncode == 0, ended.stdout
    return json.loads(next(line for line in ended.stdout.splitlines() if line.startswith("{")))


def test_edits_a_file(workspace: Workspace, scripted: Callable[..., ScriptedProxy]) -> None:
    path = str(workspace.file)
    edit = {"file_path": path, "old_string": "helo", "new_string": "hello"}
    proxy = scripted(edit_turns(call("Read", json.dumps({"file_path": path})), call("Edit", json.dumps(edit))))
    result = run(workspace, proxy)
    assert workspace.file.read_text() == Workspace.AFTER
    assert not proxy.failures()
    assert result["result"] == ENDING and not result["is_error"]
    assert len(proxy.turns) == 3
    roles = [message["role"] for message in proxy.turns[0].body["messages"]]
    assert "system" in roles[1:], "instructions behind the user's, which the template does not take there"


def test_loads_tools_and_thinks(workspace: Workspace, scripted: Callable[..., ScriptedProxy]) -> None:
    """Its search brings a deferred tool in, which asks for a hosted one in a request of its own."""
    proxy = scripted(
        [
            "<think>\nI must look it up.\n</think>\n\n" + call("ToolSearch", '{"query": "select:WebSearch"}'),
            call("WebSearch", '{"query": "how to greet"}'),
            "Nothing was found.",
            "I give up.",
        ]
    )
    result = run(workspace, proxy, "--allowedTools", "WebSearch")
    assert not proxy.failures()
    assert result["result"] == "I give up."
    first, second, search, last = proxy.turns
    assert "WebSearch" not in names(first) and "WebSearch" in names(second)
    thought, found = second.body["messages"][-2]["content"][0], second.body["messages"][-1]["content"][0]
    assert (thought["type"], thought["thinking"]) == ("thinking", "") and thought["signature"]
    assert found["content"] == [{"type": "tool_reference", "tool_name": "WebSearch"}]
    assert search.answer_headers["x-volley-ignored-tools"] == "web_search_20250305"


def names(exchange: Exchange) -> list[str]:
    return [tool["name"] for tool in exchange.body["tools"]]
