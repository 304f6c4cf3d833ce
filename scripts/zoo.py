#!/usr/bin/env python3
"""Which public drafters load: asks `volley inspect` about every configuration of tests/data/published/drafters.jsonl.

    scripts/zoo.py [--program FILE] [--docs]

Prints a line for each drafter, and last "loads N of M". --docs writes the table of docs/models.md, too.
tests/data/README.md describes the file. Needs nothing but Python.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests/data/published/drafters.jsonl"
DOCS = ROOT / "docs/models.md"
BEGIN, END = "<!-- scripts/zoo.py --docs -->\n", "<!-- end -->\n"


def merged(config, patch):
    if not isinstance(patch, dict):
        return patch
    config = dict(config) if isinstance(config, dict) else {}
    for key, value in patch.items():
        config[key] = merged(config.get(key), value)
    return {key: value for key, value in config.items() if patch.get(key, 0) is not None}


def stored(path):
    """The configuration that a folder or a file of the repository holds."""
    path = ROOT / path
    if path.is_dir():
        return json.loads((path / "config.json").read_text())
    config = json.loads(path.read_text())["config"]
    return stored(config) if isinstance(config, str) else config


def read_rows():
    rows = {}
    for line in DATA.read_text().splitlines():
        row = json.loads(line)
        like, patch = row.get("like"), row.get("config")
        base = (rows[like]["config"] if like in rows else stored(like)) if like else {}
        row["config"] = merged(base, patch) if patch else base
        rows[row["name"]] = row
    return rows


class Program:
    """`volley inspect`, asked about folders of configurations alone."""

    def __init__(self, path):
        self.path = path
        self.held = tempfile.TemporaryDirectory(prefix="volley-zoo-")
        self.folder = Path(self.held.name)
        self.environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(self.folder / "cache")}

    def place(self, row):
        folder = self.folder / row["name"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(row["config"]))
        return str(folder)

    def inspect(self, *arguments):
        """What it found, and otherwise the sentence that it ended with."""
        done = subprocess.run([self.path, "inspect", "--json", *arguments], env=self.environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.stdout:
            return json.loads(done.stdout), None
        error = done.stderr.strip().removeprefix("volley: ").replace(str(self.folder) + "/", "")
        return None, error or f"volley inspect ended with status {done.returncode}."

    def judge(self, drafter, target):
        """What it found of the pair, and why not."""
        if not target["config"]:
            return None, "The configuration of its target has not been seen."
        asked = ["--model", self.place(target), "--draft", self.place(drafter) if drafter["config"] else "none"]
        found, error = self.inspect(*asked)
        if found and not drafter["config"]:
            error = "Its configuration has not been seen."
        error = error or found.get("pair_error")
        return found, error and error.split("; built are:")[0]

    def known(self, target):
        """The drafter that --draft auto takes."""
        error = self.inspect("--model", self.place(target), "--draft", "auto")[1] or ""
        name = re.search(r"volley pull (\S+),", error)
        return name and name[1]


def docs_table(loaded, program, rows):
    lines = ["| target | drafters | blocks | parameters, 10⁹ |", "|---|---|---|---|"]
    for target in dict.fromkeys(row["target"] for row, _ in loaded):
        auto = program.known(rows[target])
        pairs = [pair for pair in loaded if pair[0]["target"] == target]
        pairs.sort(key=lambda pair: pair[0]["name"] != auto)
        if pairs[0][0]["name"] != auto:
            sys.exit(f"--draft auto takes {auto} for {target}, which is none of its drafters that load.")
        columns = [f"`{target}`", ", ".join(f"`{row['name']}`" for row, _ in pairs),
                   ", ".join(str(found["draft"]["block_size"]) for _, found in pairs),
                   f"{pairs[0][1]['target']['parameters'] / 1e9:.1f} + " +
                   ", ".join(f"{found['draft']['parameters'] / 1e9:.2f}" for _, found in pairs)]
        lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build/cpu/bin/volley"))
    parser.add_argument("--docs", action="store_true", help="write the table of docs/models.md")
    options = parser.parse_args()
    rows = read_rows()
    drafters = [row for row in rows.values() if "target" in row]
    program, loaded = Program(options.program), []
    for row in drafters:
        found, error = program.judge(row, rows[row["target"]])
        if not error:
            loaded.append((row, found))
        print(f"{row['name']} → {row['target']}: {error or 'loads'}", flush=True)
    if options.docs:
        before, rest = DOCS.read_text().split(BEGIN)
        count = (f"\n{len(loaded)} of {len(drafters)} public drafters load by their published configuration; "
                 "`scripts/zoo.py` says of each other why not.\n")
        DOCS.write_text(before + BEGIN + docs_table(loaded, program, rows) + count + END + rest.split(END, 1)[1])
    print(f"loads {len(loaded)} of {len(drafters)}")


if __name__ == "__main__":
    main()
