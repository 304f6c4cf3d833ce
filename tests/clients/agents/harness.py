"""What each test of a coding agent needs: a model with room for an agent's prompt, a project to work on, and the agent's
program, run where it finds no settings of anybody's and no network but the loopback."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support import ROOT

FOLDER = ROOT / "build/clients/agents"
MODEL = "toy-coder"  # the served name
ENDING = "The greeting is right now."

# The prompts of coding agents have tens of thousands of tokens, of which the pocket model's vocabulary makes many more.
# What the model says is scripted, so one layer of random weights, which sees a few hundred tokens, will do.
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 400000,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "use_sliding_window": True,
    "sliding_window": 256,
    "max_window_layers": 0,
    "layer_types": ["sliding_attention"],
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}

# Tools and calls in the Hermes form, thoughts in <think>, and a system message at the start alone: what most models that
# people serve to agents have.
TEMPLATE = """{%- set first = messages[0] if messages[0].role == 'system' else none %}
{{- '<|im_start|>system\\n' + (first.content if first else 'You help.') }}
{%- if tools %}
    {{- '\\n\\nTools, each with its schema:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\nA call: <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in (messages[1:] if first else messages) %}
    {%- if message.role == 'system' %}{{- raise_exception('a system message must be the first') }}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
    {{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""


def write_model(folder: Path) -> Path:
    pocket = ROOT / "models/pocket"
    settings = json.loads((pocket / "tokenizer_config.json").read_text())
    del settings["chat_template"], settings["model_max_length"]
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer.json").write_bytes((pocket / "tokenizer.json").read_bytes())
    return folder


def serve_options(model: Path) -> str:
    return f"--model {model} --served-model-name {MODEL} --dummy-weights 1 --max-num-seqs 4"


def edit_turns(read: str, edit: str) -> list[str]:
    """What a model says that looks at the file and corrects it by these calls."""
    return ["I read it first.\n" + read, edit, ENDING]


@dataclass
class Workspace:
    """A project with one file, and a home without settings."""

    project: Path
    home: Path

    FILE = "hello.py"
    BEFORE = 'print("helo, world")\n'
    AFTER = 'print("hello, world")\n'

    @classmethod
    def make(cls, folder: Path) -> Workspace:
        workspace = cls(folder / "project", folder / "home")
        workspace.project.mkdir()
        workspace.home.mkdir()
        workspace.file.write_text(cls.BEFORE)
        return workspace

    @property
    def file(self) -> Path:
        return self.project / self.FILE

    def run(
        self, command: list[str | Path], environment: dict[str, str], timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        """Of this process's environment it sees the PATH alone."""
        return subprocess.run(
            command,
            cwd=self.project,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )


CPU = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), "")  # as npm calls it


def node_program(package: str, program: str) -> Path:
    """A program that an npm package ships; its launcher in another package may want a newer Node.js than is here."""
    return FOLDER / "node_modules" / package / program
