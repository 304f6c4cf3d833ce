// Puts the page together: the composer, the buttons of the bar, and one request after the other.
import {Answer, format, verdict} from './answer.js';
import {ApiFailure, listModels, streamChat} from './chat_client.js';
import {TurnView} from './conversation.js';
import {Settings, kept} from './settings.js';

const $ = (id) => document.getElementById(id);
const settings = new Settings($('settings-form'));
const conversation = $('conversation');
const welcome = $('welcome');
const wide = matchMedia('(min-width: 60rem)');

let turns = []; // {message, reply}: reply is null until there is one
let running = null; // the AbortController of what is being answered

// -- one turn

function messagesFor(turn) {
  const messages = settings.system === '' ? [] : [{role: 'system', content: settings.system}];
  for (const {message, reply} of turns.slice(0, turns.indexOf(turn))) {
    if (reply) messages.push({role: 'user', content: message}, {role: 'assistant', content: reply});
  }
  messages.push({role: 'user', content: turn.message});
  return messages;
}

// The notes are what the reader could otherwise misread.
function notesOn(answer, speculation, stopped) {
  const notes = [];
  if (stopped) notes.push('Stopped.');
  if (answer.finish === 'length') notes.push('Cut off at the token limit.');
  if (answer.finish !== null && !answer.trace.reported)
    notes.push('This server does not report its blocks, so none are drawn.');
  if (
    speculation &&
    answer.finish !== null &&
    answer.trace.reported &&
    answer.trace.drafted === 0 &&
    answer.tokens > 1
  ) {
    notes.push('Nothing was drafted: this server decodes plainly.');
  }
  return notes;
}

function showReadout(answer) {
  $('readout-rate').textContent = format.rate(answer?.rate ?? null);
  $('readout-length').textContent = format.length(answer?.trace.acceptanceLength ?? null);
  $('readout-first').textContent = format.time(answer?.firstToken ?? null);
}

// Draws at most once a frame, however many chunks arrive. Follows the text if the reader is at its end.
function frameDrawer(draw) {
  let asked = 0;
  const now = () => {
    cancelAnimationFrame(asked);
    asked = 0;
    const follows = conversation.scrollHeight - conversation.scrollTop - conversation.clientHeight < 120;
    draw();
    if (follows) conversation.scrollTop = conversation.scrollHeight;
  };
  return {now, soon: () => (asked ||= requestAnimationFrame(now))};
}

// Streams one answer into its view. Throws what streamChat throws, except that a stopped answer is an answer.
async function runAnswer(view, body, speculation, signal) {
  const answer = new Answer(performance.now());
  const drawer = frameDrawer(() => {
    view.update(answer);
    showReadout(answer);
  });
  const volley = speculation ? {blocks: true} : {blocks: true, speculation: false};
  try {
    for await (const chunk of streamChat({...body, volley}, {key: settings.key, signal})) {
      answer.take(chunk, performance.now());
      drawer.soon();
    }
  } catch (error) {
    drawer.now();
    if (!signal.aborted) throw error;
  }
  view.finish(answer, {seed: body.seed, notes: notesOn(answer, speculation, signal.aborted)});
  drawer.now();
  return answer;
}

async function runTurn(turn, fields) {
  const compared = $('compare').checked;
  const seed = fields.seed ?? Math.floor(Math.random() * 2 ** 32);
  const body = {...fields, seed, messages: messagesFor(turn)};
  const signal = beginRunning();
  turn.view.clear(compared);
  let view;
  try {
    view = turn.view.addAnswer(compared ? 'With speculation' : 'Answer', compared);
    const answer = await runAnswer(view, body, true, signal);
    turn.reply = answer.trace.text;
    if (compared && !signal.aborted) {
      // One after the other: side by side they would share each step, and neither would be itself.
      view = turn.view.addAnswer('Plain decoding', true);
      const plain = await runAnswer(view, body, false, signal);
      showReadout(answer);
      const {text, rates} = verdict(answer, plain);
      turn.view.showVerdict(text, rates);
    }
    announceEnd(answer, signal.aborted);
  } catch (error) {
    if (!(error instanceof ApiFailure)) console.error(error);
    const sentence = error instanceof ApiFailure ? error.message : `The page failed on this answer: ${error.message}`;
    view.fail(sentence, () => tryAgain(turn));
    if (error.status === 401) askForKey(error.message, () => tryAgain(turn));
  } finally {
    endRunning();
    conversation.scrollTop = conversation.scrollHeight;
  }
}

function announceEnd(answer, stopped) {
  const length = answer.trace.acceptanceLength;
  const steps = length === null ? '' : `, ${format.length(length)} tokens per step`;
  $('status').textContent =
    `${stopped ? 'Stopped' : 'Answer complete'}: ${format.count(answer.tokens)} tokens${steps}.`;
}

function beginRunning() {
  running = new AbortController();
  swapButtons($('send'), $('stop'));
  $('status').textContent = 'Answering.';
  return running.signal;
}

function endRunning() {
  running = null;
  swapButtons($('stop'), $('send'));
}

// The button that goes takes no focus with it.
function swapButtons(gone, shown) {
  const focused = document.activeElement === gone;
  gone.hidden = true;
  shown.hidden = false;
  if (focused) shown.focus();
}

// Null, and the reader is led to the field, if a setting cannot be used.
function usableFields() {
  const {fields, field} = settings.read();
  if (!field) return fields;
  showSettings(true);
  field.focus();
  field.reportValidity();
  return null;
}

function tryAgain(turn) {
  const fields = running ? null : usableFields();
  if (fields) runTurn(turn, fields);
}

function submit(message) {
  if (running || message.trim() === '') return;
  const fields = usableFields();
  if (!fields) return;
  const turn = {message, reply: null, view: new TurnView(message)};
  turns.push(turn);
  welcome.hidden = true;
  conversation.append(turn.view.element);
  conversation.scrollTop = conversation.scrollHeight;
  $('prompt').value = '';
  fitPrompt();
  runTurn(turn, fields);
}

// -- composer

function fitPrompt() {
  const prompt = $('prompt');
  prompt.style.height = 'auto';
  prompt.style.height = `${Math.min(prompt.scrollHeight + 2, 240)}px`;
}

$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  submit($('prompt').value);
});
$('prompt').addEventListener('input', fitPrompt);
$('prompt').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit($('prompt').value);
});
$('stop').addEventListener('click', () => running?.abort());
for (const example of document.querySelectorAll('.example')) {
  example.addEventListener('click', () => {
    submit(example.textContent);
    $('prompt').focus({preventScroll: true});
  });
}

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
  running?.abort();
  for (const turn of turns) turn.view.element.remove();
  turns = [];
  welcome.hidden = false;
  showReadout(null);
  $('status').textContent = 'New chat.';
  $('prompt').focus();
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

// -- settings: beside the conversation where there is room, over it on a small screen

function showSettings(open) {
  $('settings').hidden = !open;
  $('open-settings').setAttribute('aria-expanded', String(open));
  coverMain();
}
function coverMain() {
  const covered = !$('settings').hidden && !wide.matches;
  $('main').inert = covered;
  document.querySelector('.bar').inert = covered;
}
wide.addEventListener('change', coverMain);
$('open-settings').addEventListener('click', () => {
  showSettings($('settings').hidden);
  if (!$('settings').hidden) $('close-settings').focus();
});
function closeSettings() {
  showSettings(false);
  $('open-settings').focus();
}
$('close-settings').addEventListener('click', closeSettings);
$('reset-settings').addEventListener('click', () => settings.reset());
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || event.isComposing || $('key-dialog').open) return;
  if ($('settings').contains(document.activeElement)) closeSettings();
  else running?.abort();
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

function showModel() {
  if (settings.model !== '') $('model-name').textContent = settings.model;
}
$('settings-form').addEventListener('change', showModel);

// Runs `then` once the server has let us in. A server that still loads its model is asked again.
async function offerModels(then = () => {}) {
  try {
    const models = await listModels(settings.key);
    settings.offerModels(models.map(({id}) => id));
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
