"""Text and chat completion with DFlash speculative decoding, in this process.

    from volley import LLM, SamplingParams

    llm = LLM()
    outputs = llm.generate(["Hello!"], SamplingParams(max_tokens=32))
    print(outputs[0].outputs[0].text)
"""

from importlib.metadata import version

from ._engine import EngineInfo, EngineStats
from ._errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
    VolleyError,
)
from ._llm import LLM, Prompt
from ._outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from ._params import SamplingParams, StructuredOutputsParams

__version__ = version("volley")

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineInfo",
    "EngineStats",
    "InternalError",
    "InvalidArgumentError",
    "Logprob",
    "NotFoundError",
    "Prompt",
    "RequestMetrics",
    "RequestOutput",
    "ResourceExhaustedError",
    "SamplingParams",
    "StructuredOutputsParams",
    "UnavailableError",
    "UnimplementedError",
    "VolleyError",
]
