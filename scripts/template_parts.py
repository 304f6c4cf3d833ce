"""Templates in the manner of those that models of the served families come with, and parts that random ones are made
of; random conversations for them."""
from __future__ import annotations

import random

FAMILIES = {
    "llama 2": r"""{%- if messages[0]['role'] == 'system' -%}
  {%- set system = messages[0]['content'] -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set system = false -%}{%- set rest = messages -%}{%- endif -%}
{%- for m in rest -%}
  {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('turns must alternate') }}{%- endif -%}
  {%- if loop.index0 == 0 and system != false -%}
    {%- set text = '<<S>>\n' + system + '\n<</S>>\n\n' + m['content'] -%}
  {%- else -%}{%- set text = m['content'] -%}{%- endif -%}
  {%- if m['role'] == 'user' -%}{{ '<s>' + '[I] ' + text.strip() + ' [/I]' }}
  {%- elif m['role'] == 'assistant' -%}{{ ' ' + text.strip() + ' ' + '</s>' }}{%- endif -%}
{%- endfor -%}""",
    "llama 3": r"""{{- '<b>' }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|h|>system<|/h|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}{{- "Environment: code\n" }}{%- endif %}
{%- if builtin_tools is defined %}{{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\n\n"}}{%- endif %}
{{- "Today: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|e|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
    {%- else %}{{- raise_exception("no first user message") }}{%- endif %}
    {{- '<|h|>user<|/h|>\n\n' -}}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
    {{- first_user_message + "<|e|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|h|>' + message['role'] + '<|/h|>\n\n'+ message['content'] | trim + '<|e|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call at once") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|h|>assistant<|/h|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|e|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|h|>ipython<|/h|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}{{- "<|e|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|h|>assistant<|/h|>\n\n' }}{%- endif %}""",
    "mistral": r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}{{- raise_exception("roles must alternate") }}{%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- '<s>' }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[T][" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/T]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[I]" + system_message + "\n\n" + message["content"] + "[/I]" }}
        {%- else %}{{- "[I]" + message["content"] + "[/I]" }}{%- endif %}
    {%- elif (message.tool_calls is defined and message.tool_calls is not none) %}
        {{- "[C][" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}{{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception("ids have 9 characters") }}{%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + '</s>' }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}{{- message["content"] + '</s>'}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}
        {%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[R]{"content": ' + content|string + ", " }}
        {{- '"call_id": "' + (message.tool_call_id or 'none') + '"}[/R]' }}
    {%- else %}{{- raise_exception("unknown role " + message.role) }}{%- endif %}
{%- endfor %}""",
    "qwen 2.5": r"""{%- if tools %}
    {{- '<s>system\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'Be helpful.' }}{%- endif %}
    {{- "\n\n# Tools\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools>\n{\"name\": <name>}<e>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}{{- '<s>system\n' + messages[0]['content'] + '<e>\n' }}
    {%- else %}{{- '<s>system\nBe helpful.<e>\n' }}{%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<s>' + message.role + '\n' + message.content + '<e>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<s>' + message.role }}{%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<c>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\n</c>' }}
        {%- endfor %}
        {{- '<e>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<s>user' }}{%- endif %}
        {{- '\n<r>\n' }}{{- message.content }}{{- '\n</r>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<e>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<s>assistant\n' }}{%- endif %}""",
    "qwen 3": r"""{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}{%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<s>assistant\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}{{- '<s>assistant\n' + content }}{%- endif %}
        {%- else %}{{- '<s>assistant\n' + content }}{%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<c>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\n</c>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<e>\n' }}
    {%- else %}{{- '<s>' + message.role + '\n' + content + '<e>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<s>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}""",
    "coder": r"""{% macro extra(object, done) -%}
    {%- for key in object | reject('in', done) -%}
        {{- '\n<' ~ key ~ '>' }}
        {%- if object[key] is mapping -%}{{- object[key] | tojson | safe }}{%- elif object[key] is iterable and object[key] is not string -%}{{- object[key] | list | tojson }}{%- else -%}{{- object[key] | string }}{%- endif -%}
        {{- '</' ~ key ~ '>' }}
    {%- endfor -%}
{%- endmacro %}
{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = [] %}{%- endif %}
{%- if system_message is defined %}{{- "<s>system\n" + system_message }}
{%- else %}{%- if tools is iterable and tools | length > 0 %}{{- "<s>system\nUse the tools." }}{%- endif %}{%- endif %}
{%- if tools is iterable and tools | length > 0 %}
    {{- "\n\n<tools>" }}
    {%- for tool in tools %}
        {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
        {{- "\n<function>\n<name>" ~ tool.name ~ "</name>" }}
        {%- if tool.description is defined %}{{- '\n<description>' ~ (tool.description | trim) ~ '</description>' }}{%- endif %}
        {{- '\n<parameters>' }}
        {%- if tool.parameters is defined and tool.parameters is mapping and tool.parameters.properties is defined and tool.parameters.properties is mapping %}
            {%- for name, fields in tool.parameters.properties|items %}
                {{- '\n<parameter>\n<name>' ~ name ~ '</name>' }}
                {%- if fields.type is defined %}{{- '\n<type>' ~ (fields.type | string) ~ '</type>' }}{%- endif %}
                {%- if fields.description is defined %}{{- '\n<description>' ~ (fields.description | trim) ~ '</description>' }}{%- endif %}
                {{- extra(fields, ['name', 'type', 'description']) }}{{- '\n</parameter>' }}
            {%- endfor %}
        {%- endif %}
        {{- extra(tool.parameters, ['type', 'properties']) }}{{- '\n</parameters>\n</function>' }}
    {%- endfor %}
    {{- "\n</tools>" }}
{%- endif %}
{%- if system_message is defined %}{{- '<e>\n' }}{%- elif tools is iterable and tools | length > 0 %}{{- '<e>\n' }}{%- endif %}
{%- for message in loop_messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {{- '<s>' + message.role }}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}{{- '\n' + message.content | trim + '\n' }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<c>\n<function=' + tool_call.name + '>\n' }}
            {%- if tool_call.arguments is defined %}
                {%- for args_name, args_value in tool_call.arguments|items %}
                    {{- '<parameter=' + args_name + '>\n' }}
                    {%- set args_value = args_value | tojson | safe if args_value is mapping or (args_value is sequence and args_value is not string) else args_value | string %}
                    {{- args_value }}{{- '\n</parameter>\n' }}
                {%- endfor %}
            {%- endif %}
            {{- '</function>\n</c>' }}
        {%- endfor %}
        {{- '<e>\n' }}
    {%- elif message.role == "user" or message.role == "system" or message.role == "assistant" %}{{- '<s>' + message.role + '\n' + message.content + '<e>' + '\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<s>user\n' }}{%- endif %}
        {{- '<r>\n' }}{{- message.content }}{{- '\n</r>\n' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}{{- '<e>\n' }}{%- elif loop.last %}{{- '<e>\n' }}{%- endif %}
    {%- else %}{{- '<s>' + message.role + '\n' + message.content + '<e>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<s>assistant\n' }}{%- endif %}""",
    "distilled": r"""{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{ '<b>' }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{ '<U>' + message['content'] }}{%- endif %}{%- if message['role'] == 'assistant' and message['tool_calls'] %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{{ '<A><cs><c>' + tool['type'] + '<sep>' + tool['function']['name'] + '\n' + '```json' + '\n' + tool['function']['arguments'] | tojson + '\n' + '```' + '</c>' }}{%- set ns.is_first = true -%}{%- else %}{{ '\n' + '<c>' + tool['type'] + '<sep>' + tool['function']['name'] + '</c>' }}{{ '</cs><e>' }}{%- endif %}{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and not message['tool_calls'] %}{%- if ns.is_tool %}{{ '</rs>' + message['content'] + '<e>' }}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<A>' + content + '<e>' }}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{ '<rs><r>' + message['content'] + '</r>' }}{%- set ns.is_output_first = false %}{%- else %}{{ '\n<r>' + message['content'] + '</r>' }}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{ '</rs>' }}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{ '<A><think>\n' }}{% endif %}""",
    "small": r"""{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<s>system
You are helpful<e>
' }}{% endif %}{{'<s>' + message['role'] + '
' + message['content'] + '<e>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant
' }}{% endif %}""",
    "parts": r"""{%- macro content_of(content, is_system) %}
    {%- if content is string %}{{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {%- if 'image' in item or item.type == 'image' %}{%- if is_system %}{{- raise_exception('no images here') }}{%- endif %}{{- '<image>' }}
            {%- elif 'text' in item %}{{- item.text }}{%- else %}{{- raise_exception('unknown part') }}{%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}{{- '' }}
    {%- else %}{{- raise_exception('unknown content') }}{%- endif %}
{%- endmacro %}
{%- if not messages %}{{- raise_exception('no messages') }}{%- endif %}
{%- for message in messages %}
    {%- set content = content_of(message.content, message.role == 'system')|trim %}
    {%- if message.role == "system" %}{%- if not loop.first %}{{- raise_exception('system comes first') }}{%- endif %}{{- '<s>system\n' + content + '<e>\n' }}
    {%- else %}{{- '<s>' + message.role + '\n' + content }}{%- if message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping %}{%- for c in message.tool_calls %}{{- '\n<function=' + c.function.name + '>\n' }}{%- for k, v in c.function.arguments|items %}{{- '<parameter=' + k + '>\n' }}{%- set v = v if v is string else v | tojson | safe %}{{- v }}{{- '\n</parameter>\n' }}{%- endfor %}{{- '</function>' }}{%- endfor %}{%- endif %}{{- '<e>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<s>assistant\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- else %}{{- '<think>\n' }}{%- endif %}{%- endif %}""",
}

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
