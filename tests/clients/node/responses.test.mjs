// The Responses API through OpenAI's package for Node.js and through the AI SDK, whose default it is.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { key, load, model, serve, sorted, sortText, storyText, zone } from './support.mjs';

const { default: OpenAI } = await load('openai');
const { createOpenAI } = await load('@ai-sdk/openai');
const { generateText, stepCountIs, streamText, Output, tool } = await load('ai');
const { z } = await load('zod');

let server, client, provider;

before(async () => {
  server = await serve();
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: key, maxRetries: 0 });
  provider = createOpenAI({ baseURL: `${server.url}/v1`, apiKey: key });
});

after(() => server.stop());

const clock = { type: 'function', name: 'clock', strict: true, parameters: zone };

test('openai: create, stream, a conversation that goes on', async () => {
  const whole = await client.responses.create({ model, input: sortText, temperature: 0 });
  assert.equal(whole.output_text, sorted);
  const stream = client.responses.stream({ model, input: sortText, temperature: 0 });
  const types = [];
  for await (const event of stream) types.push(event.type);
  assert.equal((await stream.finalResponse()).output_text, sorted);
  assert.deepEqual([types[0], types.at(-1)], ['response.created', 'response.completed']);
  const next = await client.responses.create({ model, input: 'Again.', previous_response_id: whole.id, temperature: 0 });
  assert.equal((await client.responses.retrieve(next.id)).output_text, next.output_text);
  const items = [];
  for await (const item of client.responses.inputItems.list(next.id)) items.push(item.content[0].text);
  assert.deepEqual(items, ['Again.']);
  await client.responses.delete(next.id);
  await assert.rejects(client.responses.retrieve(next.id), OpenAI.NotFoundError);
});

test('openai: a call of a tool', async () => {
  const { output } = await client.responses.create({
    model, input: storyText, tools: [clock], tool_choice: 'required', parallel_tool_calls: false, temperature: 0,
  });
  assert.equal(output.length, 1);
  assert.equal(output[0].type, 'function_call');
  assert.ok(['CET', 'UTC'].includes(JSON.parse(output[0].arguments).zone));
});

// What coding agents send, and the model's calls of it, written for it with a grammar of a single text.
test('openai: custom tools and namespaces, whole and streamed', async () => {
  const patch = '*** Begin Patch\n+"é😀\\\t\n*** End Patch\n';
  const call = (name, args) => `<tool_call>\n{"name": "${name}", "arguments": ${JSON.stringify(args)}}\n</tool_call>`;
  const text = `${call('apply_patch', { input: patch })}\n${call('crm__find', { id: 5 })}`;
  const request = {
    model,
    input: storyText,
    store: false,
    max_output_tokens: 200,
    include: ['reasoning.encrypted_content'],
    tools: [
      { type: 'custom', name: 'apply_patch', format: { type: 'text' } },
      {
        type: 'namespace', name: 'crm', description: 'Customers.',
        tools: [{ type: 'function', name: 'find', parameters: { type: 'object' }, strict: false }],
      },
      { type: 'web_search' },
    ],
    structured_outputs: { grammar: `start: ${JSON.stringify(text)}\n` },
  };
  const whole = await client.responses.create(request);
  const stream = client.responses.stream(request);
  const deltas = [];
  for await (const event of stream) {
    if (event.type === 'response.custom_tool_call_input.delta') deltas.push(event.delta);
  }
  assert.equal(deltas.join(''), patch);
  for (const { output } of [whole, await stream.finalResponse()]) {
    assert.deepEqual(output.map((item) => item.type), ['custom_tool_call', 'function_call']);
    assert.equal(output[0].input, patch);
    assert.deepEqual([output[1].name, output[1].namespace], ['find', 'crm']);
  }
});

test('openai: errors', async () => {
  await assert.rejects(client.responses.create({ model, input: 'x', background: true }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, 'background');
    return true;
  });
});

test('AI SDK: text, whole and streamed', async () => {
  const whole = await generateText({ model: provider(model), prompt: sortText, temperature: 0, maxRetries: 0 });
  assert.equal(whole.text, sorted);
  assert.ok(whole.usage.outputTokens > 0);
  const stream = streamText({ model: provider(model), prompt: sortText, temperature: 0, maxRetries: 0 });
  let text = '';
  for await (const piece of stream.textStream) text += piece;
  assert.equal(text, sorted);
});

// The second step refers to the first one's items by their ids.
test('AI SDK: a tool that runs, and the step behind it', async () => {
  const zones = [];
  const result = await generateText({
    model: provider(model),
    prompt: storyText,
    temperature: 0,
    maxRetries: 0,
    maxOutputTokens: 60,
    tools: {
      clock: tool({
        description: 'The time.',
        inputSchema: z.object({ zone: z.enum(['CET', 'UTC']) }),
        execute: ({ zone }) => {
          zones.push(zone);
          return '12:00';
        },
      }),
    },
    toolChoice: 'required',
    stopWhen: stepCountIs(2),
    providerOptions: { openai: { parallelToolCalls: false } },
  });
  assert.equal(result.steps.length, 2);
  assert.ok(zones.length >= 1 && zones.every((zone) => ['CET', 'UTC'].includes(zone)));
});

test('AI SDK: an object', async () => {
  const { output } = await generateText({
    model: provider(model),
    prompt: storyText,
    temperature: 0,
    maxRetries: 0,
    output: Output.object({ schema: z.object({ city: z.enum(['Bonn', 'Lima']), days: z.number().int().min(1).max(9) }) }),
  });
  assert.ok(['Bonn', 'Lima'].includes(output.city) && output.days >= 1 && output.days <= 9);
});
