// The settings panel: what it holds goes into each request and stays in this browser; the API key stays in its tab.
import {SchemaBox} from './schema_box.js';

const kStored = 'volley.settings';
const kKey = 'volley.key';
const kThinking = 'volley.thinking';
const kIntegers = ['top_k', 'seed', 'max_tokens'];
const kNumbers = [
  'temperature',
  'top_p',
  'min_p',
  'repetition_penalty',
  'presence_penalty',
  'frequency_penalty',
  ...kIntegers,
];
const kTexts = ['system', 'stop', 'schema', 'reasoning_effort'];

// A browser may keep nothing for a page (private windows, policies): the page works without.
export const kept = {
  get(store, name) {
    try {
      return globalThis[store].getItem(name);
    } catch {
      return null;
    }
  },
  set(store, name, value) {
    try {
      if (value === null) globalThis[store].removeItem(name);
      else globalThis[store].setItem(name, value);
    } catch {
      // Nothing to do about it: the value lives as long as the page.
    }
  },
};

export class Settings {
  #form;
  #schema;
  #thinking;
  #models = new Map(); // id → what the server says of it

  // `thinking`: the switch, which stands beside the composer.
  constructor(form, thinking) {
    this.#form = form;
    this.#thinking = thinking;
    this.#schema = new SchemaBox(form.elements.schema, form.querySelector('#schema-message'));
    this.#restore();
    this.#schema.check();
    form.elements.model.addEventListener('change', () => this.#showDefaults());
    thinking.addEventListener('change', () => kept.set('localStorage', kThinking, thinking.checked ? 'on' : 'off'));
    form.addEventListener('input', () => this.#store());
    form.addEventListener('submit', (event) => event.preventDefault());
  }

  get key() {
    return this.#form.elements.api_key.value.trim();
  }

  set key(value) {
    this.#form.elements.api_key.value = value;
    kept.set('sessionStorage', kKey, value || null);
  }

  get system() {
    return this.#form.elements.system.value;
  }

  get model() {
    return this.#form.elements.model.value;
  }

  // Tokens of a block, as far as the server tells.
  get blockSize() {
    return this.#card.block_size ?? 16;
  }

  // Whether it drafts, as far as the server tells.
  get speculates() {
    return (this.#card.block_size ?? 2) > 1;
  }

  // Tokens that the model's context holds; null where the server does not tell.
  get contextLength() {
    return this.#models.get(this.model)?.max_model_len ?? null;
  }

  get seesPictures() {
    return this.#models.get(this.model)?.modalities?.includes('image') ?? false;
  }
  get #card() {
    return this.#models.get(this.model)?.volley ?? {};
  }

  // The request's fields, those left empty absent. `field` is the first input that cannot be used, or null.
  read() {
    const fields = {};
    for (const name of kNumbers) {
      const input = this.#form.elements[name];
      const wrong = !input.validity.valid;
      input.setAttribute('aria-invalid', String(wrong));
      if (wrong) return {fields, field: input};
      if (input.value !== '') fields[name] = input.valueAsNumber;
    }
    if (this.#form.elements.stop.value !== '') fields.stop = [this.#form.elements.stop.value];
    if (this.model !== '') fields.model = this.model;
    const schema = this.#schema.check();
    if (schema === undefined) return {fields, field: this.#form.elements.schema};
    if (schema) fields.response_format = {type: 'json_schema', json_schema: {name: 'answer', schema}};
    this.#addChatSampling(fields);
    this.#readThinking(fields);
    return {fields, field: null};
  }

  // What chats should ask for where nothing is said, as far as the server would not take it by itself.
  #addChatSampling(fields) {
    const {default_sampling: usual = {}, chat_sampling: chat = {}} = this.#card;
    for (const [name, value] of Object.entries(chat)) {
      if (value !== usual[name] && fields[name] === undefined) fields[name] = value;
    }
  }

  // Only what the model's template reads, and only where it is not what the template does by itself.
  #readThinking(fields) {
    const {thinking = null, reasoning_effort: readsEffort = false} = this.#card;
    if (thinking !== null && this.#thinking.checked !== thinking) {
      fields.chat_template_kwargs = {enable_thinking: this.#thinking.checked};
    }
    const effort = this.#form.elements.reasoning_effort.value;
    if (readsEffort && effort !== '') fields.reasoning_effort = effort;
  }

  // `models`: the list of GET v1/models.
  offerModels(models) {
    this.#models = new Map(models.map((model) => [model.id, model]));
    const ids = [...this.#models.keys()];
    const select = this.#form.elements.model;
    const chosen = select.value;
    select.replaceChildren(...ids.map((id) => new Option(id, id)));
    if (ids.includes(chosen)) select.value = chosen;
    select.closest('label').hidden = ids.length < 2;
    this.#showDefaults();
  }

  // An empty field shows the value that is taken for it.
  #showDefaults() {
    const {default_sampling: usual = {}, chat_sampling: sampling = usual, thinking = null, reasoning_effort: readsEffort = false} = this.#card;
    for (const [name, value] of Object.entries(sampling)) {
      const off = name === 'top_k' && value < 1;
      if (this.#form.elements[name]) this.#form.elements[name].placeholder = off ? 'off' : String(value);
    }
    if (this.contextLength) this.#form.elements.max_tokens.placeholder = `up to ${this.contextLength}`;
    this.#thinking.closest('label').hidden = thinking === null;
    const stored = kept.get('localStorage', kThinking);
    this.#thinking.checked = stored === null ? thinking === true : stored === 'on';
    this.#form.querySelector('#effort-field').hidden = !readsEffort;
  }

  reset() {
    for (const name of [...kNumbers, ...kTexts]) this.#form.elements[name].value = '';
    kept.set('localStorage', kThinking, null);
    this.#schema.check();
    this.#showDefaults();
    this.#store();
  }

  #restore() {
    this.#form.elements.api_key.value = kept.get('sessionStorage', kKey) ?? '';
    try {
      const stored = JSON.parse(kept.get('localStorage', kStored) ?? '{}');
      for (const name of [...kNumbers, ...kTexts]) this.#form.elements[name].value = stored[name] ?? '';
    } catch {
      // Not what this page wrote: the fields stay empty.
    }
  }

  #store() {
    const values = [...kNumbers, ...kTexts].map((name) => [name, this.#form.elements[name].value]);
    kept.set('localStorage', kStored, JSON.stringify(Object.fromEntries(values.filter(([, value]) => value !== ''))));
    kept.set('sessionStorage', kKey, this.key || null);
  }
}
