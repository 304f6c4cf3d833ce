// Tool calls that break off, through the streams of the official packages for Node.js.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { key, load, model, serve, storyText } from './support.mjs';

const { default: Anthropic } = await load('@anthropic-ai/sdk');
const { default: OpenAI } = await load('openai');

const parameters = { type: 'object', properties: { q: { type: 'integer' }, s: { type: 'string' } } };
const forms = {
  hermes: ['<tool_call>\n{"name": "f", "arguments": ', '}\n</tool_call>'],
  llama: ['{"name": "f", "parameters": ', '}'],
  mistral: ['[TOOL_CALLS]f[ARGS]', ''],
  qwen3_coder: ['<tool_call>\n<function=f>\n', '\n</function>\n</tool_call>'],
};
const brokenJson = ['{"q": 1] text', '{"q": 1, "s": nope}', '{"q": True}', '{"q": "a\tb\\d"}'];
const brokenParameters = ['{"q": 1}', '<parameter=q>\n1\n</parameter>\ntext', '<parameter=s>\n<b>', '<parameter=q'];
const forced = (text) => ({ structured_outputs: { grammar: `start: ${JSON.stringify(text)}\n` } });
const messages = [{ role: 'user', content: storyText }];

for (const [name, [before, behind]] of Object.entries(forms)) {
  test(`one call, then text: ${name}`, async (t) => {
    const server = await serve('--tool-call-parser', name);
    t.after(() => server.stop());
    const openai = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: key, maxRetries: 0 });
    const anthropic = new Anthropic({ baseURL: server.url, apiKey: key, maxRetries: 0 });
    for (const broken of name === 'qwen3_coder' ? brokenParameters : brokenJson) {
      const ask = { model, ...forced(before + broken + behind + '\nand text') };

      const tools = [{ type: 'function', function: { name: 'f', parameters } }];
      const chat = { ...ask, messages, tools, max_tokens: 400 };
      const choice = (await openai.chat.completions.stream(chat).finalChatCompletion()).choices[0].message;
      const whole = (await openai.chat.completions.create(chat)).choices[0].message;
      assert.deepEqual(choice.tool_calls.map((c) => c.function.arguments), whole.tool_calls.map((c) => c.function.arguments));
      assert.equal(choice.content ?? '', whole.content ?? '');
      const calls = whole.tool_calls.map((c) => [c.function.name, JSON.parse(c.function.arguments)]);
      assert.equal(calls.length, 1);
      assert.equal(calls[0][0], 'f');

      const claude = { ...ask, messages, max_tokens: 400, tools: [{ name: 'f', input_schema: parameters }] };
      const message = await anthropic.messages.stream(claude).finalMessage();
      assert.deepEqual(message.content.map(withoutId), (await anthropic.messages.create(claude)).content.map(withoutId));
      const used = message.content.filter((block) => block.type === 'tool_use');
      assert.deepEqual(used.map((block) => [block.name, block.input]), calls);

      const respond = { ...ask, input: storyText, max_output_tokens: 400 };
      respond.tools = [{ type: 'function', name: 'f', parameters, strict: false }];
      const response = await openai.responses.stream(respond).finalResponse();
      const items = response.output.filter((item) => item.type === 'function_call');
      assert.deepEqual(items.map((item) => [item.name, JSON.parse(item.arguments)]), calls);
    }
  });
}

function withoutId({ id: _, ...block }) {
  return block;
}
