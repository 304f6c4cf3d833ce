// What a turn of the conversation looks like: a message, and one or two answers to it.
import {format} from './answer.js';
import {copyText, make, makeButton} from './dom.js';
import {thumbnail} from './pictures.js';
import {Strip} from './strip.js';
import {TextView, paintThoughts} from './text_view.js';

export class TurnView {
  element = make('div', 'turn');
  #bubble = make('div', 'message');
  #answers = make('div', 'answers');
  #verdict = make('div', 'verdict');
  #acts;
  #pictures;

  // `acts`: {edit(message), remove()}, what the reader may do with a message. `pictures`: data: URLs.
  constructor(message, acts, pictures = []) {
    this.#acts = acts;
    this.#pictures = pictures;
    this.#verdict.hidden = true;
    this.element.append(this.#bubble, this.#answers, this.#verdict);
    this.element.setAttribute('role', 'group');
    this.element.setAttribute('aria-label', 'Turn');
    this.showMessage(message);
  }

  showMessage(message) {
    const actions = make('p', 'actions');
    actions.append(
      makeButton('Edit', () => this.#editMessage(message)),
      makeButton('Delete', () => this.#acts.remove()),
    );
    const shown = this.#pictures.map((url, i) => thumbnail(url, i + 1));
    this.#bubble.replaceChildren(make('h2', 'hidden', 'You'), ...shown, make('p', 'said', message), actions);
  }

  takeFocus() {
    this.#bubble.querySelector('button').focus({preventScroll: true});
  }

  #editMessage(message) {
    const form = make('form', 'edit');
    const area = form.appendChild(make('textarea'));
    area.value = message;
    area.rows = Math.min(12, message.split('\n').length + 1);
    area.setAttribute('aria-label', 'Message');
    const send = make('button', 'primary', 'Send again');
    const close = () => {
      this.showMessage(message);
      this.takeFocus();
    };
    form.append(send, makeButton('Cancel', close, ''));
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      if (area.value.trim() !== '') this.#acts.edit(area.value);
    });
    area.addEventListener('keydown', (event) => {
      if (event.isComposing) return;
      if (event.key === 'Enter' && !event.shiftKey) {
        event.preventDefault();
        form.requestSubmit();
      } else if (event.key === 'Escape') {
        event.stopPropagation();
        close();
      }
    });
    this.#bubble.replaceChildren(make('h2', 'hidden', 'You'), form);
    area.focus();
  }

  // Removes what was there: a turn can be tried again.
  clear(compared) {
    this.#answers.replaceChildren();
    this.#answers.classList.toggle('compared', compared);
    this.#verdict.replaceChildren(make('p', '', 'Compared when both answers are complete.'));
    this.#verdict.hidden = !compared;
  }

  addAnswer(title, options) {
    const view = new AnswerView(title, options);
    this.#answers.append(view.element);
    return view;
  }

  showLack(retry) {
    const box = make('div', 'failure');
    box.append(make('p', '', 'There is no answer to this message.'), makeButton('Try again', retry));
    this.#answers.replaceChildren(box);
  }

  // `rates`: tokens per second with speculation and without, or null where they say nothing.
  showVerdict(text, rates) {
    this.#verdict.replaceChildren(make('p', '', text));
    if (rates) this.#verdict.append(race(rates));
    this.#verdict.hidden = false;
  }
}

// Two bars, as long as the rates are high.
function race([ours, plain]) {
  const list = make('dl', 'race');
  for (const [label, rate, name] of [
    ['with speculation', ours, 'ours'],
    ['plain decoding', plain, 'plain'],
  ]) {
    const bar = make('dd', name, `${format.rate(rate)} tokens per second`);
    bar.style.setProperty('--share', rate / Math.max(ours, plain));
    list.append(make('dt', '', label), bar);
  }
  return list;
}

const kFigures = [
  ['tokens', 'tokens', (answer) => format.count(answer.tokens)],
  ['rate', 'tokens per second', (answer) => format.rate(answer.rate)],
  ['length', 'tokens per step', (answer) => format.length(answer.trace.acceptanceLength)],
  ['share', 'of drafts accepted', (answer) => format.share(answer.acceptedShare)],
  ['first', 'first token', (answer) => format.time(answer.firstToken)],
];

export class AnswerView {
  element = make('article', 'answer');
  #text = make('div', 'answer-text');
  #textView;
  #thoughts = make('details', 'reasoning');
  #thoughtsText = make('div', 'reasoning-text');
  #strip;
  #figures = {};
  #foot = make('div', 'answer-foot');

  // `titled`: the title is shown and not only read out. `blockSize`: tokens that a step's column may have. `asJson`: the
  // answer is JSON.
  constructor(title, {titled, blockSize, asJson}) {
    this.#textView = new TextView(this.#text, {asJson});
    this.#thoughts.append(make('summary', '', 'Reasoning'), this.#thoughtsText);
    this.#thoughts.hidden = true;
    const strip = make('figure', 'strip');
    const scroller = strip.appendChild(make('div', 'strip-scroller'));
    scroller.setAttribute('role', 'img');
    scroller.setAttribute('aria-label', 'No steps yet');
    scroller.tabIndex = 0;
    this.#strip = new Strip(strip, blockSize);
    const list = make('dl', 'figures');
    for (const [name, label] of kFigures) {
      const pair = list.appendChild(make('div', ['length', 'share'].includes(name) ? 'of-blocks' : ''));
      this.#figures[name] = make('dd', '', '–');
      this.#figures[name].dataset.figure = name;
      pair.append(make('dt', '', label), this.#figures[name]);
    }
    this.#foot.append(list);
    const heading = make('h3', titled ? 'answer-title' : 'hidden', title);
    this.element.append(heading, this.#thoughts, this.#text, strip, this.#foot);
    this.element.setAttribute('aria-label', title);
  }

  // It is being written, or will be when the one beside it is complete.
  begin() {
    this.element.setAttribute('aria-busy', 'true');
  }

  update(answer) {
    if (answer.trace.contentStart > 0) {
      this.#thoughts.hidden = false;
      paintThoughts(answer.trace, this.#thoughtsText);
    }
    this.#textView.update(answer.trace);
    this.#strip.update(answer.trace.steps);
    for (const [name, , text] of kFigures) this.#figures[name].textContent = text(answer);
  }

  // `notes`: sentences about this answer. `goOn`: null where it is complete. `regenerate`: null where that is another
  // answer's.
  finish(answer, {seed, notes, goOn, regenerate}) {
    this.update(answer);
    this.element.setAttribute('aria-busy', 'false');
    for (const note of notes) this.#foot.append(make('p', 'note', note));
    const actions = make('p', 'actions');
    if (answer.trace.content !== '') {
      actions.append(makeButton('Copy', (button) => copyText(answer.trace.content, button)));
    }
    if (goOn) actions.append(makeButton('Continue', goOn));
    if (regenerate) actions.append(makeButton('Regenerate', regenerate));
    actions.append(make('span', 'seed', `seed ${seed}`));
    this.#foot.append(actions);
  }

  fail(sentence, retry) {
    this.element.setAttribute('aria-busy', 'false');
    const box = make('div', 'failure');
    box.setAttribute('role', 'alert');
    box.append(make('p', '', sentence), makeButton('Try again', retry));
    this.#foot.before(box);
  }
}
