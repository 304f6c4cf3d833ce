"""Text and chat completion with DFlash speculative decoding, in this process.

    from volley import LLM, SamplingParams

    llm = LLM()
    outputs = llm.generate(["Hello!"], SamplingParams(max_tokens=32))
    print(outputs[0].outputs[0].text)
"""

from importlib.metadata import version

from ._engine import EngineInfo, EngineStats
from ._async import AsyncLLM
from ._errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
    VolleyError,
)
from ._llm import LLM
from ._metrics import Counter, Gauge, Metric, Vector
from ._outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, ToolCall
from ._params import RepetitionDetectionParams, RequestOutputKind, SamplingParams, StructuredOutputsParams
from ._prompts import Prompt
from ._tokenizer import Tokenizer

__version__ = version("volley")

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Counter",
    "EngineInfo",
    "EngineStats",
    "Gauge",
    "InternalError",
    "InvalidArgumentError",
    "Logprob",
    "Metric",
    "NotFoundError",
    "Prompt",
    "RepetitionDetectionParams",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "ResourceExhaustedError",
    "SamplingParams",
    "StructuredOutputsParams",
    "Tokenizer",
    "ToolCall",
    "UnavailableError",
    "UnimplementedError",
    "Vector",
    "VolleyError",
]
