// The Messages API through Anthropic's package for Node.js.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { key, load, model, serve, sorted, sortText, storyText, zone } from './support.mjs';

const { default: Anthropic } = await load('@anthropic-ai/sdk');

let server, client;

before(async () => {
  server = await serve();
  client = new Anthropic({ baseURL: server.url, apiKey: key, maxRetries: 0 });
});

after(() => server.stop());

const sort = { model, max_tokens: 50, temperature: 0, messages: [{ role: 'user', content: sortText }] };
const clock = { name: 'clock', input_schema: zone };

test('text, whole and streamed', async () => {
  const whole = await client.messages.create(sort);
  assert.deepEqual(whole.content.map((block) => block.text), [sorted]);
  assert.equal(whole.stop_reason, 'end_turn');
  let text = '';
  const stream = client.messages.stream(sort).on('text', (more) => (text += more));
  const message = await stream.finalMessage();
  assert.equal(text, sorted);
  assert.equal(message.usage.output_tokens, whole.usage.output_tokens);
});

test('a tool, and its result', async () => {
  const ask = { ...sort, messages: [{ role: 'user', content: storyText }], tools: [clock], max_tokens: 100 };
  const choice = { type: 'any', disable_parallel_tool_use: true };
  const whole = await client.messages.create({ ...ask, tool_choice: choice });
  const streamed = await client.messages.stream({ ...ask, tool_choice: choice }).finalMessage();
  assert.equal(whole.stop_reason, 'tool_use');
  assert.deepEqual(streamed.content[0].input, whole.content[0].input);
  const messages = [
    ...ask.messages,
    { role: 'assistant', content: whole.content },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: whole.content[0].id, content: '12:00' }] },
  ];
  assert.ok((await client.messages.create({ ...ask, messages, max_tokens: 10 })).content.length > 0);
});

test('counts', async () => {
  const { input_tokens: count } = await client.messages.countTokens({ model, messages: sort.messages });
  const { usage } = await client.messages.create(sort);
  assert.equal(usage.input_tokens + usage.cache_read_input_tokens, count);
});

test('errors', async () => {
  const stranger = new Anthropic({ baseURL: server.url, apiKey: 'guess', maxRetries: 0 });
  await assert.rejects(stranger.messages.create(sort), Anthropic.AuthenticationError);
  await assert.rejects(client.messages.create({ ...sort, model: 'claude-0' }), Anthropic.NotFoundError);
  await assert.rejects(client.messages.create({ ...sort, temperature: -1 }), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.equal(error.error.error.type, 'invalid_request_error');
    assert.match(error.message, /temperature/);
    return true;
  });
});
