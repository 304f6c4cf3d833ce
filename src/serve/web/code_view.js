// A block of code: its language, a button that copies it, and its text in the colours of its language.
import {copyText, make, makeButton} from './dom.js';
import {Library} from './library.js';

const kMostHighlighted = 50_000; // characters: a longer one stays plain, so that the page stays quick
const highlighter = new Library(() => import('./vendor/highlight.js'));

// `leaves`: {start, end} of the code; `paint(leaf, parent)` appends one as marked text, from front to back. `redraw`
// is called when the colours have come.
export function codeBlock({language, leaves, source, paint, redraw}) {
  const code = leaves.map(({start, end, text}) => text ?? source.slice(start, end)).join('');
  const block = make('div', 'code-block');
  const head = block.appendChild(make('div', 'code-head'));
  head.append(
    make('span', '', language || 'text'),
    makeButton('Copy', (button) => copyText(code, button)),
  );
  const pre = block.appendChild(make('pre'));
  pre.tabIndex = 0; // wide code is scrolled by keyboard too
  const element = pre.appendChild(make('code'));
  const tree = language && code.length <= kMostHighlighted ? highlighter.get(redraw)?.highlight(language, code) : null;
  if (tree) new ColouredCode(leaves, paint).children(tree, element);
  else for (const leaf of leaves) paint(leaf, element);
  return block;
}

// Walks the tree of colours and the leaves side by side: both are the code from front to back.
class ColouredCode {
  #leaves;
  #paint;
  #leaf = 0;
  #used = 0; // characters of that leaf

  constructor(leaves, paint) {
    this.#leaves = leaves;
    this.#paint = paint;
  }

  children(node, parent) {
    for (const child of node.children) {
      if (child.type === 'text') {
        this.#text(child.value.length, parent);
      } else {
        const names = child.properties.className.filter((name) => /^[\w-]+$/.test(name));
        this.children(child, parent.appendChild(make('span', names.join(' '))));
      }
    }
  }

  #text(length, parent) {
    while (length > 0 && this.#leaf < this.#leaves.length) {
      const leaf = this.#leaves[this.#leaf];
      const size = leaf.text?.length ?? leaf.end - leaf.start;
      const taken = Math.min(length, size - this.#used);
      const start = leaf.start + this.#used;
      this.#paint(leaf.text ? leaf : {start, end: start + taken}, parent);
      this.#used += taken;
      length -= taken;
      if (this.#used === size) [this.#leaf, this.#used] = [this.#leaf + 1, 0];
    }
  }
}
