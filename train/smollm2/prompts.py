"""Prompts for the drafter of SmolLM2-135M-Instruct: our own templates, and texts of Python's library, of installed
packages and of Debian's catalogue of programs.

    python3 prompts.py --out FOLDER [--held-out FILE...] [--seed 1]

FOLDER/prompts.jsonl: {"domain", "prompt"}, and lines with "open", which the target itself writes on: the start of a
user's message, its system message, and whether the whole is only a text. FOLDER/held_out.jsonl: prompts of topics, texts
and problems that training never sees. What shares 13 words in a row with a line of a file of --held-out (questions of
test sets) is left out.
"""
from __future__ import annotations

import argparse
import ast
import gzip
import importlib.metadata
import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "pocket"))
import tasks  # noqa: E402

TOPICS = """gardening;the solar system;healthy breakfasts;learning guitar;climate change;the Roman Empire;black holes;yoga;
machine learning;chess;coffee;bicycles;the water cycle;photosynthesis;budgeting;job interviews;public speaking;volcanoes;
sleep;the French Revolution;dogs;cats;honey bees;electric cars;wind power;solar panels;the human heart;vaccines;painting;
photography;poetry;Shakespeare;detective novels;science fiction;film music;jazz;classical music;hiking;camping;swimming;
marathon training;basketball;soccer;tennis;baking bread;Italian cooking;vegetarian meals;tea;chocolate;supermarkets;online
shopping;small businesses;marketing;startups;remote work;time management;stress;meditation;friendship;parenting;teaching
children to read;mathematics;fractions;geometry;probability;statistics;algebra;calculus;prime numbers;logic puzzles;the
Internet;web browsers;databases;operating systems;Python;JavaScript;SQL;version control;unit tests;recursion;sorting
algorithms;encryption;passwords;computer networks;cloud computing;robots;3D printing;smartphones;social media;privacy;
satellites;the Moon landing;Mars;comets;gravity;magnets;electricity;light;sound;atoms;chemical reactions;water;salt;
plastics;recycling;rivers;oceans;coral reefs;whales;penguins;elephants;spiders;birds;dinosaurs;evolution;genetics;cells;
bacteria;the immune system;nutrition;vitamins;exercise;back pain;headaches;first aid;dentists;hospitals;glasses;museums;
libraries;schools;universities;scholarships;essays;letters;emails;presentations;meetings;teamwork;leadership;negotiation;
law;elections;democracy;taxes;insurance;banks;savings;inflation;trade;farming;forests;deserts;mountains;islands;the
weather;storms;earthquakes;maps;travel in Japan;a weekend in Paris;New York;London;Egypt;India;China;Brazil;Kenya;Australia;
airplanes;trains;ships;bridges;skyscrapers;old castles;furniture;house cleaning;moving house;pets;birthday parties;
weddings;holidays;gifts;board games;video games;magic tricks;dancing;theater;opera;sculpture;fashion;shoes;jewelry;hair;
languages;learning Spanish;translation;grammar;idioms;history of writing;printing;newspapers;radio;television;movies;
animation;comics;fairy tales;dragons;pirates;knights;detectives;ghosts;time travel;space stations;aliens;a lonely
lighthouse;an old clock;a lost key;a talking tree;a brave mouse;two sisters;a new school;a long winter;the last train;a
small town;neighbors;volunteering;charity;ethics;happiness;creativity;memory;dreams;habits;motivation;failure;curiosity;
patience;honesty;courage;kindness;humor;silence;colors;numbers;calendars;clocks;money;gold;diamonds;glass;paper;wood;steel;
cotton;silk;soap;perfume;spices;rice;potatoes;tomatoes;apples;bananas;cheese;eggs;soup;salads;pizza;ice cream;picnics;
restaurants;hotels;passports;suitcases;beaches;lakes;fishing;sailing;skiing;ice skating;climbing;running shoes;gyms"""
TOPICS = [t.strip().replace("\n", " ") for t in TOPICS.split(";")]

CHAT = """What is {}?|Tell me about {}.|Can you tell me something interesting about {}?|Why do people like {}?|I'm
interested in {}. Where should I start?|How would you explain {} to a child?|What should everyone know about {}?|Hi! I have
a question about {}. What matters most?|What are the pros and cons of {}?|What are common mistakes with {}?|How has the role
of {} changed over time?|Do you have any advice about {}?|What do experts say about {}?|I don't understand {}. Can you help
me?|What is the history of {}?|How does one learn more about {}?|My friend keeps talking about {}. Why?|What is your opinion on
{}?|Is there anything surprising about {}?|How are {} and {} related?|Which is better for a beginner, {} or {}?|Explain {}
in simple terms.|What would happen without {}?|Why is {} important?""".replace("\n", " ").split("|")
INSTRUCT = """Write a short story about {}.|Write a poem about {}.|Give me five tips about {}.|List ten facts about
{}.|Write an essay of three paragraphs about {}.|Write an email to a colleague about {}.|Write a letter to a friend about
{}.|Create a plan for a week around {}.|Write a dialogue between two people about {}.|Compare {} and {}.|Write a product
description that has to do with {}.|Draft a speech on {}.|Write three quiz questions with answers about {}.|Make a table that
compares {} and {}.|Write a blog post about {}.|Explain {} step by step.|Write a step-by-step guide to {}.|Brainstorm ideas for
a project on {}.|Write a headline and a short news report about {}.|Describe {} in exactly two sentences.|Write a song about
{}.|Give me a list of words that have to do with {}.|Write a recipe inspired by {}.|Rewrite this in a formal tone: hey, I
really love {} and want to know more.|Correct the grammar: me and him likes {} more than they was thinking.|Classify the
following as positive or negative: "I was disappointed by {}, but it got better."|Write a JSON object that describes {}.|Outline
a lesson on {}.|Invent a character who is passionate about {}.|Summarize what is known about {} in a few
sentences.|Translate into French: I would like to talk about {}.""".replace("\n", " ").split("|")
SUMMARY = """Summarize the following text.\n\n{}|Summarize this in one sentence:\n\n{}|{}\n\nGive a short summary of the text
above.|What is the main point of this text?\n\n{}|Write a brief summary of the following passage:\n\n{}|Rewrite the following
in simpler words:\n\n{}|Extract the key points of this text as a list:\n\n{}|TL;DR:\n\n{}|Rewrite this text to make it more
concise:\n\n{}""".replace("\\n", "\n").replace("text\nabove", "text above").replace("following\nin", "following in").replace(
    "more\nconcise", "more concise").split("|")
CODE = ("Complete this Python function. Answer with the whole function in a code block.\n\n```python\n{}\n```",
        "Complete this Python function. Answer with the whole function in a code block.\n\n```python\n{}\n```",
        "Complete the following function:\n\n```python\n{}\n```", "Implement this in Python:\n\n{}",
        "Write the body of this function.\n\n```python\n{}\n```", "{}")
MATHS = ("{}\nPlease reason step by step, and put your final answer within \\boxed{{}}.", "{}", "{}",
         "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}.", "{} Let's think step by step.",
         "Solve this problem: {}")
# The target itself goes on with these: the start of a user's message. An empty one is whatever it likes.
OPEN = """|||||||||||||||How |What |Why |Can you |I need |Write |Explain |Give me |Create |Help me |Is it |Who |When |I'm |Please |My |Describe
|Compare |Generate |Design |Identify |List |Find |Rewrite |Translate |Imagine |Suppose |If |You are |As a |In this
|A |The |Write a Python function |Write a function that |Implement |Write a program |How do I |Write code to |Given a list
|Solve |Calculate |A store sells |A train |If a |There are |Maria has |Tom buys |A farmer has |In a class of |The price of
|Summarize the following text:\n\n|Summarize this article in one sentence:\n\n|Rewrite this email:\n\n|Extract the key points
from the following text:\n\n|Write a story about |Write an email |Write a poem |Write a short ""
""".replace("\\n", "\n").replace("\"\"\n", "").replace("points\nfrom", "points from").split("|")
OPEN = [start if start.endswith("\n\n") else start.strip() for start in OPEN]
SYSTEM = ("You are a maths tutor.", "You are a helpful programming assistant.", "You are an expert in Python.",
          "You are a teacher who answers questions of pupils.", "You are a concise assistant.",
          "You summarize texts in a few sentences.", "You are a creative writer.")
TEXT = ("Write a news article about {}.", "Write a paragraph about {}.", "Write an encyclopedia entry on {}.",
        "Write a report about {}.", "Write a diary entry about {}.", "Write a long review of a book on {}.")


def fill(r: random.Random, template: str, values: list[str]) -> str:
    return template.format(*r.sample(values, template.count("{}")))


# --- functions to complete: of pieces, with examples that are computed ---------------------------------------------

KEEP = {"": "True", "even ": "x % 2 == 0", "odd ": "x % 2 == 1", "positive ": "x > 0", "negative ": "x < 0",
        "two-digit ": "9 < abs(x) < 100", "nonzero ": "x != 0"}
CHANGE = {"": "x", "the squares of ": "x * x", "the absolute values of ": "abs(x)", "double of ": "2 * x",
          "the last digits of ": "abs(x) % 10", "the cubes of ": "x ** 3"}
REDUCE = {"the sum of": ("int", "sum({})"), "the largest of": ("int", "max({}, default=0)"),
          "the smallest of": ("int", "min({}, default=0)"), "how many different values are among": ("int", "len(set({}))"),
          "a sorted list of": ("List[int]", "sorted({})"), "a reversed list of": ("List[int]", "({})[::-1]"),
          "the running totals of": ("List[int]", "[sum({0}[:i + 1]) for i in range(len({0}))]"),
          "whether there are duplicates among": ("bool", "len(set({0})) < len({0})"),
          "the product of": ("int", "__import__('math').prod({})"),
          "the mean of": ("float", "sum({0}) / max(1, len({0}))")}
STRINGS = {"Return the string with its words in reverse order": ("str", "' '.join(s.split()[::-1])"),
           "Count the vowels in the string": ("int", "sum(c in 'aeiou' for c in s.lower())"),
           "Return the longest word": ("str", "max(s.split(), key=len)"),
           "Replace every vowel by a star": ("str", "''.join('*' if c in 'aeiou' else c for c in s)"),
           "Return how often each character occurs, as a dictionary": ("dict", "{c: s.count(c) for c in s}"),
           "Check whether the string reads the same backwards": ("bool", "s == s[::-1]"),
           "Return the string with upper and lower case swapped": ("str", "s.swapcase()"),
           "Return the words that begin with a capital letter": ("List[str]", "[w for w in s.split() if w[0].isupper()]"),
           "Return the number of words with more than {n} letters": ("int", "sum(len(w) > {n} for w in s.split())"),
           "Return every {n}th character of the string": ("str", "s[::{n}]"),
           "Shift the characters of the string to the left by {n}": ("str", "s[{n}:] + s[:{n}]"),
           "Return the string without its digits": ("str", "''.join(c for c in s if not c.isdigit())"),
           "Return the first letter of each word": ("str", "''.join(w[0] for w in s.split())")}


def function(r: random.Random) -> str:
    if r.random() < 0.75:
        keep, change, reduce = r.choice(list(KEEP)), r.choice(list(CHANGE)), r.choice(list(REDUCE))
        kind, body = REDUCE[reduce]
        arg = r.choice(("numbers", "values", "lst", "nums", "xs", "data"))
        body = body.format(f"[{CHANGE[change]} for x in {arg} if {KEEP[keep]}]")
        what = f"{r.choice(('Return', 'Compute', 'Find', 'Given a list of integers, return'))} {reduce} {change}the {keep}numbers in the list"
        name = "_".join(w for w in re.findall(r"[a-z]+", f"{reduce} {change} {keep}") if w not in ("the", "of", "a", "are"))[:32].strip("_")
        inputs = [[r.randint(-30, 120) for _ in range(r.randint(0 if i else 3, 7))] for i in range(r.randint(1, 3))]
        head = f"def {name}({arg}: List[int]) -> {kind}:" if r.random() < 0.6 else f"def {name}({arg}):"
    else:
        what, (kind, body) = r.choice(list(STRINGS.items()))
        n, arg = r.randint(2, 5), "s"
        what, body = what.replace("{n}", str(n)), body.replace("{n}", str(n))
        name = "_".join(re.findall(r"[a-z]+", what.lower())[1:4])
        inputs = [" ".join(r.choice((w, w.title())) for w in r.sample(tasks.WORDS, r.randint(1, 5))) for _ in range(r.randint(1, 3))]
        head = f"def {name}(s: str) -> {kind}:"
    lines = [f"    \"\"\"{r.choice(('', ' '))}{what}." if r.random() < 0.7 else f"    \"\"\"\n    {what}."]
    for value in inputs:
        result = repr(eval(body, {arg: value}))
        call = f"{name}({value!r})"
        lines += {0: [f"    >>> {call}", f"    {result}"], 1: [f"    {call} => {result}"],
                  2: [f"    For example, {call} returns {result}."]}[r.randrange(3)] if r.random() < 0.85 else []
    imports = "from typing import List\n\n\n" if "List" in head else ""
    return f"{imports}{head}\n" + "\n".join(lines) + '\n    """'


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Python's library, and a part of the installed packages."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = [p for p in sorted(library.glob("*.py")) + sorted(library.glob("[!s]*/*.py")) if "test" not in str(p)]
    for path in paths:
        if path.stat().st_size < 200_000:
            try:
                source = path.read_text()
                yield source, ast.parse(source)
            except (ValueError, SyntaxError):
                continue


def pieces(text: str) -> Iterator[str]:
    """Paragraphs of 40 to 220 words."""
    kept: list[str] = []
    for part in [*re.split(r"\n\s*\n", text), ""]:
        part = " ".join(part.split())
        words = len(" ".join(kept).split())
        if kept and (not part or words > 100 or len(part.split()) < 6):
            if 40 <= words <= 220:
                yield "\n\n".join(kept)
            kept = []
        if len(part.split()) >= 6 and not re.search(r"[{}<>|=\\]|::|\.\.\.|>>>|```|http", part):
            kept.append(part)


def library() -> tuple[list[str], list[str]]:
    """Texts, and functions up to the end of their docstrings."""
    texts: set[str] = set()
    functions: set[str] = set()
    for source, tree in modules():
        lines = source.splitlines()
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) or not (doc := ast.get_docstring(node)):
                continue
            texts.update(pieces(doc))
            if isinstance(node, ast.FunctionDef) and 30 < len(doc) < 700:
                part = lines[node.lineno - 1:node.body[0].end_lineno]
                functions.add("\n".join(line[len(part[0]) - len(part[0].lstrip()):] for line in part))
    for package in importlib.metadata.distributions():
        texts.update(pieces(str(package.metadata.get_payload() or package.metadata.get("Description") or "")))
    for path in sorted(Path("/var/lib/apt/lists").glob("*Components-*.yml.gz")):
        for entry in gzip.decompress(path.read_bytes()).decode().split("\nDescription:\n")[1:]:
            lines = entry[:20000].split("\n")
            begin = next((i for i, line in enumerate(lines[:60]) if line.startswith("  C:")), None)
            if begin is None:
                continue
            end = next((i for i in range(begin + 1, len(lines)) if not lines[i].startswith("    ")), len(lines))
            plain = " ".join(re.sub(r"<[^>]+>", " ", " ".join(lines[begin:end])[6:]).split()).strip(" \"'>-")
            if 40 <= len(plain.split()) <= 220:
                texts.add(plain.replace("''", "'"))
    return sorted(texts), sorted(functions)


def grams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i:i + 13]) for i in range(len(words) - 12)}


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True, type=Path)
    ap.add_argument("--held-out", nargs="*", default=[], type=Path)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    r = random.Random(a.seed)
    forbidden: set[tuple[str, ...]] = set()
    tests: dict[str, list[str]] = {"question": [], "prompt": []}  # as GSM8K and HumanEval call them
    for path in a.held_out:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for line in data.decode().splitlines():
            row = json.loads(line)
            for value in row.values():
                forbidden |= grams(value) if isinstance(value, str) else set()
            for key in tests.keys() & row.keys():
                tests[key].append(row[key].strip())
    topics = r.sample(TOPICS, len(TOPICS))
    kept, held = topics[16:], topics[:16]
    texts, functions = library()
    r.shuffle(texts)
    r.shuffle(functions)
    held_texts, texts = texts[:80], texts[80:]
    print(f"{len(texts)} texts, {len(functions)} functions, {len(topics)} topics", file=sys.stderr)

    held_out = [{"domain": "chat", "prompt": fill(r, t, held)} for t in CHAT for _ in range(3)]
    held_out += [{"domain": "instructions", "prompt": fill(r, t, held)} for t in INSTRUCT for _ in range(3)]
    held_out += [{"domain": "summaries", "prompt": r.choice(SUMMARY).format(t)} for t in held_texts]
    held_out += [{"domain": "gsm8k", "prompt": MATHS[0].format(q)} for q in tests["question"][:160]]
    held_out += [{"domain": "humaneval", "prompt": CODE[0].format(p)} for p in tests["prompt"]]
    rows = [{"domain": "chat", "prompt": fill(r, t, kept)} for t in CHAT for _ in range(400)]
    rows += [{"domain": "instructions", "prompt": fill(r, t, kept)} for t in INSTRUCT for _ in range(400)]
    rows += [{"domain": "summaries", "prompt": r.choice(SUMMARY).format(t)} for t in texts[:9000] for _ in range(2)]
    rows += [{"domain": "code", "prompt": r.choice(CODE).format(function(r))} for _ in range(11000)]
    rows += [{"domain": "code", "prompt": r.choice(CODE).format(f)} for f in functions[:6000]]
    rows += [{"domain": "maths", "prompt": r.choice(MATHS).format(tasks.word(r)[0])} for _ in range(15000)]
    rows += [{"domain": "maths", "prompt": tasks.calc(r)[0]} for _ in range(1500)]
    rows += [{"domain": name, "prompt": tasks.TASKS[name][0](r)[0]} for name in ("json", "list", "code") for _ in range(700)]
    rows = [row for row in rows if not grams(row["prompt"]) & forbidden]
    unique = {row["prompt"]: row for row in rows}
    seen = {row["prompt"] for row in held_out}
    rows = [row for prompt, row in unique.items() if prompt not in seen]
    rows += [{"domain": "own", "open": r.choice(OPEN)} for _ in range(50000)]
    rows += [{"domain": "own", "open": "", "system": r.choice(SYSTEM)} for _ in range(10000)]
    rows += [{"domain": "texts", "prompt": fill(r, r.choice(TEXT), kept)} for _ in range(6000)]
    r.shuffle(rows)
    held_out = [{**row, "held_out": True} for row in held_out]
    a.out.mkdir(parents=True, exist_ok=True)
    for name, lines in (("prompts", rows), ("held_out", held_out)):
        (a.out / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
