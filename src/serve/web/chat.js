// The conversation on the screen: its turns, the request that runs, and that the browser keeps it.
import {Answer, format, verdict} from './answer.js';
import {ApiFailure, streamChat} from './chat_client.js';
import {TurnView} from './conversation.js';
import {confirmed, showNotice} from './dialogs.js';
import {StoreFailure} from './store.js';

const kSaveEvery = 2000; // milliseconds, while an answer is being written

const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`; // randomUUID: of pages with TLS only
const newConversation = () => ({
  id: newId(),
  otherId: newId(),
  created: Date.now(),
  known: new Set(),
  turns: [],
  discarded: false,
});

export class Chat {
  #page;
  #settings;
  #store;
  // {id, otherId, created, known, turns: [{message, answers, view}], discarded}; an answer is {speculative, seed, asJson,
  // notes, answer}. `known` and `otherId`: as for Store.put(), because a tab may be a copy of another one.
  #conversation = newConversation();
  #running = null; // the AbortController of what is being answered

  // `page`: what app.js shows: {root, isCompared(), leadTo(field), showReadout(answer), showRunning(running),
  // announce(sentence), changed(), askForKey(message, then)}.
  constructor(page, settings, store) {
    this.#page = page;
    this.#settings = settings;
    this.#store = store;
  }

  get id() {
    return this.#conversation.id;
  }
  get isEmpty() {
    return this.#conversation.turns.length === 0;
  }

  stop() {
    this.#running?.abort();
  }

  // `discard`: the browser shall not keep what was there.
  startNew({discard = false} = {}) {
    this.#conversation.discarded ||= discard;
    this.#show(newConversation());
  }

  open({id, created, changed, turns}) {
    const conversation = {...newConversation(), id, created, known: new Set([changed])};
    this.#show(conversation);
    for (const {message, answers} of turns) {
      const restored = answers.map((one) => ({...one, answer: Answer.fromRecord(one.answer)}));
      this.#addTurn(conversation, message, restored);
    }
    this.#page.changed();
    this.#page.root.scrollTop = this.#page.root.scrollHeight;
  }

  submit(message) {
    if (this.#running || message.trim() === '') return false;
    const fields = this.#usableFields();
    if (!fields) return false;
    const turn = this.#addTurn(this.#conversation, message, []);
    this.#page.changed();
    this.#page.root.scrollTop = this.#page.root.scrollHeight;
    this.#run(turn, fields);
    return true;
  }

  // -- turns

  #show(conversation) {
    this.stop();
    if (this.#running) this.#endRunning();
    for (const turn of this.#conversation.turns) turn.view.element.remove();
    this.#conversation = conversation;
    this.#page.showReadout(null);
    this.#page.changed();
  }

  #addTurn(conversation, message, answers) {
    const turn = {message, answers, view: null};
    turn.view = new TurnView(message, {
      edit: (text) => this.#edit(turn, text),
      remove: () => this.#remove(turn),
    });
    conversation.turns.push(turn);
    this.#page.root.append(turn.view.element);
    if (answers.length > 0) this.#showAnswers(turn);
    else turn.view.showLack(() => this.#tryAgain(turn));
    return turn;
  }

  #showAnswers(turn) {
    const compared = turn.answers.length > 1;
    turn.view.clear(compared);
    for (const one of turn.answers) this.#makeView(turn, one, compared).finish(one.answer, this.#footOf(turn, one));
    if (compared) this.#showVerdict(turn);
  }

  #makeView(turn, {speculative, asJson}, compared) {
    const title = !speculative ? 'Plain decoding' : compared ? 'With speculation' : 'Answer';
    return turn.view.addAnswer(title, {titled: compared, blockSize: this.#settings.blockSize, asJson});
  }

  #footOf(turn, {speculative, seed, notes, answer}) {
    const left = answer.finish === null && notes.length === 0;
    return {
      seed,
      notes: left ? ['The page was left before this answer was complete.'] : notes,
      regenerate: speculative ? () => this.#regenerate(turn) : null,
    };
  }

  #showVerdict(turn) {
    const [ours, plain] = turn.answers.map(({answer}) => answer);
    const {text, rates} = verdict(ours, plain);
    turn.view.showVerdict(text, rates);
  }

  async #regenerate(turn) {
    if (this.#running || !(await this.#dropAfter(turn))) return;
    this.#tryAgain(turn);
  }

  async #edit(turn, message) {
    if (this.#running || !(await this.#dropAfter(turn))) return;
    const fields = this.#usableFields();
    if (!fields) return;
    turn.message = message;
    turn.view.showMessage(message);
    this.#run(turn, fields);
  }

  async #remove(turn) {
    if (!(await confirmed('Delete this message and the answer to it?', 'Delete'))) return;
    if (this.#running && turn === this.#conversation.turns.at(-1)) this.stop();
    const {turns} = this.#conversation;
    turns.splice(turns.indexOf(turn), 1);
    turn.view.element.remove();
    this.#page.root.focus();
    await this.#save(this.#conversation);
    this.#page.changed();
  }

  // What follows was said to an answer that goes. Whether the reader agrees.
  async #dropAfter(turn) {
    const {turns} = this.#conversation;
    const after = turns.slice(turns.indexOf(turn) + 1);
    const many = after.length === 1 ? 'The turn' : `The ${after.length} turns`;
    if (after.length > 0 && !(await confirmed(`${many} after this one will be deleted.`, 'Go on'))) return false;
    for (const one of after) one.view.element.remove();
    turns.splice(turns.length - after.length);
    return true;
  }

  #tryAgain(turn) {
    const fields = this.#running ? null : this.#usableFields();
    if (fields) this.#run(turn, fields);
  }

  // Null, and the reader is led to the field, if a setting cannot be used.
  #usableFields() {
    const {fields, field} = this.#settings.read();
    if (!field) return fields;
    this.#page.leadTo(field);
    return null;
  }

  #messagesFor(turn) {
    const {system} = this.#settings;
    const messages = system === '' ? [] : [{role: 'system', content: system}];
    const {turns} = this.#conversation;
    for (const {message, answers} of turns.slice(0, turns.indexOf(turn))) {
      const reply = answers[0]?.answer.trace.content;
      if (reply) messages.push({role: 'user', content: message}, {role: 'assistant', content: reply});
    }
    messages.push({role: 'user', content: turn.message});
    return messages;
  }

  // -- requests

  async #run(turn, fields) {
    const conversation = this.#conversation;
    const compared = this.#page.isCompared();
    const seed = fields.seed ?? Math.floor(Math.random() * 2 ** 32);
    const body = {...fields, seed, messages: this.#messagesFor(turn)};
    const asJson = fields.response_format !== undefined;
    const controller = this.#beginRunning();
    const {signal} = controller;
    turn.view.clear(compared);
    // The button that asked for this may be gone.
    if (document.activeElement === document.body) turn.view.takeFocus();
    // Both stand there from the start, so that nothing moves aside for the second.
    const planned = (compared ? [true, false] : [true]).map((speculative) => ({speculative, seed, asJson, notes: []}));
    const views = planned.map((one) => this.#makeView(turn, one, compared));
    turn.answers = [];
    this.#save(conversation);
    let view = views[0];
    try {
      for (const [i, one] of planned.entries()) {
        if (signal.aborted) break;
        // One after the other: side by side they would share each step, and neither would be itself.
        view = views[i];
        await this.#runAnswer(conversation, turn, one, {view, body, signal});
      }
      const [first] = turn.answers;
      if (turn.answers.length > 1) this.#page.showReadout(first.answer);
      this.#announceEnd(first.answer, signal.aborted);
    } catch (error) {
      this.#showFailure(turn, view, error);
    } finally {
      for (const unused of views.slice(views.indexOf(view) + 1)) unused.element.remove();
      if (compared) this.#showVerdict(turn);
      // Kept first: who sees that the answer is there may leave the page at once.
      await this.#save(conversation).finally(() => {
        // Another conversation may be on the screen by now, with a request of its own.
        if (this.#running !== controller) return;
        this.#endRunning();
        this.#page.root.scrollTop = this.#page.root.scrollHeight;
      });
    }
  }

  // Streams one answer into its view. Throws what streamChat throws, except that a stopped answer is an answer.
  async #runAnswer(conversation, turn, one, {view, body, signal}) {
    one.answer = new Answer(performance.now());
    turn.answers.push(one);
    view.begin();
    const drawer = frameDrawer(this.#page.root, () => {
      view.update(one.answer);
      if (conversation === this.#conversation) this.#page.showReadout(one.answer);
    });
    let saved = performance.now();
    const volley = one.speculative ? {blocks: true} : {blocks: true, speculation: false};
    try {
      for await (const chunk of streamChat({...body, volley}, {key: this.#settings.key, signal})) {
        const now = performance.now();
        one.answer.take(chunk, now);
        drawer.soon();
        if (now - saved > kSaveEvery) {
          saved = now;
          this.#save(conversation);
        }
      }
    } catch (error) {
      drawer.now();
      if (!signal.aborted) {
        // What has come is kept with the conversation, as that of a stopped answer is.
        if (one.answer.trace.content === '') turn.answers.pop();
        else one.notes = [error instanceof ApiFailure ? error.message : 'The page failed on this answer.'];
        throw error;
      }
    }
    one.notes = notesOn(one, signal.aborted);
    view.finish(one.answer, this.#footOf(turn, one));
    drawer.now();
  }

  #showFailure(turn, view, error) {
    if (!(error instanceof ApiFailure)) console.error(error);
    const sentence = error instanceof ApiFailure ? error.message : `The page failed on this answer: ${error.message}`;
    view.fail(sentence, () => this.#tryAgain(turn));
    if (error.status === 401) this.#page.askForKey(error.message, () => this.#tryAgain(turn));
  }

  #announceEnd(answer, stopped) {
    const length = answer.trace.acceptanceLength;
    const steps = length === null ? '' : `, ${format.length(length)} tokens per step`;
    this.#page.announce(`${stopped ? 'Stopped' : 'Answer complete'}: ${format.count(answer.tokens)} tokens${steps}.`);
  }

  #beginRunning() {
    this.#running = new AbortController();
    this.#page.showRunning(true);
    this.#page.announce('Answering.');
    return this.#running;
  }

  #endRunning() {
    this.#running = null;
    this.#page.showRunning(false);
  }

  // -- keeping

  async #save(conversation) {
    if (conversation.discarded) return;
    try {
      if (conversation.turns.length === 0) await this.#store.delete(conversation.id, conversation.known);
      else await this.#put(conversation);
    } catch (error) {
      if (!(error instanceof StoreFailure)) throw error;
      showNotice(error.message);
    }
    this.#page.changed();
  }

  async #put(conversation) {
    const record = recordOf(conversation);
    const {known, otherId} = conversation;
    known.add(record.changed);
    const id = await this.#store.put(record, known, otherId);
    if (id === conversation.id) return;
    conversation.id = id;
    conversation.otherId = newId();
  }
}

function recordOf({id, created, turns}) {
  const title = turns[0].message.trim().split('\n', 1)[0].slice(0, 80);
  const plain = ({speculative, seed, asJson, notes, answer}) => ({
    speculative,
    seed,
    asJson,
    notes,
    answer: answer.toRecord(),
  });
  return {
    id,
    title,
    created,
    changed: Date.now(),
    turns: turns.map(({message, answers}) => ({message, answers: answers.map(plain)})),
  };
}

// The notes are what the reader could otherwise misread.
function notesOn({speculative, answer}, stopped) {
  const notes = [];
  if (stopped) notes.push('Stopped.');
  if (answer.finish === 'length') notes.push('Cut off at the token limit.');
  if (answer.finish !== null && !answer.trace.reported) {
    notes.push('This server does not report its blocks, so none are drawn.');
  }
  const ended = answer.finish !== null && answer.trace.reported && answer.tokens > 1;
  if (speculative && ended && answer.trace.drafted === 0) {
    notes.push('Nothing was drafted: this server decodes plainly.');
  }
  return notes;
}

// Draws at most once a frame, however many chunks arrive, and takes at most a third of the time: a long list is read anew
// each time. Follows the text if the reader is at its end.
function frameDrawer(root, draw) {
  let asked = 0;
  let timer = 0;
  let next = 0; // not before
  const now = () => {
    cancelAnimationFrame(asked);
    clearTimeout(timer);
    asked = timer = 0;
    const start = performance.now();
    const follows = root.scrollHeight - root.scrollTop - root.clientHeight < 120;
    draw();
    if (follows) root.scrollTop = root.scrollHeight;
    const end = performance.now();
    next = end + 2 * (end - start);
  };
  const askFrame = () => (asked ||= requestAnimationFrame(now));
  const soon = () => {
    const wait = next - performance.now();
    if (wait <= 16) askFrame();
    else timer ||= setTimeout(askFrame, wait);
  };
  return {now, soon};
}
