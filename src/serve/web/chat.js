// The conversation on the screen: its turns, the request that runs, and that the browser keeps it.
import {Answer, contextUse, format, verdict} from './answer.js';
import {ApiFailure, streamChat} from './chat_client.js';
import {TurnView} from './conversation.js';
import {confirmed, showNotice} from './dialogs.js';
import {contentOf} from './pictures.js';
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
  // {id, otherId, created, known, turns: [{message, pictures, answers, compared, view}], discarded}; an answer is {speculative,
  // seed, asJson, notes, answer}. `known` and `otherId`: as for Store.put(), because a tab may be a copy of another one.
  #conversation = newConversation();
  #running = null; // the AbortController of what is being answered

  // `page`: what app.js shows: {root, follower, isCompared(), leadTo(field), showReadout(answer), showRunning(running),
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
  // Tokens of the model's context that the latest answer took, as far as servers told; null.
  get context() {
    const known = this.#conversation.turns.map(({answers}) => answers[0]?.answer.context ?? null);
    return known.findLast((tokens) => tokens !== null) ?? null;
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
    for (const {message, answers, pictures} of turns) {
      const restored = answers.map((one) => ({...one, answer: Answer.fromRecord(one.answer)}));
      this.#addTurn(conversation, message, restored, pictures);
    }
    this.#page.changed();
    this.#page.follower.toEnd();
  }

  // `tray`: the message's pictures, which it hands over if the message is sent.
  submit(message, tray) {
    if (this.#running || (message.trim() === '' && tray.isEmpty)) return false;
    const fields = this.#usableFields();
    if (!fields) return false;
    const turn = this.#addTurn(this.#conversation, message, [], tray.take());
    this.#page.changed();
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

  #addTurn(conversation, message, answers, pictures = []) {
    const turn = {message, pictures, answers, compared: answers.length > 1, view: null};
    turn.view = new TurnView(message, {
      edit: (text) => this.#edit(turn, text),
      remove: () => this.#remove(turn),
    }, pictures);
    conversation.turns.push(turn);
    this.#page.root.append(turn.view.element);
    if (answers.length > 0) this.#showAnswers(turn);
    else turn.view.showLack(() => this.#tryAgain(turn));
    return turn;
  }

  #showAnswers(turn) {
    turn.view.clear(turn.compared);
    for (const one of turn.answers) this.#makeView(turn, one).finish(one.answer, this.#footOf(turn, one));
    if (turn.compared) this.#showVerdict(turn);
  }

  #makeView({compared, view}, {speculative, asJson}) {
    const title = !speculative ? 'Plain decoding' : compared ? 'With speculation' : 'Answer';
    return view.addAnswer(title, {titled: compared, blockSize: this.#settings.blockSize, asJson});
  }

  #footOf(turn, one) {
    const {speculative, seed, notes, answer} = one;
    const left = answer.finish === null && notes.length === 0;
    return {
      seed,
      notes: left ? ['The page was left before this answer was complete.'] : notes,
      goOn: this.#canGoOn(turn, one) ? () => this.#answer(turn, one) : null,
      regenerate: speculative ? () => this.#answer(turn) : null,
    };
  }

  // Two answers that are compared take the same way to their end, and the grammar of JSON would begin anew.
  #canGoOn({compared}, {speculative, asJson, answer}) {
    const cut = answer.finish === null || answer.finish === 'length';
    return cut && speculative && !compared && !asJson && answer.trace.content !== '' && !this.#isFull(answer);
  }

  #isFull(answer) {
    return contextUse(answer.context, this.#settings.contextLength)?.full ?? false;
  }

  #showVerdict(turn) {
    const [ours, plain] = turn.answers.map(({answer}) => answer);
    const {text, rates} = verdict(ours, plain);
    turn.view.showVerdict(text, rates);
  }

  // `continued`: the turn's answer, which goes on; null: another takes its place.
  async #answer(turn, continued = null) {
    if (this.#running || !(await this.#dropAfter(turn))) return;
    this.#tryAgain(turn, continued);
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

  #tryAgain(turn, continued = null) {
    const fields = this.#running ? null : this.#usableFields();
    if (fields) this.#run(turn, fields, continued);
  }

  // Null, and the reader is led to the field, if a setting cannot be used.
  #usableFields() {
    const {fields, field} = this.#settings.read();
    if (!field) return fields;
    this.#page.leadTo(field);
    return null;
  }

  #messagesFor(turn, continued) {
    const {system} = this.#settings;
    const messages = system === '' ? [] : [{role: 'system', content: system}];
    const {turns} = this.#conversation;
    for (const {message, pictures, answers} of turns.slice(0, turns.indexOf(turn))) {
      const reply = answers[0]?.answer.trace.content;
      if (reply) messages.push({role: 'user', content: contentOf(message, pictures)}, {role: 'assistant', content: reply});
    }
    messages.push({role: 'user', content: contentOf(turn.message, turn.pictures)});
    if (continued) {
      const {content, thoughts} = continued.answer.trace;
      messages.push({role: 'assistant', content, ...(thoughts && {reasoning_content: thoughts})});
    }
    return messages;
  }

  // -- requests

  // `continued`: as for #answer. With its seed it becomes what it would have been, had it not been cut.
  async #run(turn, fields, continued = null) {
    const conversation = this.#conversation;
    const compared = !continued && this.#page.isCompared();
    const seed = continued?.seed ?? fields.seed ?? Math.floor(Math.random() * 2 ** 32);
    const body = {...fields, seed, messages: this.#messagesFor(turn, continued)};
    if (continued) {
      body.continue_final_message = true;
      delete body.response_format; // it began as free text
    }
    const asJson = body.response_format !== undefined;
    turn.compared = compared;
    turn.view.clear(compared);
    // The button that asked for this may be gone.
    if (document.activeElement === document.body) turn.view.takeFocus();
    const controller = this.#beginRunning();
    const {signal} = controller;
    // Both stand there from the start, so that nothing moves aside for the second.
    const fresh = (compared ? [true, false] : [true]).map((speculative) => ({speculative, seed, asJson, notes: []}));
    const planned = continued ? [continued] : fresh;
    const views = planned.map((one) => this.#makeView(turn, one));
    turn.answers = planned.filter(({answer}) => answer);
    this.#page.follower.toEnd();
    this.#save(conversation);
    let view = views[0];
    try {
      for (const [i, one] of planned.entries()) {
        if (signal.aborted) break;
        // One after the other: side by side they would share each step, and neither would be itself.
        view = views[i];
        // Neither finds its prompt in the cache, where the other one or an earlier turn has left it.
        const asked = compared ? {...body, cache_salt: newId()} : body;
        await this.#runAnswer(conversation, turn, one, {view, body: asked, signal});
      }
      const [first] = turn.answers;
      if (turn.answers.length > 1) this.#page.showReadout(first.answer);
      this.#announceEnd(first.answer, signal.aborted);
    } catch (error) {
      this.#showFailure(view, error, () => this.#tryAgain(turn, continued));
    } finally {
      for (const unused of views.slice(views.indexOf(view) + 1)) unused.element.remove();
      if (compared) this.#showVerdict(turn);
      // Kept first: who sees that the answer is there may leave the page at once.
      await this.#save(conversation).finally(() => {
        // Another conversation may be on the screen by now, with a request of its own.
        if (this.#running !== controller) return;
        this.#endRunning();
        this.#page.follower.keep();
      });
    }
  }

  // Streams one answer into its view. Throws what streamChat throws, except that a stopped answer is an answer.
  async #runAnswer(conversation, turn, one, {view, body, signal}) {
    if (!one.answer) turn.answers.push(one);
    one.answer = one.answer?.resumed(performance.now()) ?? new Answer(performance.now());
    one.notes = [];
    view.update(one.answer);
    view.begin();
    const drawer = frameDrawer(this.#page.follower, () => {
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
    one.notes = notesOn(one, signal.aborted, this.#isFull(one.answer));
    view.finish(one.answer, this.#footOf(turn, one));
    drawer.now();
  }

  #showFailure(view, error, retry) {
    if (!(error instanceof ApiFailure)) console.error(error);
    const sentence = error instanceof ApiFailure ? error.message : `The page failed on this answer: ${error.message}`;
    view.fail(sentence, retry);
    if (error.status === 401) this.#page.askForKey(error.message, retry);
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
  const title = turns[0].message.trim().split('\n', 1)[0].slice(0, 80) || 'Picture';
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
    turns: turns.map(({message, pictures, answers}) => ({
      message,
      ...(pictures.length > 0 && {pictures}),
      answers: answers.map(plain),
    })),
  };
}

// The notes are what the reader could otherwise misread.
function notesOn({speculative, answer}, stopped, full) {
  const notes = [];
  if (stopped) notes.push('Stopped.');
  if (answer.finish === 'length') {
    notes.push(full ? 'Cut off: the model’s context is full.' : 'Cut off at the token limit.');
  }
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
// each time.
function frameDrawer(follower, draw) {
  let asked = 0;
  let timer = 0;
  let next = 0; // not before
  const now = () => {
    cancelAnimationFrame(asked);
    clearTimeout(timer);
    asked = timer = 0;
    const start = performance.now();
    follower.look();
    draw();
    follower.keep();
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
