// A module that is loaded when it is first needed: most answers need none.

export class Library {
  #load;
  #module = null;
  #waiting = null; // who is to be told, while it loads

  constructor(load) {
    this.#load = load;
  }

  // The module, or null, and then `ready` is called once it is there. Where it cannot be had, it stays null.
  get(ready) {
    if (this.#module) return this.#module;
    if (this.#waiting) {
      this.#waiting.add(ready);
      return null;
    }
    this.#waiting = new Set([ready]);
    this.#load().then(
      (module) => {
        this.#module = module;
        for (const tell of this.#waiting) tell();
      },
      () => (this.#waiting = null),
    );
    return null;
  }
}
