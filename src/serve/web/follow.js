// Keeps the end of the conversation in sight while it grows, until the reader scrolls up; at the end it follows again.

const kNear = 40; // pixels from the end that are as good as the end

export class Follower {
  #root;
  #button;
  #follows = true;
  #top = 0; // where the text stood when it was last looked at

  // `button` leads to the end, and shows itself where that is out of sight.
  constructor(root, button) {
    this.#root = root;
    this.#button = button;
    // Browsers scroll smoothly: what is drawn before the first pixel has moved would undo it.
    root.addEventListener('wheel', ({deltaY}) => deltaY < 0 && this.#leave(), {passive: true});
    root.addEventListener('keydown', ({key}) => ['PageUp', 'ArrowUp', 'Home'].includes(key) && this.#leave());
    root.addEventListener('scroll', () => this.look(), {passive: true});
    button.addEventListener('click', () => this.toEnd());
  }

  toEnd() {
    this.#follows = true;
    this.#root.scrollTop = this.#root.scrollHeight;
    this.look();
  }

  // Where the reader is: asked before the text grows, too. Text that became shorter moves up as well, but leaves the
  // reader at its end.
  look() {
    const {scrollTop: top, scrollHeight, clientHeight} = this.#root;
    const left = scrollHeight - clientHeight - top;
    if (top < this.#top - 1 && left > 1) this.#follows = false;
    if (top > this.#top && left < kNear) this.#follows = true;
    this.#top = top;
    this.#button.hidden = left < kNear;
  }

  // The text has grown.
  keep() {
    this.look();
    if (this.#follows) this.toEnd();
  }

  // By most of what is in sight: 1 down, -1 up.
  page(direction) {
    this.#root.scrollBy(0, direction * 0.9 * this.#root.clientHeight);
    this.look();
  }

  #leave() {
    if (this.#root.scrollTop > 0) this.#follows = false;
  }
}
