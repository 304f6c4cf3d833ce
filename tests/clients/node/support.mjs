// A `volley serve` process for tests, and the packages that scripts/setup-clients.sh put below build/clients.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import path from 'node:path';
import readline from 'node:readline';
import { fileURLToPath, pathToFileURL } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../..');
const program = process.env.VOLLEY_PROGRAM ?? path.join(root, 'build/cpu/bin/volley');
const modules = createRequire(path.join(root, 'build/clients/node/package.json'));

export const load = (name) => import(pathToFileURL(modules.resolve(name)));
export const model = 'pocket';
export const key = 'secret';
export const sortText = 'Sort these numbers: 50, 49, 35, 79.';
export const storyText = 'Tell me a story about a dog and a ladder.';
export const zone = {
  type: 'object',
  properties: { zone: { type: 'string', enum: ['CET', 'UTC'] } },
  required: ['zone'],
  additionalProperties: false,
};
export const sorted = '35, 49, 50, 79';

// A server on a free port that wants the key: its address, and how to end it.
export async function serve(...options) {
  const server = spawn(program, ['serve', '--port', '0', '--max-num-seqs', '8', ...options], {
    env: { ...process.env, VOLLEY_API_KEYS: key },
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  let url;
  for await (const line of readline.createInterface({ input: server.stdout })) {
    url = line.match(/http:\/\/\S+/)?.[0];
    break;
  }
  assert.ok(url, 'volley did not start');
  const stop = async () => {
    server.kill('SIGTERM');
    const [status] = await once(server, 'exit');
    assert.equal(status, 0);
  };
  return { url, stop };
}
