// The conversations that this browser keeps (IndexedDB), and what a file of them looks like.
//
// A conversation is {id, title, created, changed, turns}; times are milliseconds. A turn is {message, pictures, answers}, an answer
// {speculative, seed, asJson, notes, answer: the record of Answer}. It is kept as JSON text, whose length counts.
import {Answer} from './answer.js';
import {isPicture} from './pictures.js';

export const kMostConversations = 200;
export const kMostCharacters = 32 * 1024 * 1024; // of all of them together
const kFormat = 'volley.conversations';
const kVersion = 1;

// A sentence for the reader.
export class StoreFailure extends Error {}

const kNotKept = 'This browser keeps nothing for this page, so conversations end with it.';
const kFull =
  `There is no room for this conversation: this page keeps at most ${kMostConversations} of them and ` +
  `${kMostCharacters / 1024 / 1024} MB. Export and delete older ones; until then this one ends with the page.`;

export class Store {
  #opened = null;

  // {id, title, changed, size} of each, the last changed first.
  async list() {
    const summaries = await this.#run('readonly', ({summaries}) => summaries.getAll());
    return summaries.sort((a, b) => b.changed - a.changed);
  }

  // Null: there is none with this id, or what is there cannot be read.
  async get(id) {
    const kept = await this.#run('readonly', ({conversations}) => conversations.get(id));
    try {
      return kept ? checkedConversation(JSON.parse(kept.json)) : null;
    } catch {
      return null;
    }
  }

  // `known`: the times of change that the caller read or wrote; null: any. A conversation that another tab has changed
  // since stays, and this one is kept beside it as `otherId`. Returns the id.
  async put(conversation, known = null, otherId = null) {
    const {title, changed} = conversation;
    let {id} = conversation;
    await this.#run('readwrite', ({summaries, conversations, transaction}) => {
      const all = summaries.getAll();
      all.addEventListener('success', () => {
        const isAnothers = (kept) => kept.id === id && !known.has(kept.changed);
        if (known && all.result.some(isAnothers)) id = otherId;
        const json = JSON.stringify({...conversation, id});
        const others = all.result.filter((other) => other.id !== id);
        const size = others.reduce((sum, other) => sum + other.size, json.length);
        if (others.length >= kMostConversations || size > kMostCharacters) {
          transaction.abort();
          return;
        }
        summaries.put({id, title, changed, size: json.length});
        conversations.put({id, json});
      });
      return all;
    });
    return id;
  }

  // `known`: as for put(); what another tab has changed since stays.
  async delete(id, known = null) {
    await this.#run('readwrite', ({summaries, conversations}) => {
      const kept = summaries.get(id);
      kept.addEventListener('success', () => {
        if (known && kept.result && !known.has(kept.result.changed)) return;
        summaries.delete(id);
        conversations.delete(id);
      });
      return kept;
    });
  }

  async clear() {
    await this.#run('readwrite', ({summaries, conversations}) => {
      summaries.clear();
      return conversations.clear();
    });
  }

  #open() {
    this.#opened ??= new Promise((resolve, reject) => {
      const request = indexedDB.open('volley', 1);
      request.addEventListener('upgradeneeded', () => {
        request.result.createObjectStore('summaries', {keyPath: 'id'});
        request.result.createObjectStore('conversations', {keyPath: 'id'});
      });
      request.addEventListener('success', () => resolve(request.result));
      request.addEventListener('error', () => reject(new StoreFailure(kNotKept)));
      request.addEventListener('blocked', () => reject(new StoreFailure(kNotKept)));
    });
    return this.#opened;
  }

  // The result of the request that `act` returns, once its transaction is done.
  async #run(mode, act) {
    let database;
    try {
      database = await this.#open();
    } catch {
      throw new StoreFailure(kNotKept);
    }
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(['summaries', 'conversations'], mode);
      const [summaries, conversations] = ['summaries', 'conversations'].map((name) => transaction.objectStore(name));
      const request = act({summaries, conversations, transaction});
      transaction.addEventListener('complete', () => resolve(request.result));
      // By put() where there is no room, or by the browser, whose own bound may be lower.
      transaction.addEventListener('abort', () => reject(new StoreFailure(kFull)));
    });
  }
}

// -- files

export function fileOf(conversations) {
  return JSON.stringify({format: kFormat, version: kVersion, conversations}, null, 1);
}

// The conversations of a file that fileOf() made, by this page or another. Throws StoreFailure.
export function conversationsOf(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new StoreFailure('This file is not JSON, so it was not exported from this page.');
  }
  if (file?.format !== kFormat || !Array.isArray(file.conversations)) {
    throw new StoreFailure('This file holds no conversations of this page.');
  }
  if (file.version !== kVersion) {
    throw new StoreFailure(`This file has version ${file.version}, and this page reads version ${kVersion}.`);
  }
  return file.conversations.map((conversation, i) => {
    try {
      return checkedConversation(conversation);
    } catch (error) {
      throw new StoreFailure(`Conversation ${i + 1} of this file cannot be read: ${error.message}.`);
    }
  });
}

// The same without what does not belong there. Throws TypeError.
function checkedConversation({id, title, created, changed, turns}) {
  const named = [id, title].every((value) => typeof value === 'string' && value !== '' && value.length <= 200);
  if (!named || ![created, changed].every(Number.isFinite) || !Array.isArray(turns)) {
    throw new TypeError('it has no title, times or turns');
  }
  return {id, title, created, changed, turns: turns.map(checkedTurn)};
}

function checkedTurn({message, pictures = [], answers}) {
  if (typeof message !== 'string' || !Array.isArray(answers) || answers.length > 2) {
    throw new TypeError('a turn is not a message and its answers');
  }
  if (!Array.isArray(pictures) || !pictures.every(isPicture)) throw new TypeError('a picture is not one');
  return {message, ...(pictures.length > 0 && {pictures}), answers: answers.map(checkedAnswer)};
}

function checkedAnswer({speculative, seed, asJson, notes, answer}) {
  const whole = [speculative, asJson].every((value) => typeof value === 'boolean') && Number.isFinite(seed);
  if (!whole || !Array.isArray(notes) || !notes.every((note) => typeof note === 'string')) {
    throw new TypeError('an answer lacks its seed or its notes');
  }
  return {speculative, seed, asJson, notes, answer: Answer.fromRecord(answer).toRecord()};
}
