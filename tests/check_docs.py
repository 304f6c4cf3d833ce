#!/usr/bin/env python3
"""Checks the Markdown files: every relative link and anchor leads somewhere, every option exists.

    tests/check_docs.py [PROGRAM]

PROGRAM is volley, whose --help lists its options; without it options are not checked. Options of other programs are
looked for in their sources, or stand in FOREIGN. Exits with 1 and a line for each mistake. Needs nothing but Python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Options of programs that are not of this repository.
FOREIGN = {
    "ctest, cmake, gtest": {"--preset", "--install", "--prefix", "--gtest_filter"},
    "docker": {"--rm", "--time", "--env-file", "--build-arg", "--gpus", "--read-only", "--cap-drop", "--tmpfs"},
    "rsync, systemctl, mypy": {"--inplace", "--now", "--strict"},
    "node": {"--test"},
    "aider, claude": {"--no-show-model-warnings", "--permission-mode"},
    "mpirun, srun": {"--bind-to", "--cpus-per-task", "--map-by", "--ntasks-per-node"},
    "kubectl": {"--from-file"},
    "torchrun": {"--nproc-per-node"},
    "sglang-router": {
        "--cache-threshold",
        "--health-check-interval-secs",
        "--health-failure-threshold",
        "--policy",
        "--worker-urls",
    },
    # docs/migration.md: options of vLLM and SGLang that Volley does not take
    "vLLM, SGLang": {
        "--allowed-origins",
        "--cpu-offload-gb",
        "--enable-lora",
        "--load-format",
        "--max-prefill-tokens",
        "--speculative-algorithm",
        "--speculative-config",
        "--speculative-num-draft-tokens",
        "--swap-space",
    },
}
SOURCES = ("apps/cli/option_aliases.cc", "bench", "suite/volley_suite", "train", "scripts", "tests/format_quality.py",
           "tests/make", "tests/soak", "tests/hostile")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*[a-z0-9]")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    found = []
    for folder, below, files in os.walk(ROOT):
        below[:] = [name for name in below if name not in {"build", "node_modules", "target"} and name[0] != "."]
        found += [Path(folder, name) for name in files if name.endswith(".md")]
    return sorted(found)


def without_blocks(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """Without code, whose brackets are no links."""
    text = without_blocks(text)
    text = re.sub(r"(?<=\n\n)(?: {4}.*\n)+", "", text)
    return re.sub(r"`[^`\n]*`(?!\])", "", text)


@cache
def anchors(page: Path) -> set[str]:
    """Those that GitHub makes of the headings."""
    made: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", without_blocks(page.read_text()), flags=re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", LINK.sub(r"\1", heading).lower())
        name, repeated = plain.replace(" ", "-"), 0
        while (name if not repeated else f"{name}-{repeated}") in made:
            repeated += 1
        made.add(name if not repeated else f"{name}-{repeated}")
    return made


def broken_links(page: Path) -> list[str]:
    wrong = []
    for link in LINK.findall(prose(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            wrong.append(f"{link}: no such file")
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
            wrong.append(f"{link}: no such heading")
    return wrong


def options_of(program: str) -> set[str]:
    def asked(*words: str) -> str:
        return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout

    root = asked("--help")
    commands = re.findall(r"^  ([a-z]+) {2,}\S", root.partition("Subcommands:")[2], flags=re.MULTILINE)
    text = root + "".join(asked(command, "--help-all") for command in commands)
    for source in SOURCES:
        path = ROOT / source
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in {".cc", ".cu", ".h", ".py", ".sh"} and file != Path(__file__).resolve():
                text += file.read_text()
    return set(OPTION.findall(text)).union(*FOREIGN.values())


def main() -> int:
    known = options_of(sys.argv[1]) if len(sys.argv) > 1 else None
    checked, mistakes = 0, []
    for page in pages():
        wrong = broken_links(page)
        if known is not None:
            wrong += [f"{option}: no such option" for option in sorted(set(OPTION.findall(page.read_text())) - known)]
        mistakes += [f"{page.relative_to(ROOT)}: {mistake}" for mistake in wrong]
        checked += 1
    print("\n".join(mistakes + [f"{checked} pages, {len(mistakes)} mistakes"]))
    return 1 if mistakes or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
