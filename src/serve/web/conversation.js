// What a turn of the conversation looks like: a message, and one or two answers to it.
import {format} from './answer.js';
import {Strip} from './strip.js';
import {TextView} from './text_view.js';

function make(tag, className = '', text = '') {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

function makeButton(text, act) {
  const button = make('button', 'quiet', text);
  button.type = 'button';
  button.addEventListener('click', () => act(button));
  return button;
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages without TLS have no clipboard interface.
    const area = document.body.appendChild(make('textarea', 'hidden'));
    area.value = text;
    area.select();
    document.execCommand('copy');
    area.remove();
    button.focus();
  }
  button.textContent = 'Copied';
  setTimeout(() => (button.textContent = 'Copy'), 1500);
}

export class TurnView {
  element = make('section', 'turn');
  #answers = make('div', 'answers');
  #verdict = make('div', 'verdict');

  constructor(message) {
    const bubble = make('div', 'message');
    bubble.append(make('h2', 'hidden', 'You'), make('p', '', message));
    this.#verdict.hidden = true;
    this.element.append(bubble, this.#answers, this.#verdict);
    this.element.setAttribute('aria-label', 'Turn');
  }

  // Removes what was there: a turn can be tried again.
  clear(compared) {
    this.#answers.replaceChildren();
    this.#answers.classList.toggle('compared', compared);
    this.#verdict.hidden = true;
  }

  addAnswer(title, titleShown) {
    const view = new AnswerView(title, titleShown);
    this.#answers.append(view.element);
    return view;
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
  #heading;
  #text = make('div', 'answer-text');
  #textView = new TextView(this.#text);
  #reasoning = make('details', 'reasoning');
  #strip;
  #figures = {};
  #foot = make('div', 'answer-foot');

  constructor(title, titleShown) {
    this.#heading = make('h3', titleShown ? 'answer-title' : 'hidden', title);
    this.#reasoning.append(make('summary', '', 'Reasoning'), make('div', 'reasoning-text'));
    this.#reasoning.hidden = true;
    const strip = make('figure', 'strip');
    strip.hidden = true;
    const scroller = strip.appendChild(make('div', 'strip-scroller'));
    scroller.setAttribute('role', 'img');
    scroller.tabIndex = 0;
    this.#strip = new Strip(strip);
    const list = make('dl', 'figures');
    for (const [name, label] of kFigures) {
      const pair = list.appendChild(make('div'));
      this.#figures[name] = make('dd', '', '–');
      this.#figures[name].dataset.figure = name;
      pair.append(make('dt', '', label), this.#figures[name]);
    }
    this.#foot.append(list);
    this.element.append(this.#heading, this.#reasoning, this.#text, strip, this.#foot);
    this.element.setAttribute('aria-busy', 'true');
    this.element.setAttribute('aria-label', title);
  }

  update(answer) {
    if (answer.reasoning !== '') {
      this.#reasoning.hidden = false;
      this.#reasoning.lastElementChild.textContent = answer.reasoning;
    }
    this.#textView.update(answer.trace);
    this.#strip.update(answer.trace.steps);
    for (const [name, , text] of kFigures) this.#figures[name].textContent = text(answer);
    this.#figures.share.parentElement.hidden = answer.acceptedShare === null;
  }

  // `notes`: sentences about this answer. `details`: short facts that go beside the figures.
  finish(answer, {seed, notes}) {
    this.update(answer);
    this.element.setAttribute('aria-busy', 'false');
    for (const note of notes) this.#foot.append(make('p', 'note', note));
    const actions = make('p', 'actions');
    if (answer.trace.text !== '') {
      actions.append(makeButton('Copy', (button) => copyText(answer.trace.text, button)));
    }
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
