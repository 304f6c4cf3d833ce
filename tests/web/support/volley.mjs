// A real `volley serve` with the pocket models.
import {spawn} from 'node:child_process';
import {kRoot} from './packages.mjs';

export async function startVolley({args = [], env = {}} = {}) {
  const program = process.env.VOLLEY_PROGRAM ?? `${kRoot}build/cpu/bin/volley`;
  const child = spawn(program, ['serve', '--port', '0', ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: {...process.env, XDG_CACHE_HOME: `${kRoot}build/cache`, ...env},
  });
  let log = '';
  child.stderr.on('data', (bytes) => (log += bytes));
  const exited = new Promise((resolve) => child.on('exit', (code) => resolve(code)));
  const url = await new Promise((resolve, reject) => {
    let text = '';
    child.stdout.on('data', (bytes) => {
      const found = /at (http:\S+)\s/.exec((text += bytes));
      if (found) resolve(`${found[1]}/`);
    });
    child.on('error', reject);
    exited.then((code) => reject(new Error(`${program} ended with ${code}: ${log}`)));
  });
  return {
    url,
    stop: () => {
      child.kill('SIGTERM');
      return exited;
    },
  };
}

// The events of a stream's body.
export function parseEvents(body) {
  const payloads = [...body.matchAll(/^data: (.*)$/gm)].map((found) => found[1]);
  return payloads.filter((payload) => payload !== '[DONE]').map((payload) => JSON.parse(payload));
}
