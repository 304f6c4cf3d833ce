// The settings panel: what it holds goes into each request and stays in this browser; the API key stays in its tab.

const kStored = 'volley.settings';
const kKey = 'volley.key';
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
const kTexts = ['system', 'stop'];

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

  constructor(form) {
    this.#form = form;
    this.#restore();
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
    return {fields, field: null};
  }

  offerModels(ids) {
    const select = this.#form.elements.model;
    const chosen = select.value;
    select.replaceChildren(...ids.map((id) => new Option(id, id)));
    if (ids.includes(chosen)) select.value = chosen;
    select.closest('label').hidden = ids.length < 2;
  }

  reset() {
    for (const name of [...kNumbers, ...kTexts]) this.#form.elements[name].value = '';
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
