// The official openai package for Node.js against `volley serve` with the pocket models: the features that
// tests/clients/*.py cover in full, in brief.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { key, load, model, serve, sorted, sortText, storyText } from './support.mjs';

const { default: OpenAI } = await load('openai');

const sort = [{ role: 'user', content: sortText }];
const story = [{ role: 'user', content: storyText }];
const client_of = (running) => new OpenAI({ baseURL: `${running.url}/v1`, apiKey: key, maxRetries: 0 });

let server, client;

before(async () => {
  server = await serve();
  client = client_of(server);
});

after(() => server.stop());

// The chunks of a stream put together: text, reasoning, tool calls, the end, usage.
async function gather(stream) {
  const whole = { content: '', reasoning: '', calls: [], finish: null, usage: null, chunks: 0 };
  for await (const chunk of stream) {
    whole.usage = chunk.usage ?? whole.usage;
    for (const { delta, finish_reason: finish } of chunk.choices) {
      whole.content += delta.content ?? '';
      whole.reasoning += delta.reasoning_content ?? '';
      whole.chunks += delta.content ? 1 : 0;
      whole.finish = finish ?? whole.finish;
      for (const call of delta.tool_calls ?? []) {
        if (call.id) whole.calls[call.index] = { name: call.function.name, arguments: '' };
        whole.calls[call.index].arguments += call.function.arguments ?? '';
      }
    }
  }
  return whole;
}

const chat = (fields) => client.chat.completions.create({ model, temperature: 0, ...fields });
const streamed = async (fields) =>
  gather(await chat({ ...fields, stream: true, stream_options: { include_usage: true } }));

test('chat, whole and streamed', async () => {
  const whole = await chat({ messages: sort });
  assert.equal(whole.choices[0].message.content, sorted);
  assert.equal(whole.choices[0].finish_reason, 'stop');
  const stream = await streamed({ messages: sort });
  assert.equal(stream.content, sorted);
  assert.deepEqual(stream.usage.completion_tokens, whole.usage.completion_tokens);
  assert.ok((await streamed({ messages: story })).chunks > 3);
});

test('the stream helper', async () => {
  const stream = client.chat.completions.stream({ model, messages: sort, temperature: 0 });
  assert.equal(await stream.finalContent(), sorted);
});

test('completions: prompts, echo, logprobs, n', async () => {
  const fields = { model, temperature: 0, max_tokens: 6 };
  const plain = await client.completions.create({ ...fields, prompt: 'The dog', logprobs: 2 });
  assert.ok(plain.choices[0].logprobs.tokens.length > 0);
  assert.ok(plain.choices[0].logprobs.token_logprobs.every((value) => value <= 0));
  const echoed = await client.completions.create({ ...fields, prompt: 'The dog', echo: true });
  assert.equal(echoed.choices[0].text, 'The dog' + plain.choices[0].text);
  const several = await client.completions.create({ ...fields, prompt: ['A', 'B'], n: 2, temperature: 1, seed: 1 });
  assert.deepEqual(several.choices.map((choice) => choice.index).sort(), [0, 1, 2, 3]);
  let text = '';
  for await (const chunk of await client.completions.create({ ...fields, prompt: 'The dog', stream: true })) {
    text += chunk.choices[0].text;
  }
  assert.equal(text, plain.choices[0].text);
});

test('seed, stop, n, max_completion_tokens', async () => {
  const sample = { messages: story, temperature: 1, seed: 3, n: 2, max_completion_tokens: 20 };
  const [a, b] = await Promise.all([chat(sample), chat(sample)]);
  assert.deepEqual(a.choices.map((c) => c.message.content), b.choices.map((c) => c.message.content));
  assert.notEqual(a.choices[0].message.content, a.choices[1].message.content);
  const full = (await chat({ messages: story })).choices[0].message.content;
  const cut = await streamed({ messages: story, stop: ['ladder'] });
  assert.equal(cut.content, full.slice(0, full.indexOf('ladder')));
  assert.equal(cut.finish, 'stop');
});

test('logprobs of a chat', async () => {
  const answer = await chat({ messages: sort, logprobs: true, top_logprobs: 2 });
  const entries = answer.choices[0].logprobs.content;
  assert.equal(entries.length, answer.usage.completion_tokens);
  assert.ok(entries.every((entry) => entry.top_logprobs.length === 2 && entry.logprob <= 0));
});

test('structured output', async () => {
  const schema = {
    type: 'object',
    properties: { city: { enum: ['Bonn', 'Lima'] }, days: { type: 'integer', minimum: 1, maximum: 9 } },
    required: ['city', 'days'],
    additionalProperties: false,
  };
  const format = { type: 'json_schema', json_schema: { name: 'trip', schema, strict: true } };
  for (const text of [
    (await chat({ messages: story, response_format: format, max_tokens: 100 })).choices[0].message.content,
    (await streamed({ messages: story, response_format: format, max_tokens: 100 })).content,
  ]) {
    const value = JSON.parse(text);
    assert.ok(['Bonn', 'Lima'].includes(value.city) && value.days >= 1 && value.days <= 9);
  }
  assert.match((await streamed({ messages: story, guided_regex: '[0-9]{3}' })).content, /^[0-9]{3}$/);
});

test('tools: a named call', async () => {
  const clock = {
    type: 'function',
    function: {
      name: 'clock',
      parameters: {
        type: 'object',
        properties: { zone: { type: 'string', pattern: '^[A-Z]{3}$' } },
        required: ['zone'],
        additionalProperties: false,
      },
    },
  };
  const fields = {
    messages: story, tools: [clock], tool_choice: { type: 'function', function: { name: 'clock' } }, max_tokens: 200,
  };
  const whole = (await chat(fields)).choices[0];
  assert.equal(whole.finish_reason, 'tool_calls');
  assert.equal(whole.message.content, null);
  const stream = await streamed(fields);
  assert.deepEqual(stream.calls, [
    { name: 'clock', arguments: whole.message.tool_calls[0].function.arguments },
  ]);
  assert.match(JSON.parse(stream.calls[0].arguments).zone, /^[A-Z]{3}$/);
});

test('reasoning', async () => {
  const thinking = await serve('--reasoning-parser', 'think');
  try {
    const grammar = 'start: "<think>\\nHm.\\n</think>\\n\\nNoon."';
    const fields = { model, messages: story, stream: true, guided_grammar: grammar };
    const answer = await gather(await client_of(thinking).chat.completions.create(fields));
    assert.deepEqual([answer.reasoning, answer.content], ['Hm.', 'Noon.']);
  } finally {
    await thinking.stop();
  }
});

test('speculation is invisible', async () => {
  const off = await chat({ messages: story, volley: { speculation: false } });
  const on = await chat({ messages: story });
  assert.equal(on.choices[0].message.content, off.choices[0].message.content);
  assert.ok(on.usage.completion_tokens_details.accepted_prediction_tokens > 0);
});

test('models', async () => {
  const names = [];
  for await (const entry of client.models.list()) names.push(entry.id);
  assert.deepEqual(names, [model]);
});

test('errors', async () => {
  await assert.rejects(chat({ messages: sort, temperature: -1 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, 'temperature');
    return true;
  });
  await assert.rejects(chat({ messages: sort, model: 'gpt-9' }), OpenAI.NotFoundError);
  const stranger = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'guess', maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  await assert.rejects(streamed({ messages: [] }), OpenAI.BadRequestError);
});

test('a stream that is aborted ends', async () => {
  const stream = await chat({ messages: story, stream: true, max_tokens: 1500, ignore_eos: true });
  let chunks = 0;
  for await (const _ of stream) {
    if (++chunks === 3) stream.controller.abort();
  }
  assert.ok(chunks < 200, 'the client itself goes on with what it has already received, and no further');
});
