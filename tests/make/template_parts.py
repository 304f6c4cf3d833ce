"""Templates in the manner of those that models of the served families come with, and parts that random ones are made
of; random conversations for them."""
from __future__ import annotations

import random
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "data" / "templates" / "families"
# The numbered ones render a few conversations as random templates do; the others PAIRS_OF_NEWER each.
FAMILIES = [path.read_text() for path in sorted(SOURCES.glob("[0-9]*.jinja"))]
NEWER_FAMILIES = [path.read_text() for path in sorted(SOURCES.glob("[a-z]*.jinja"))]

SETUP = (
    "{%- set ns = namespace(n=0, text='', last=none) %}\n",
    "{% set system = messages[0].content if messages and messages[0].role == 'system' else none %}{{ system or '-' }}\n",
    "{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}{{ users | length }}:",
    "{% set roles = messages | map(attribute='role') | unique | sort | join(',') %}[{{ roles }}]",
    "{%- macro line(m, mark='-') %}{{ mark ~ ' ' ~ m.role | upper ~ ': ' ~ (m.content or '') | trim }}{% endmacro -%}",
    "{% set options = {'style': style | default('plain'), 'limit': limit | default(3, true)} %}{{ options }}",
    "{{ bos_token | default('<s>') }}{{ today | default('now', boolean=true) }}\n",
    "{% if enable_thinking is defined and enable_thinking is false %}/no{% elif enable_thinking %}/yes{% endif %}",
    "{%- for m in messages if m.role not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('role ' ~ m.role) }}{% endfor %}",
    "{% set counts = dict(user=0) %}{{ counts.user + messages | length }}{{ counts.get('tool', 'no') }}",
)
TOOLS = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}",
    "{%- if tools is iterable and tools | length > 0 %}{{ tools | tojson(indent=2) }}{% endif %}",
    "{% for t in tools or [] %}{{ loop.index ~ '. ' ~ t.function.name }}({{ t.function.parameters.properties | default({}) | list | join(', ') }})\n{% else %}none{% endfor %}",
    "{% for t in tools or [] %}{% for name, p in t.function.parameters.properties.items() %}{{ name }}: {{ p.type | default('any') }}{{ '' if name in (t.function.parameters.required or []) else '?' }}{% if p.enum %} in {{ p.enum }}{% endif %};{% endfor %}{% endfor %}",
    "{% if tools is not none %}{{ tools | map(attribute='function.name') | join('|') }}{% endif %}",
    "{% if not tools is defined %}x{% elif tools is none %}y{% else %}{{ (tools | first).function | dictsort }}{% endif %}",
    "{{ tools | tojson(separators=(',', ':'), sort_keys=true) if tools }}",
    "{% for t in tools or [] %}{{ '%s: %s' % (t.function.name, t.function.description | default('no description')) }}\n{% endfor %}",
    "{% for t in tools or [] %}{% set p = t.function.parameters %}{{ p['type'] }}{{ p.required is defined }}{{ p['additionalProperties'] is false }} {% endfor %}",
)
BODIES = (
    "<{{ m.role }}>{{ m.content }}\n",
    "{{ '<|' + m['role'] + '|>' + (m['content'] or '') | trim + '\n' }}",
    "{%- if m.role == 'user' %}U: {{ m.content | replace('\\n', ' ') }}{% elif m.role == 'assistant' %}A: {{ m.content.split('</think>')[-1].lstrip() }}{% else %}{{ m.role | title }}: {{ m.content | string }}{% endif %}\n",
    "{% if '</think>' in m.content %}{{ m.content.partition('</think>')[2] | trim }}{% else %}{{ m.content.rsplit('\\n', 1)[-1] }}{% endif %}|",
    "{{ loop.index }}/{{ loop.length }}{{ loop.cycle('a', 'b') }}{{ ' last' if loop.last }}{{ ' ' ~ loop.previtem.role if loop.previtem }} {{ m.content[:12] }}\n",
    "{%- if m.tool_calls %}{% for c in m.tool_calls %}<call>{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</call>{% endfor %}{% endif %}",
    "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | dictsort %}<{{ k }}>{{ v if v is string else v | tojson }}</{{ k }}>{% endfor %}{% endfor %}",
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{{ ', ' if not loop.last }}{% endfor %}){% endfor %}",
    "{%- if m.reasoning_content is string and m.reasoning_content | length > 0 %}<think>{{ m.reasoning_content.strip('\\n') }}</think>{% endif %}{{ m.content | indent(2) }}",
    "{% if m.role == 'tool' %}{{ '' if loop.previtem and loop.previtem.role == 'tool' else '[' }}{{ m.content }}{{ '' if loop.nextitem and loop.nextitem.role == 'tool' else ']' }}{% endif %}",
    "{% if loop.index0 % 2 == 0 %}{% continue %}{% endif %}{{ m.role[0] }}{{ m.content | length }}",
    "{% if loop.index > 3 %}{% break %}{% endif %}{{ m.content | upper | truncate(20) }}\n",
    "{{ m.keys() | list | join(',') }}{{ 'name' in m }}{{ m.get('name', '?') }}{{ m.name is defined }} ",
    "{% set words = m.content.split() %}{{ words | length }} {{ words | first }} {{ words | last }} {{ words[::-1] | join(' ') }}\n",
    "{{ m.content is string }}{{ m.content | wordcount }}{{ m.content | title }}{{ m.content.count('a') }}{{ m.content.find('the') }}{{ m.content.startswith(('I', 'A')) }} ",
    "{% filter trim %} {{ m.role }} {% endfilter %}{% set block %}{{ m.content }}!{% endset %}{{ block | length }}",
    "{{ '%-10s|%5d|%.2f' | format(m.role, loop.index, loop.index / 3) }}{{ loop.index // 2 }}{{ -loop.index % 3 }}{{ 2 ** loop.index }}\n",
    "{{ m.content | tojson }}{{ [m.role, none, 1.5, loop.first] }}{{ (m.role, m.content | length) }}",
    "{{ '{:>8}|{!r}'.format(m.role, m.content[:5]) }}{{ m.content.removeprefix('The ').removesuffix('.') }}\n",
    "{% set ns2 = namespace(calls=[]) %}{% for c in m.tool_calls or [] %}{% set ns2.calls = ns2.calls + [c.id | default('none')] %}{% endfor %}{{ ns2.calls }}",
)
ENDINGS = (
    "{% if add_generation_prompt %}<assistant>{% endif %}",
    "{%- if add_generation_prompt -%}\n  {{ '<|assistant|>\\n' -}}\n{%- endif -%}",
    "{{ messages | length }}{{ messages[-1].role }}{{ messages | map('length') | list }}",
    "{% for role, group in messages | groupby('role') %}{{ role }}={{ group | length }};{% endfor %}",
    "{{ messages | rejectattr('tool_calls', 'defined') | map(attribute='content') | map('length') | sum }}",
    "{% for pair in messages | batch(2) %}{{ pair | map(attribute='role') | join('+') }} {% endfor %}{{ n }} {{ big | tojson }} {{ f }}",
    "{{ [n, f, big, flag, nothing] | tojson }}{{ [n, f, big, flag, nothing] }}{{ f ~ '' }}{{ n / 7 }}{{ n is odd }}",
    "{{ (messages | last).content | default('', true) | escape }}{{ messages | sum(attribute='content', start='') if false else '' }}",
    "{% macro pair(a, b='z') %}{{ a }}{{ b }}{{ caller() if caller is defined }}{% endmacro %}{{ pair(1) }}{% call pair(2, b=3) %}!{% endcall %}",
    "{# the end #}\n  {%+ if true %} kept{% endif %}\n",
)


def template(draw: random.Random) -> str:
    setup = draw.sample(SETUP, draw.randint(0, 3))
    bodies = draw.sample(BODIES, draw.randint(1, 3))
    order = draw.choice(("messages", "messages[::-1]", "messages[1:]", "messages | selectattr('role', 'ne', 'system')", "messages[-3:]"))
    loop = "{%- for m in " + order + " %}" + draw.choice(("", "\n", "\n    ")) + "".join(bodies) + "{% endfor %}" + draw.choice(("", "\n"))
    return "".join(setup) + draw.choice(("", draw.choice(TOOLS))) + loop + "".join(draw.sample(ENDINGS, draw.randint(1, 2)))


TEXTS = (
    "Hi", "The cat sat on the mat.", " leading and trailing \n", "A line\nand another\n\n  indented", "",
    "Köln is in Germany — \"quoted\" and 'single'.", "<think>\nLet me see\n</think>\n\nThe answer is 42.", "日本語 😀 text",
    "I say {{ no }} {% to %} braces", "<b>&amp;</b>", "tabs\tand\\backslashes", "100% of 3.5", "it's", "a\u200bb\u00a0c\x07",
)
NAMES = ("get_weather", "search", "run", "items")
VALUES = (1, -3, 2.5, 1e-07, 1e16, 1e21, 10**21, -10**25, 10**45, True, False, None, "text", "it's", "a\"b", "", [], {}, [1, [2, "x"]],
          {"k": {"z": None, "a": [True]}}, ["<a>", "é"], 0.1, 123456789012345678)


def schema(draw: random.Random) -> dict:
    properties = {}
    for name in draw.sample(("city", "items", "n", "get", "unit", "über"), draw.randint(0, 3)):
        properties[name] = draw.choice(({"type": "string", "description": "a \"name\"\n of it "}, {"type": "integer", "maximum": 10**21},
                                        {"type": "array", "items": {"type": "string"}}, {"type": ["string", "null"], "default": None},
                                        {"enum": ["a", "b'"]}, {}))
    parameters = {"type": "object", "properties": properties}
    if draw.random() < 0.5:
        parameters["required"] = list(properties)[:1]
    if draw.random() < 0.3:
        parameters["additionalProperties"] = False
    return parameters


def tool(draw: random.Random) -> dict:
    function = {"name": draw.choice(NAMES), "parameters": schema(draw)}
    if draw.random() < 0.7:
        function["description"] = draw.choice(TEXTS)
    return {"type": "function", "function": function}


def call(draw: random.Random) -> dict:
    names = draw.sample(("city", "items", "n", "keys", "x"), draw.randint(0, 3))
    arguments = {name: draw.choice(VALUES) for name in names}
    return {"id": "call%05d" % draw.randint(0, 99999), "type": "function",
            "function": {"name": draw.choice(NAMES), "arguments": arguments}}


def conversation(draw: random.Random) -> tuple[list, list | None, dict]:
    messages = []
    if draw.random() < 0.5:
        messages.append({"role": "system", "content": draw.choice(TEXTS)})
    for _ in range(draw.randint(1, 3)):
        messages.append({"role": "user", "content": draw.choice(TEXTS)})
        if draw.random() < 0.4:
            calls = [call(draw) for _ in range(draw.randint(1, 2))]
            messages.append({"role": "assistant", "content": draw.choice(TEXTS), "tool_calls": calls})
            messages += [{"role": "tool", "content": draw.choice(TEXTS), "tool_call_id": one["id"]} for one in calls]
        if draw.random() < 0.8:
            answer = {"role": "assistant", "content": draw.choice(TEXTS)}
            if draw.random() < 0.3:
                answer["reasoning_content"] = draw.choice(TEXTS)
            messages.append(answer)
    if draw.random() < 0.05:
        messages.append({"role": draw.choice(("critic", "developer")), "content": "odd"})
    tools = [tool(draw) for _ in range(draw.randint(1, 3))] if draw.random() < 0.5 else None
    variables = {name: draw.choice(VALUES) for name in draw.sample(("n", "f", "big", "flag", "nothing", "style", "limit"), 4)}
    if draw.random() < 0.3:
        variables["enable_thinking"] = draw.random() < 0.5
    return messages, tools, variables
