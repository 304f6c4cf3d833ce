// Pictures that a message shows: chosen, pasted or dropped, as data: URLs.
import {showNotice} from './dialogs.js';
import {make, makeButton} from './dom.js';

export const kMostPictures = 16;
export const kMostPictureBytes = 20 * 1024 * 1024;
const kTypes = ['image/png', 'image/jpeg', 'image/webp', 'image/gif'];
const kUrl = /^data:image\/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]*$/;

export const isPicture = (url) => typeof url === 'string' && kUrl.test(url);

// A message as the server takes it.
export function contentOf(message, pictures = []) {
  if (pictures.length === 0) return message;
  const parts = pictures.map((url) => ({type: 'image_url', image_url: {url}}));
  return message.trim() === '' ? parts : [...parts, {type: 'text', text: message}];
}

export function thumbnail(url, number) {
  const image = make('img', 'thumbnail');
  image.src = url;
  image.alt = `Picture ${number}`;
  return image;
}

function urlOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener('load', () => resolve(reader.result));
    reader.addEventListener('error', () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

// The pictures of the message that is being written.
export class PictureTray {
  #list;
  #urls = [];
  #takes = () => false;

  // `composer`: the form, into which pictures are pasted and dropped; `takes()`: whether the model sees pictures.
  constructor(composer, takes) {
    this.#list = composer.querySelector('#pictures');
    this.#takes = takes;
    const input = composer.querySelector('#picture-file');
    composer.querySelector('#add-picture').addEventListener('click', () => input.click());
    input.addEventListener('change', () => {
      this.#add(input.files);
      input.value = '';
    });
    composer.addEventListener('paste', (event) => this.#take(event, event.clipboardData));
    composer.addEventListener('dragover', (event) => {
      if (takes() && event.dataTransfer.types.includes('Files')) event.preventDefault();
    });
    composer.addEventListener('drop', (event) => this.#take(event, event.dataTransfer));
  }

  // Hands them over.
  take() {
    const urls = this.#urls;
    this.#show([]);
    return urls;
  }

  get isEmpty() {
    return this.#urls.length === 0;
  }

  #take(event, data) {
    if (!this.#takes() || data.files.length === 0) return;
    event.preventDefault();
    this.#add(data.files);
  }

  async #add(files) {
    // A copy: a browser empties the list when the event is over.
    for (const file of [...files]) {
      if (!kTypes.includes(file.type) || file.size > kMostPictureBytes) {
        showNotice(`${file.name} is no picture in PNG, JPEG, WebP or GIF of at most ${kMostPictureBytes >> 20} MB.`);
      } else if (this.#urls.length === kMostPictures) {
        showNotice(`A message shows at most ${kMostPictures} pictures.`);
      } else {
        const url = await urlOf(file); // others may come meanwhile
        this.#show([...this.#urls, url]);
      }
    }
  }

  #show(urls) {
    this.#urls = urls;
    this.#list.hidden = urls.length === 0;
    const item = (url, i) => {
      const entry = make('li');
      const remove = makeButton('Remove', () => this.#show(this.#urls.toSpliced(i, 1)));
      remove.setAttribute('aria-label', `Remove picture ${i + 1}`);
      entry.append(thumbnail(url, i + 1), remove);
      return entry;
    };
    this.#list.replaceChildren(...urls.map(item));
  }
}
