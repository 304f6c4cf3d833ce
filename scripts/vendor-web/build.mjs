// node build.mjs PACKAGES OUTPUT: makes src/serve/web/vendor from the packages of package-lock.json in
// PACKAGES/node_modules. The same packages give the same bytes (tests/web/vendor.test.mjs).
import {cp, mkdir, readFile, readdir, rm, writeFile} from 'node:fs/promises';
import {createRequire} from 'node:module';
import {dirname, join, resolve} from 'node:path';
import {fileURLToPath} from 'node:url';

const kHere = dirname(fileURLToPath(import.meta.url));
const [packages, output] = process.argv.slice(2).map((path) => resolve(path));
const {build, transform} = createRequire(`${packages}/package.json`)('esbuild');

// Faces of a family that has another one are left to the browser, which slants and thickens what it has.
const kFaces = [
  'AMS-Regular',
  'Caligraphic-Regular',
  'Fraktur-Regular',
  'Main-Bold',
  'Main-Italic',
  'Main-Regular',
  'Math-BoldItalic',
  'Math-Italic',
  'SansSerif-Regular',
  'Script-Regular',
  'Size1-Regular',
  'Size2-Regular',
  'Size3-Regular',
  'Size4-Regular',
  'Typewriter-Regular',
];

// The names of the packages that a bundle is made of are added to `used`.
async function bundle(name, used) {
  const {metafile} = await build({
    entryPoints: [join(kHere, `${name}.mjs`)],
    outfile: join(output, `${name}.js`),
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    platform: 'neutral',
    mainFields: ['module', 'main'],
    conditions: ['worker'], // without a document: entities are then not decoded by making HTML of them
    nodePaths: [join(packages, 'node_modules')],
    charset: 'utf8',
    legalComments: 'none', // LICENCES.txt has them all
    metafile: true,
    logLevel: 'error',
  });
  const parts = Object.values(metafile.outputs)[0].inputs;
  for (const [path, {bytesInOutput}] of Object.entries(parts)) {
    const found = /^.*node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path);
    if (found && bytesInOutput > 0) used.set(found[1], found[0]);
  }
}

async function copyKatexStyle() {
  const folder = join(packages, 'node_modules/katex/dist');
  const style = await readFile(join(folder, 'katex.css'), 'utf8');
  const kept = style
    .replace(/@font-face\s*\{[^}]*\}/g, (face) => {
      const name = /fonts\/KaTeX_([\w-]+)\.woff2/.exec(face)[1];
      return kFaces.includes(name) ? face : '';
    })
    .replace(/,\s*url\([^)]*\.(?:woff|ttf)\)\s*format\([^)]*\)/g, '')
    .replaceAll('fonts/KaTeX_', 'KaTeX_');
  const {code} = await transform(kept, {loader: 'css', minify: true});
  await writeFile(join(output, 'katex.css'), code);
  for (const face of kFaces) await cp(join(folder, `fonts/KaTeX_${face}.woff2`), join(output, `KaTeX_${face}.woff2`));
}

async function writeLicences(used) {
  const parts = [];
  for (const [name, folder] of [...used].sort()) {
    const {version, license} = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8'));
    const file = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
    if (!file) throw new Error(`${name} has no licence file`);
    parts.push(`${name} ${version} (${license})\n\n${(await readFile(join(folder, file), 'utf8')).trim()}\n`);
  }
  await writeFile(join(output, 'LICENCES.txt'), parts.join(`\n${'-'.repeat(80)}\n\n`));
}

await rm(output, {recursive: true, force: true});
await mkdir(output, {recursive: true});
const used = new Map();
for (const name of ['markdown', 'highlight', 'katex']) await bundle(name, used);
await copyKatexStyle();
await writeLicences(used);
