// Pictures through the packages for Node.js of OpenAI, Anthropic and Vercel's AI SDK: all show the model the same prompt.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { crc32, deflateSync } from 'node:zlib';

import { key, load, serve } from './support.mjs';

const { default: OpenAI } = await load('openai');
const { default: Anthropic } = await load('@anthropic-ai/sdk');
const { createOpenAI } = await load('@ai-sdk/openai');
const { generateText, streamText } = await load('ai');

const model = 'qwen3_vl';
const text = 'What?';

function chunk(kind, data) {
  const body = Buffer.concat([Buffer.from(kind), data]);
  const frame = Buffer.alloc(8);
  frame.writeUInt32BE(data.length, 0);
  frame.writeUInt32BE(crc32(body), 4);
  return Buffer.concat([frame.subarray(0, 4), body, frame.subarray(4)]);
}

// 24 x 16 pixels.
function png(seed) {
  const rows = Buffer.alloc(16 * 73);
  rows.forEach((_, at) => (rows[at] = at % 73 === 0 ? 0 : (at * at * seed) >> 3));
  const head = Buffer.from([0, 0, 0, 24, 0, 0, 0, 16, 8, 2, 0, 0, 0]);
  const parts = [chunk('IHDR', head), chunk('IDAT', deflateSync(rows)), chunk('IEND', Buffer.alloc(0))];
  return Buffer.concat([Buffer.from('89504e470d0a1a0a', 'hex'), ...parts]);
}

test('a picture of every client', { skip: !crc32 && 'this Node.js has no crc32' }, async () => {
  const server = await serve('--model', path.join(path.dirname(fileURLToPath(import.meta.url)), '../../data/seen', model));
  try {
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: key, maxRetries: 0 });
    const messages = new Anthropic({ baseURL: server.url, apiKey: key, maxRetries: 0 });
    const provider = createOpenAI({ baseURL: `${server.url}/v1`, apiKey: key });
    const answers = [];
    for (const seed of [3, 5]) {
      const data = png(seed).toString('base64');
      const url = `data:image/png;base64,${data}`;
      const usual = { model, temperature: 0 };
      const chat = await client.chat.completions.create({
        ...usual,
        max_tokens: 16,
        messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }, { type: 'text', text }] }],
      });
      const answer = chat.choices[0].message.content;
      answers.push(answer);
      const content = [{ type: 'input_image', image_url: url, detail: 'auto' }, { type: 'input_text', text }];
      const response = await client.responses.create({ ...usual, max_output_tokens: 16, input: [{ role: 'user', content }] });
      assert.equal(response.output_text, answer);
      const source = { type: 'base64', media_type: 'image/png', data };
      const message = await messages.messages.create({
        ...usual,
        max_tokens: 16,
        messages: [{ role: 'user', content: [{ type: 'image', source }, { type: 'text', text }] }],
      });
      assert.equal(message.content.map((block) => block.text).join(''), answer);
      for (const one of [provider(model), provider.chat(model)]) {
        const fields = {
          model: one,
          temperature: 0,
          maxRetries: 0,
          maxOutputTokens: 16,
          messages: [{ role: 'user', content: [{ type: 'image', image: png(seed) }, { type: 'text', text }] }],
        };
        assert.equal((await generateText(fields)).text, answer);
        let streamed = '';
        for await (const piece of streamText(fields).textStream) streamed += piece;
        assert.equal(streamed, answer);
      }
    }
    assert.notEqual(answers[0], answers[1]);
  } finally {
    await server.stop();
  }
});
