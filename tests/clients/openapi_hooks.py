"""For schemathesis: most generated requests fall at the first hurdle, an unknown model. This leads them further on."""

from typing import Any

import schemathesis

from support import MODEL

CONSTRAINTS = [
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "json_schema",
    "regex",
    "ebnf",
    "grammar",
]
LONGEST = 16  # tokens of an answer: what does not fit into the context is refused
SOONEST = 60  # seconds of "timeout": a shorter one is a 504 on a busy machine, which a check takes for a fault
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    body = case.body
    if not isinstance(body, dict):
        return
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    # One of several constraints, and a choice of tools with tools: as a client would send them.
    for name in [name for name in CONSTRAINTS if body.get(name) is not None][1:]:
        del body[name]
    if body.get("tool_choice") == "required" and not body.get("tools"):
        body["tools"] = [{"type": "function", **TOOL["function"]} if "input" in body else TOOL]
    for name, value in (("prompt", "The dog"), ("input", "The dog"), ("max_tokens", 1)):
        if body.get(name) in ("", 0):
            body[name] = value
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if type(body.get(name)) is int and body[name] > LONGEST:
            body[name] = LONGEST
    timeout = body.get("timeout")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout < SOONEST:
        body["timeout"] = SOONEST
