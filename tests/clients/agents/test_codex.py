"""Codex CLI, as npm ships it, edits a file through /v1/responses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import CPU, ENDING, MODEL, Workspace, node_program
from proxy import ScriptedProxy
from test_tools import call

MACHINE = {"x64": "x86_64", "arm64": "aarch64"}.get(CPU, "")
PROGRAM = node_program(f"@openai/codex-linux-{CPU}", f"vendor/{MACHINE}-unknown-linux-musl/bin/codex")
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="npm has no Codex for this machine")

PATCH = f"""*** Begin Patch
*** Update File: {Workspace.FILE}
@@
-{Workspace.BEFORE.strip()}
+{Workspace.AFTER.strip()}
*** End Patch
"""

# What makes Codex send its tool for patches, and search for tools of MCP servers instead of sending them all.
CATALOG = {
    "slug": MODEL,
    "display_name": MODEL,
    "description": "",
    "default_reasoning_level": None,
    "supported_reasoning_levels": [],
    "shell_type": "unified_exec",
    "visibility": "list",
    "supported_in_api": True,
    "priority": 1,
    "base_instructions": "You edit files.",
    "apply_patch_tool_type": "freeform",
    "supports_search_tool": True,
    "support_verbosity": False,
    "default_reasoning_summary": "auto",
    "truncation_policy": {"mode": "tokens", "limit": 10000},
    "supports_parallel_tool_calls": True,
    "context_window": 200000,
    "experimental_supported_tools": [],
    "input_modalities": ["text"],
    "supports_reasoning_summaries": True,
    "upgrade": None,
    "availability_nux": None,
}

MCP_SERVER = """import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {
            "protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "box", "version": "1"},
        }
    elif asked["method"] == "tools/list":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        result = {"tools": [{"name": "shout", "description": "Shouts a text.", "inputSchema": schema}]}
    else:
        result = {"content": [{"type": "text", "text": asked["params"]["arguments"]["text"].upper()}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def run(workspace: Workspace, proxy: ScriptedProxy, settings: str = "", tables: str = "") -> None:
    home = workspace.home / "codex"
    home.mkdir()
    provider = f'name = "Volley"\nbase_url = "{proxy.url}/v1"\nwire_api = "responses"\n'
    (home / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "volley"\n{settings}\n[model_providers.volley]\n{provider}\n{tables}'
    )
    ended = workspace.run(
        [
            PROGRAM,
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "Correct the greeting.",
        ],
        {"CODEX_HOME": str(home)},
    )
    assert ended.returncode == 0, ended.stdout
    assert not proxy.failures(), ended.stdout
    assert workspace.file.read_text() == Workspace.AFTER, ended.stdout
    assert ENDING in ended.stdout


def items(proxy: ScriptedProxy, kind: str) -> list[dict[str, Any]]:
    """Of this type in the last request."""
    return [item for item in proxy.turns[-1].body["input"] if item["type"] == kind]


def test_edits_a_file(workspace: Workspace, scripted: Callable[..., ScriptedProxy]) -> None:
    proxy = scripted(
        [
            "I read it first.\n" + call("exec_command", json.dumps({"cmd": f"cat {Workspace.FILE}"})),
            call("multi_agent_v1__close_agent", json.dumps({"target": "nobody"})),
            call("exec_command", json.dumps({"cmd": f"sed -i s/helo/hello/ {Workspace.FILE}"})),
            ENDING,
        ]
    )
    run(workspace, proxy)
    assert len(proxy.turns) == 4
    assert all(exchange.answer_headers["x-volley-ignored-tools"] == "web_search" for exchange in proxy.turns)
    calls = [(item["name"], item.get("namespace")) for item in items(proxy, "function_call")]
    assert calls == [("exec_command", None), ("close_agent", "multi_agent_v1"), ("exec_command", None)]
    outputs = [item["output"] for item in items(proxy, "function_call_output")]
    assert "helo" in str(outputs[0]) and "unsupported call" not in str(outputs[1])


def test_patches_a_file_and_finds_tools(
    workspace: Workspace, scripted: Callable[..., ScriptedProxy], tmp_path: Path
) -> None:
    catalog, server = tmp_path / "catalog.json", tmp_path / "server.py"
    catalog.write_text(json.dumps({"models": [CATALOG]}))
    server.write_text(MCP_SERVER)
    proxy = scripted(
        [
            "<think>\nA letter is missing.\n</think>\n\n" + call("apply_patch", json.dumps({"input": PATCH})),
            call("tool_search", json.dumps({"query": "shout a text"})),
            call("mcp__box__shout", json.dumps({"text": "done"})),
            ENDING,
        ]
    )
    tables = f'[mcp_servers.box]\ncommand = "python3"\nargs = ["{server}"]\n'
    run(workspace, proxy, f'model_catalog_json = "{catalog}"', tables)
    assert len(proxy.turns) == 4
    assert any(tool["type"] == "custom" and tool["format"]["syntax"] == "lark" for tool in proxy.turns[0].body["tools"])
    (thought,) = items(proxy, "reasoning")
    assert thought["content"][0]["text"] == "A letter is missing."
    (patch,) = items(proxy, "custom_tool_call")
    assert patch["input"] == PATCH
    (found,) = items(proxy, "tool_search_output")
    assert found["tools"][0]["tools"][0]["name"] == "shout"
    (shout,) = items(proxy, "function_call")
    assert (shout["name"], shout["namespace"]) == ("shout", "mcp__box")
    assert "DONE" in str(items(proxy, "function_call_output")[0]["output"])
