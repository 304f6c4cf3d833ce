// The page with a scripted server behind it, for what a real one cannot be made to do on demand: a slow stream, an
// error in the middle of an answer, a server that knows nothing of blocks.
import {readFile} from 'node:fs/promises';
import {createServer} from 'node:http';
import {extname, join} from 'node:path';
import {fileURLToPath} from 'node:url';
import {setTimeout as delay} from 'node:timers/promises';

const kPage = fileURLToPath(new URL('../../../src/serve/web/', import.meta.url));
const kTypes = {
  '.html': 'text/html',
  '.css': 'text/css',
  '.js': 'text/javascript',
  '.svg': 'image/svg+xml',
  '.woff2': 'font/woff2',
  '.txt': 'text/plain',
};
// As page_headers() in src/serve/web/page.cc says.
const kPolicy =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

// One step of an answer. Pieces: the accepted tokens, then the bonus.
export const block = (drafted, ...pieces) => ({drafted, accepted: pieces.length - 1, tokens: pieces.length, pieces});
export const firstToken = (piece) => ({drafted: 0, accepted: 0, tokens: 1, pieces: [piece]});

function chunk(fields) {
  const body = {id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'mock', ...fields};
  return `data: ${JSON.stringify(body)}\n\n`;
}
const delta = (fields, finish = null) => ({
  choices: [{index: 0, delta: fields, logprobs: null, finish_reason: finish}],
});

// `script`: {steps, more, finish, promptTokens, pauseMs, blocks: false, honoursSwitch: false, key, models, card,
// refusal, breakAfter, loading}, where `more` are the steps of a request that goes on with an answer, `loading` is how
// many requests find the model still being loaded, and `card` what the list of models says beside its names. `requests`
// keeps the bodies.
export async function startMock(script) {
  const state = {script, requests: [], aborted: 0};
  const server = createServer((request, response) => {
    answer(state, request, response).catch((error) => response.destroy(error));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return Object.assign(state, {
    url: `http://127.0.0.1:${server.address().port}/`,
    stop: () => {
      server.closeAllConnections();
      server.close();
    },
  });
}

async function answer(state, request, response) {
  const {pathname} = new URL(request.url, 'http://mock');
  if (request.method === 'GET' && !pathname.startsWith('/v1/')) return sendFile(pathname, response);
  const {key} = state.script;
  if (key && request.headers.authorization !== `Bearer ${key}`) {
    return sendJson(response, 401, {
      error: {message: 'Send an API key in the Authorization header.', code: 'invalid_api_key'},
    });
  }
  if (state.script.loading > 0) {
    --state.script.loading;
    return sendJson(response, 503, {error: {message: 'The model is still being loaded.', code: 'loading'}});
  }
  if (pathname === '/v1/models') {
    return sendJson(response, 200, {
      object: 'list',
      data: (state.script.models ?? ['mock']).map((id) => ({id, object: 'model', ...state.script.card})),
    });
  }
  let body = '';
  for await (const part of request) body += part;
  const parsed = JSON.parse(body);
  state.requests.push(parsed);
  if (state.script.refusal) return sendJson(response, 400, {error: {message: state.script.refusal}});
  return stream(state, parsed, response);
}

async function sendFile(pathname, response) {
  const name = pathname === '/' ? 'index.html' : pathname.replace(/^\/web\//, '');
  try {
    const bytes = await readFile(join(kPage, name));
    response.writeHead(200, {
      'Content-Type': `${kTypes[extname(name)]}; charset=utf-8`,
      'Content-Security-Policy': kPolicy,
    });
    response.end(bytes);
  } catch {
    response.writeHead(404).end();
  }
}

function sendJson(response, status, json) {
  response.writeHead(status, {'Content-Type': 'application/json'}).end(JSON.stringify(json));
}

// A step's tokens one by one, for a request that asked for plain decoding.
function plainSteps(steps) {
  return steps.flatMap(({pieces}) => pieces).map(firstToken);
}

async function stream(state, request, response) {
  const {script} = state;
  const plain = request.volley?.speculation === false && script.honoursSwitch !== false;
  const scripted = request.continue_final_message ? script.more : script.steps;
  const steps = plain ? plainSteps(scripted) : scripted;
  response.on('close', () => (state.aborted += response.writableFinished ? 0 : 1));
  response.writeHead(200, {'Content-Type': 'text/event-stream'});
  response.write(chunk(delta({role: 'assistant', content: ''})));
  const usage = {
    prompt_tokens: script.promptTokens ?? 7,
    completion_tokens: 0,
    completion_tokens_details: {accepted_prediction_tokens: 0, rejected_prediction_tokens: 0},
  };
  for (const [i, step] of steps.entries()) {
    if (response.destroyed) return;
    if (i === script.breakAfter) {
      response.end(`data: ${JSON.stringify({error: {message: 'The engine lost its mind.'}})}\n\n`);
      return;
    }
    usage.completion_tokens += step.tokens;
    usage.completion_tokens_details.accepted_prediction_tokens += step.accepted;
    usage.completion_tokens_details.rejected_prediction_tokens += step.drafted - step.accepted;
    const content = step.content ?? step.pieces.join('');
    const said = step.thoughts === undefined ? {content} : {reasoning_content: step.thoughts, reasoning: step.thoughts};
    response.write(chunk({...delta(said), usage, ...(script.blocks === false ? {} : {volley: step})}));
    if (script.pauseMs) await delay(script.pauseMs);
  }
  response.write(chunk(delta({}, script.finish ?? 'stop')));
  response.end(chunk({choices: [], usage}) + 'data: [DONE]\n\n');
}

// node mock_server.mjs: to look at the page while working on it.
if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const words =
    'The fox went out at night with a small lantern and a **brave** heart. It `looked` for the moon.\n\n'.match(
      /\s*\S+\s*/g,
    );
  const steps = [firstToken(words[0])];
  for (let i = 1, n = 0; i < words.length * 6; ++n) {
    const pieces = Array.from({length: 1 + ((n * 7) % 9)}, () => words[i++ % words.length]);
    steps.push(block(15, ...pieces));
  }
  const mock = await startMock({steps, pauseMs: 60, key: process.env.MOCK_KEY});
  console.log(mock.url);
}
