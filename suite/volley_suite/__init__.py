"""Measures an OpenAI endpoint on the field's datasets, with and without speculation: accuracy, tokens per step, speed.

The guide is docs/bench-serving.md in the repository.
"""
