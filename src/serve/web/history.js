// The panel of kept conversations: choose, export, import, delete.
import {confirmed, showNotice} from './dialogs.js';
import {make, makeButton, saveFile} from './dom.js';
import {StoreFailure, conversationsOf, fileOf} from './store.js';

const kTimes = new Intl.DateTimeFormat([], {dateStyle: 'medium', timeStyle: 'short'});
const kMostFileBytes = 64 * 1024 * 1024;

export class History {
  #panel;
  #store;
  #chat;
  #list;

  // `chat`: {id, open(conversation), startNew()}, what is on the screen.
  constructor(panel, store, chat) {
    this.#panel = panel;
    this.#store = store;
    this.#chat = chat;
    this.#list = panel.querySelector('ul');
    const [exporter, importer, clearer] = ['export-all', 'import', 'delete-all'].map((id) =>
      panel.querySelector(`#${id}`),
    );
    const file = panel.querySelector('#import-file');
    exporter.addEventListener('click', () => this.#try(() => this.#exportAll()));
    importer.addEventListener('click', () => file.click());
    file.addEventListener('change', () => this.#try(() => this.#import(file)));
    clearer.addEventListener('click', () => this.#try(() => this.#deleteAll()));
  }

  async show() {
    await this.#try(async () => {
      const summaries = await this.#store.list();
      this.#panel.querySelector('#history-empty').hidden = summaries.length > 0;
      for (const id of ['export-all', 'delete-all'])
        this.#panel.querySelector(`#${id}`).disabled = summaries.length === 0;
      const button = document.activeElement;
      const row = button?.closest('[data-conversation]');
      const column = row ? [...row.children].indexOf(button) : -1;
      this.#list.replaceChildren(...summaries.map((summary) => this.#row(summary)));
      const same = row && this.#list.querySelector(`[data-conversation="${CSS.escape(row.dataset.conversation)}"]`);
      same?.children[column]?.focus();
    });
  }

  #row({id, title, changed}) {
    const row = make('li');
    row.dataset.conversation = id;
    const open = makeButton(title, () => this.#try(() => this.#open(id)), 'open');
    open.title = title;
    if (id === this.#chat.id) open.setAttribute('aria-current', 'true');
    const remove = makeButton('Delete', () => this.#try(() => this.#delete(id, title)));
    remove.setAttribute('aria-label', `Delete ${title}`);
    const keep = makeButton('Export', () => this.#try(() => this.#export(id)));
    keep.setAttribute('aria-label', `Export ${title}`);
    row.append(open, make('span', 'hint', kTimes.format(changed)), keep, remove);
    return row;
  }

  async #open(id) {
    const conversation = await this.#store.get(id);
    if (!conversation) throw new StoreFailure('This conversation cannot be read any more.');
    this.#chat.open(conversation);
    await this.show();
  }

  async #export(id) {
    const conversation = await this.#store.get(id);
    if (conversation) saveFile('volley-conversation.json', fileOf([conversation]));
  }

  async #exportAll() {
    const summaries = await this.#store.list();
    const all = await Promise.all(summaries.map(({id}) => this.#store.get(id)));
    saveFile('volley-conversations.json', fileOf(all.filter(Boolean)));
  }

  // A conversation that is here already with other contents becomes a second one.
  async #import(input) {
    const [file] = input.files;
    input.value = '';
    if (!file) return;
    if (file.size > kMostFileBytes) throw new StoreFailure('This file is larger than what this page keeps.');
    const conversations = conversationsOf(await file.text());
    let added = 0;
    try {
      for (const conversation of conversations) {
        const here = await this.#store.get(conversation.id);
        if (JSON.stringify(here) === JSON.stringify(conversation)) continue;
        await this.#store.put(here ? {...conversation, id: crypto.randomUUID?.() ?? `${Math.random()}`} : conversation);
        ++added;
      }
    } finally {
      await this.show();
    }
    showNotice(
      `${added} of ${conversations.length} conversations imported${added < conversations.length ? '; the others were here' : ''}.`,
    );
  }

  async #delete(id, title) {
    if (!(await confirmed(`Delete “${title}”? It cannot be brought back.`, 'Delete'))) return;
    await this.#store.delete(id);
    if (id === this.#chat.id) this.#chat.startNew();
    await this.show();
    (this.#list.querySelector('button') ?? this.#panel.querySelector('#import')).focus();
  }

  async #deleteAll() {
    if (
      !(await confirmed('Delete all conversations that this browser keeps? They cannot be brought back.', 'Delete all'))
    )
      return;
    await this.#store.clear();
    this.#chat.startNew();
    await this.show();
    this.#panel.querySelector('#import').focus();
  }

  async #try(act) {
    try {
      await act();
    } catch (error) {
      if (!(error instanceof StoreFailure)) throw error;
      showNotice(error.message);
    }
  }
}
