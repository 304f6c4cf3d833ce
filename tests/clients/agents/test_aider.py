"""aider, as PyPI carries it, edits a file through /v1/chat/completions."""

import sys
from collections.abc import Callable

import pytest

from harness import FOLDER, MODEL, Workspace
from proxy import ScriptedProxy

PROGRAM = FOLDER / "aider/bin/aider"
pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="aider runs on Python 3.10 to 3.12")

# Both forms in which it asks for changes.
EDITS = {
    "diff": f"{Workspace.FILE}\n```python\n<<<<<<< SEARCH\n{Workspace.BEFORE}=======\n{Workspace.AFTER}>>>>>>> REPLACE\n```",
    "whole": f"{Workspace.FILE}\n```\n{Workspace.AFTER}```",
}


@pytest.mark.parametrize("form", EDITS)
def test_edits_a_file(workspace: Workspace, scripted: Callable[..., ScriptedProxy], form: str) -> None:
    proxy = scripted([f"The greeting lacks a letter.\n\n{EDITS[form]}\n"], is_turn=lambda _: True)
    ended = workspace.run(
        [
            PROGRAM,
            "--model",
            f"openai/{MODEL}",
            "--edit-format",
            form,
            "--message",
            "Correct the greeting.",
            "--yes-always",
            "--no-git",
            "--no-check-update",
            "--no-show-model-warnings",
            "--analytics-disable",
            Workspace.FILE,
        ],
        {"OPENAI_API_BASE": proxy.url + "/v1", "OPENAI_API_KEY": "none"},
    )
    assert ended.returncode == 0, ended.stdout
    assert workspace.file.read_text() == Workspace.AFTER, ended.stdout
    assert not proxy.failures()
    assert len(proxy.turns) == 1
