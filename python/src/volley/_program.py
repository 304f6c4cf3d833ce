"""The program `volley` that the wheel holds: serve, generate, batch, bench, inspect."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the program, with this process's arguments."""
    program = Path(__file__).parent / "bin" / "volley"
    try:
        os.execv(program, ["volley", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"volley: {program} cannot start: {error.strerror}.")
