// Files and batches through OpenAI's package for Node.js.
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { key, load, serve, sorted, sortText } from './support.mjs';

const { default: OpenAI, toFile } = await load('openai');

let server, client, folder;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'volley-files-'));
  server = await serve('--files-dir', folder);
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: key, maxRetries: 0 });
});

after(async () => {
  await server.stop();
  await rm(folder, { recursive: true });
});

test('openai: upload, batch, results', async () => {
  const body = { messages: [{ role: 'user', content: sortText }], temperature: 0 };
  const lines = ['a', 'b'].map((id) =>
    JSON.stringify({ custom_id: id, method: 'POST', url: '/v1/chat/completions', body }),
  );
  const file = await client.files.create({
    file: await toFile(Buffer.from(lines.join('\n')), 'in.jsonl'),
    purpose: 'batch',
  });
  assert.equal(file.filename, 'in.jsonl');
  let batch = await client.batches.create({
    input_file_id: file.id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  });
  while (['validating', 'in_progress', 'finalizing'].includes(batch.status)) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    batch = await client.batches.retrieve(batch.id);
  }
  assert.equal(batch.status, 'completed');
  assert.deepEqual(batch.request_counts, { total: 2, completed: 2, failed: 0 });
  const text = await (await client.files.content(batch.output_file_id)).text();
  const answers = text.trim().split('\n').map((line) => JSON.parse(line));
  assert.deepEqual(answers.map((answer) => answer.custom_id).sort(), ['a', 'b']);
  for (const answer of answers) assert.equal(answer.response.body.choices[0].message.content, sorted);
  const listed = [];
  for await (const each of client.batches.list({ limit: 1 })) listed.push(each.id);
  assert.deepEqual(listed, [batch.id]);
  await client.files.delete(file.id);
  await assert.rejects(client.files.retrieve(file.id), OpenAI.NotFoundError);
  await assert.rejects(client.batches.cancel(batch.id), (error) => error.status === 409);
});
