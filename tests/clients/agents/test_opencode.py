"""opencode, as npm ships it, edits a file through /v1/chat/completions."""

import json
from collections.abc import Callable

import pytest

from harness import CPU, ENDING, MODEL, Workspace, edit_turns, node_program
from proxy import ScriptedProxy
from test_tools import call

PROGRAM = node_program("opencode-linux-x64-baseline", "bin/opencode")
pytestmark = pytest.mark.skipif(CPU != "x64", reason="its package for this machine is not among those that are pinned")


def test_edits_a_file(workspace: Workspace, scripted: Callable[..., ScriptedProxy]) -> None:
    path = str(workspace.file)
    edit = {"filePath": path, "oldString": "helo", "newString": "hello"}
    proxy = scripted(edit_turns(call("read", json.dumps({"filePath": path})), call("edit", json.dumps(edit))))
    model = {"name": MODEL, "limit": {"context": 200000, "output": 4000}}
    config = {
        "autoupdate": False,
        "model": f"volley/{MODEL}",
        "provider": {
            "volley": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": proxy.url + "/v1", "apiKey": "none"},
                "models": {MODEL: model},
            }
        },
    }
    ended = workspace.run(
        [PROGRAM, "run", "Correct the greeting."],
        {"OPENCODE_CONFIG_CONTENT": json.dumps(config), "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    )
    assert ended.returncode == 0, ended.stdout
    assert workspace.file.read_text() == Workspace.AFTER, ended.stdout
    assert not proxy.failures()
    assert ENDING in ended.stdout
    assert len(proxy.turns) == 3
