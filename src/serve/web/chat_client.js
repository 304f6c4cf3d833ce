// The server's endpoints as this page needs them. No DOM.

// A request that failed, with a sentence for the reader. status 0: the server was not reached.
export class ApiFailure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function failure(response) {
  const text = await response.text().catch(() => '');
  try {
    const message = JSON.parse(text).error.message;
    if (typeof message === 'string' && message !== '') return new ApiFailure(message, response.status);
  } catch {
    // Not this server's error: a proxy in between, perhaps.
  }
  return new ApiFailure(`The server answered ${response.status} ${response.statusText}`.trim() + '.', response.status);
}

async function send(path, key, options) {
  const headers = {...options.headers};
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, {...options, headers, cache: 'no-store'});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiFailure('The server cannot be reached. Is it still running?');
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export async function listModels(key) {
  const response = await send('v1/models', key, {});
  return (await response.json()).data;
}

// The payloads of server-sent events in a stream of bytes, as strings.
export async function* eventPayloads(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  let data = [];
  try {
    for (;;) {
      const {value, done} = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, {stream: true});
      let end;
      while ((end = rest.indexOf('\n')) >= 0) {
        const line = rest.slice(0, rest[end - 1] === '\r' ? end - 1 : end);
        rest = rest.slice(end + 1);
        if (line === '') {
          if (data.length > 0) yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) {
          data.push(line.slice(line[5] === ' ' ? 6 : 5));
        }
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// The chunks of a streamed chat completion. Throws ApiFailure, and AbortError once `signal` is aborted.
export async function* streamChat(body, {key, signal}) {
  const response = await send('v1/chat/completions', key, {
    method: 'POST',
    headers: {'Content-Type': 'application/json'},
    body: JSON.stringify({...body, stream: true, stream_options: {include_usage: true, continuous_usage_stats: true}}),
    signal,
  });
  const payloads = eventPayloads(response.body);
  try {
    for (;;) {
      const {value: payload, done} = await payloads.next().catch(asCut);
      if (done) throw new ApiFailure(kCut);
      if (payload === '[DONE]') return;
      const chunk = JSON.parse(payload);
      if (chunk.error) throw new ApiFailure(chunk.error.message);
      yield chunk;
    }
  } finally {
    payloads.return();
  }
}

const kCut = 'The connection ended before the answer did.';
function asCut(error) {
  throw error.name === 'AbortError' ? error : new ApiFailure(kCut);
}
