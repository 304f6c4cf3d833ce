// That what others wrote of the page is what scripts/vendor-web.sh makes of the packages that its lock file pins.
import assert from 'node:assert/strict';
import {execFileSync} from 'node:child_process';
import {mkdtemp, readFile, readdir, rm} from 'node:fs/promises';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {it} from 'node:test';
import {kRoot} from './support/packages.mjs';

it('libraries of the page are those of the pinned packages, byte for byte', async () => {
  const made = await mkdtemp(join(tmpdir(), 'volley-vendor-'));
  try {
    execFileSync(`${kRoot}scripts/vendor-web.sh`, [join(made, 'out')], {stdio: ['ignore', 'ignore', 'inherit']});
    const kept = `${kRoot}src/serve/web/vendor`;
    const names = (await readdir(kept)).sort();
    assert.deepEqual((await readdir(join(made, 'out'))).sort(), names);
    for (const name of names) {
      const [ours, theirs] = await Promise.all([kept, join(made, 'out')].map((folder) => readFile(join(folder, name))));
      assert.ok(ours.equals(theirs), `${name} differs: run scripts/vendor-web.sh`);
    }
  } finally {
    await rm(made, {recursive: true});
  }
});
