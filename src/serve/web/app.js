// Puts the page together: the composer, the buttons of the bar, the two panels, and what the server offers.
import {contextUse, format} from './answer.js';
import {Chat} from './chat.js';
import {listModels} from './chat_client.js';
import {make, makeButton} from './dom.js';
import {Follower} from './follow.js';
import {History} from './history.js';
import {PictureTray} from './pictures.js';
import {Settings, kept} from './settings.js';
import {Store} from './store.js';
import {welcomeFor} from './welcome.js';

const $ = (id) => document.getElementById(id);
const kCurrent = 'volley.conversation';
const settings = new Settings($('settings-form'), $('thinking'));
const store = new Store();
const wide = matchMedia('(min-width: 60rem)');
const touched = matchMedia('(pointer: coarse)');
const follower = new Follower($('conversation'), $('to-end'));
const chat = new Chat(
  {
    root: $('conversation'),
    follower,
    isCompared: () => $('compare').checked && settings.speculates,
    leadTo,
    showReadout,
    showRunning,
    announce: (sentence) => ($('status').textContent = sentence),
    changed: showConversation,
    askForKey,
  },
  settings,
  store,
);
const history = new History($('history'), store, {
  get id() {
    return chat.id;
  },
  open: (conversation) => {
    chat.open(conversation);
    if (!wide.matches) panels.history.close();
    focusPrompt();
  },
  startNew: () => chat.startNew({discard: true}),
});

function leadTo(field) {
  panels.settings.show(true);
  field.focus();
  field.reportValidity();
}

function showReadout(answer) {
  $('readout-rate').textContent = format.rate(answer?.rate ?? null);
  $('readout-length').textContent = format.length(answer?.trace.acceptanceLength ?? null);
  $('readout-first').textContent = format.time(answer?.firstToken ?? null);
  showContext();
}

function showContext() {
  const use = contextUse(chat.context, settings.contextLength);
  const meter = $('context');
  meter.hidden = use === null;
  if (!use) return;
  meter.textContent = use.text;
  meter.title = use.figures;
  meter.setAttribute('aria-valuenow', use.share);
  meter.setAttribute('aria-valuetext', use.figures);
  meter.style.setProperty('--share', use.share);
  meter.classList.toggle('near', use.near);
  meter.classList.toggle('full', use.full);
}

// The turns are another conversation's, or were kept: the welcome, this tab's memory and the list follow.
function showConversation() {
  $('welcome').hidden = !chat.isEmpty;
  kept.set('sessionStorage', kCurrent, chat.isEmpty ? null : chat.id);
  if (!$('history').hidden) history.show();
  showContext();
}

// Under a finger it would open a keyboard over the text.
function focusPrompt() {
  if (!touched.matches) $('prompt').focus({preventScroll: true});
}

// When an answer ends, the message field gets the focus that the reader has left where it was.
let focused = null;
function showRunning(running) {
  if (running) {
    swapButtons($('send'), $('stop'));
    focused = document.activeElement;
  } else {
    swapButtons($('stop'), $('send'));
    if ([focused, document.body, $('send')].includes(document.activeElement)) focusPrompt();
  }
}

// The button that goes takes no focus with it.
function swapButtons(gone, shown) {
  const focused = document.activeElement === gone;
  gone.hidden = true;
  shown.hidden = false;
  if (focused) shown.focus();
}

// -- composer

function fitPrompt() {
  const prompt = $('prompt');
  prompt.style.height = 'auto';
  prompt.style.height = `${Math.min(prompt.scrollHeight + 2, 240)}px`;
}

const tray = new PictureTray($('composer'), () => settings.seesPictures);

function submit(message = $('prompt').value) {
  if (!chat.submit(message, tray)) return false;
  $('prompt').value = '';
  fitPrompt();
  return true;
}

$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  submit();
});
$('prompt').addEventListener('input', fitPrompt);
$('prompt').addEventListener('keydown', (event) => {
  const page = {PageUp: -1, PageDown: 1}[event.key];
  if (page && $('prompt').scrollHeight <= $('prompt').clientHeight) {
    event.preventDefault();
    follower.page(page);
  }
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
$('stop').addEventListener('click', () => chat.stop());
$('to-end').addEventListener('click', focusPrompt);

function keepSwitch(id, apply = () => {}) {
  const input = $(id);
  const name = `volley.${id}`;
  const stored = kept.get('localStorage', name);
  if (stored !== null) input.checked = stored === 'on';
  apply(input.checked);
  input.addEventListener('change', () => {
    kept.set('localStorage', name, input.checked ? 'on' : 'off');
    apply(input.checked);
  });
}
keepSwitch('compare');
keepSwitch('show-blocks', (on) => document.body.classList.toggle('no-blocks', !on));

// -- bar

$('new-chat').addEventListener('click', () => {
  chat.startNew();
  $('status').textContent = 'New chat.';
  focusPrompt();
});

const prefersDark = matchMedia('(prefers-color-scheme: dark)');
function isDark() {
  const {theme} = document.documentElement.dataset;
  return theme ? theme === 'dark' : prefersDark.matches;
}
function showTheme() {
  $('theme').setAttribute('aria-pressed', String(isDark()));
}
$('theme').addEventListener('click', () => {
  const theme = isDark() ? 'light' : 'dark';
  document.documentElement.dataset.theme = theme;
  kept.set('localStorage', 'volley.theme', theme);
  showTheme();
});
prefersDark.addEventListener('change', showTheme);
showTheme();

// -- panels: beside the conversation where there is room, over it on a small screen

class Panel {
  #element;
  #opener;
  #closer;
  #shown;

  // `shown`: called when it is.
  constructor(name, shown = () => {}) {
    this.#element = $(name);
    this.#opener = $(`open-${name}`);
    this.#closer = $(`close-${name}`);
    this.#shown = shown;
    this.#opener.addEventListener('click', () => {
      this.show(!this.isOpen);
      if (this.isOpen) this.#closer.focus();
    });
    this.#closer.addEventListener('click', () => this.close());
  }

  get isOpen() {
    return !this.#element.hidden;
  }
  holds(element) {
    return this.#element.contains(element);
  }

  show(open) {
    this.#element.hidden = !open;
    this.#opener.setAttribute('aria-expanded', String(open));
    coverMain();
    if (open) this.#shown();
  }

  close() {
    this.show(false);
    this.#opener.focus();
  }
}

const panels = {settings: new Panel('settings'), history: new Panel('history', () => history.show())};

function coverMain() {
  const covering = wide.matches ? undefined : Object.values(panels).find((panel) => panel.isOpen);
  $('main').inert = Boolean(covering);
  document.querySelector('.bar').inert = Boolean(covering);
}
wide.addEventListener('change', coverMain);
$('reset-settings').addEventListener('click', () => settings.reset());
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || event.isComposing || document.querySelector('dialog[open]')) return;
  const panel = Object.values(panels).find((one) => one.holds(document.activeElement));
  if (panel) panel.close();
  else chat.stop();
});

// -- the key, and what the server offers

let afterKey = () => {};
function askForKey(message, then) {
  afterKey = then;
  $('key-message').textContent = message;
  $('key-input').value = '';
  if (!$('key-dialog').open) $('key-dialog').showModal();
}
$('key-form').addEventListener('submit', () => {
  settings.key = $('key-input').value.trim();
  offerModels(afterKey);
});
$('key-cancel').addEventListener('click', () => $('key-dialog').close());

// Without a drafter there is nothing to compare, and no block to show.
function showModel() {
  document.body.classList.toggle('plain-server', !settings.speculates);
  $('add-picture').hidden = !settings.seesPictures;
  if (settings.model === '') return;
  $('model-name').textContent = settings.model;
  const {note, examples} = welcomeFor(settings.model);
  $('model-note').textContent = note;
  $('examples').hidden = false;
  $('examples').querySelector('ul').replaceChildren(...examples.map(exampleItem));
  showContext();
}

function exampleItem(text) {
  const item = make('li');
  item.append(makeButton(text, () => submit(text) && focusPrompt(), 'example'));
  return item;
}

$('settings-form').addEventListener('change', showModel);

// Runs `then` once the server has let us in. A server that still loads its model is asked again.
async function offerModels(then = () => {}) {
  try {
    const models = await listModels(settings.key);
    settings.offerModels(models);
    showModel();
    then();
  } catch (error) {
    const [name, again] = {401: ['locked', 0], 503: ['loading …', 1000]}[error.status] ?? ['not reached', 3000];
    $('model-name').textContent = name;
    $('status').textContent = error.message;
    if (error.status === 401) askForKey(error.message, then);
    if (again > 0) setTimeout(() => offerModels(then), again);
  }
}
offerModels();

// A reload goes on where this tab was.
async function restore() {
  const id = kept.get('sessionStorage', kCurrent);
  const conversation = id === null ? null : await store.get(id).catch(() => null);
  if (conversation && chat.isEmpty) chat.open(conversation);
}
restore();
focusPrompt();
