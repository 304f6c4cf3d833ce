#!/usr/bin/env python3
"""The picture of speed in README.md, from the table of docs/benchmarks.md whose header is HEADER.

    scripts/plot_speed.py

Writes docs/images/speed.svg: a panel for each number of requests, with bars of vLLM and Volley, plain and with DFlash.
Colours follow the reader's light or dark theme. Needs nothing but Python.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "| requests | plain, vLLM | plain, Volley | DFlash, vLLM | DFlash, Volley |"

NOTE = "Each panel has its own scale; below the bars, Volley over vLLM. Drafters: vLLM's in bf16, Volley's in FP8."

WIDTH, PANEL, LEFT = 880, 215, 10  # px: the picture, the distance of two panels, the left edge of the first
BASE, TALLEST = 262, 170  # px: y of the bars' feet, height of a panel's largest bar
BAR, GAP, PAIRS = 42, 4, 98  # px: width of a bar, between the bars of a pair, between the left edges of two pairs

STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
    .title { font-size: 15px; font-weight: 600; }
    .note { font-size: 12px; fill: #59636e; }
    .middle { text-anchor: middle; }
    .value { font-size: 12px; text-anchor: middle; }
    .ratio { font-weight: 600; text-anchor: middle; }
    .vllm { fill: #afb8c1; }
    .volley { fill: #0969da; }
    line { stroke: #8c959f; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .note { fill: #9198a1; }
      .vllm { fill: #656c76; }
      .volley { fill: #4493f8; }
      line { stroke: #656c76; }
    }
"""


def read_table(markdown: str) -> list[list[int]]:
    """The rows below HEADER, as whole numbers."""
    lines = markdown.splitlines()
    if HEADER not in lines:
        raise SystemExit(f"docs/benchmarks.md has no table with the header {HEADER}")
    rows = []
    for line in lines[lines.index(HEADER) + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([int(cell.replace(",", "")) for cell in line.strip("|").split("|")])
    return rows


def text(x: float, y: float, content: str, style: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"' + (f' class="{style}"' if style else "") + f">{content}</text>"


def bar(x: float, value: int, largest: int, engine: str) -> list[str]:
    height = TALLEST * value / largest
    return [
        f'<rect class="{engine}" x="{x:g}" y="{BASE - height:.1f}" width="{BAR}" height="{height:.1f}" rx="2"/>',
        text(x + BAR / 2, round(BASE - height - 6, 1), f"{value:,}", "value"),
    ]


def panel(left: float, row: list[int]) -> list[str]:
    requests, *speeds = row
    title = f"{requests} request{'s' if requests > 1 else ''}"
    parts = [text(left + (PAIRS + 2 * BAR + GAP) / 2, 64, title, "middle title")]
    for pair, mode in enumerate(("plain", "DFlash")):
        vllm, volley = speeds[2 * pair : 2 * pair + 2]
        x = left + pair * PAIRS
        parts += bar(x, vllm, max(speeds), "vllm") + bar(x + BAR + GAP, volley, max(speeds), "volley")
        parts.append(text(x + BAR + GAP / 2, BASE + 18, mode, "middle"))
        parts.append(text(x + BAR + GAP / 2, BASE + 35, f"{volley / vllm:.2f} ×", "ratio"))
    parts.append(f'<line x1="{left - 4:g}" y1="{BASE}" x2="{left + PAIRS + 2 * BAR + GAP + 4:g}" y2="{BASE}"/>')
    return parts


def picture(rows: list[list[int]]) -> str:
    parts = [
        text(LEFT, 24, "Tokens a second: one H200, Qwen3-8B shapes", "title"),
        '<rect class="vllm" x="660" y="13" width="12" height="12" rx="2"/>',
        text(678, 24, "vLLM 0.26"),
        '<rect class="volley" x="770" y="13" width="12" height="12" rx="2"/>',
        text(788, 24, "Volley"),
        text(LEFT, 318, NOTE, "note"),
    ]
    for i, row in enumerate(rows):
        parts += panel(LEFT + 8 + i * PANEL, row)
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 328" width="{WIDTH}" height="328" role="img">\n'
        f"  <title>Tokens a second of vLLM and Volley</title>\n  <style>{STYLE}  </style>\n  {body}\n</svg>\n"
    )


def main() -> None:
    path = ROOT / "docs/images/speed.svg"
    path.write_text(picture(read_table((ROOT / "docs/benchmarks.md").read_text())))
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
