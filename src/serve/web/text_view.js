// An answer's text as elements: Markdown with the marks of its blocks. A model's text reaches the document as text nodes
// only.
import {codeBlock} from './code_view.js';
import {make} from './dom.js';
import {formulaElement} from './formula_view.js';
import {parseMarkdown} from './markdown.js';

const kTags = {
  paragraph: 'p',
  quote: 'blockquote',
  strong: 'strong',
  em: 'em',
  del: 'del',
  'inline-code': 'code',
  rule: 'hr',
  item: 'li',
};

export class TextView {
  #root;
  #asJson;
  #shown = []; // [{start, end, settled, element}]: the document's children, by their stretch of the source
  #trace = null;

  // `asJson`: the text is one JSON value and no Markdown.
  constructor(root, {asJson = false} = {}) {
    this.#root = root;
    this.#asJson = asJson;
  }

  // Draws `trace` (blocks.js) from its content on. All but the last two blocks of text are final once there is text
  // after them and their marks are settled, so they stay as they are and are not even read again.
  update(trace) {
    this.#trace = trace;
    const {text, contentStart} = trace;
    const open = this.#shown.findIndex(({settled}, i) => !settled || i >= this.#shown.length - 2);
    const kept = this.#shown.slice(0, Math.max(open, 0));
    // From the line's beginning: how far a list is indented says what belongs to it.
    const from = Math.max(contentStart, text.lastIndexOf('\n', (this.#shown[kept.length]?.start ?? 0) - 1) + 1);
    const painter = new Painter(trace, this.#redraw);
    painter.skipTo(kept.at(-1)?.end ?? contentStart);
    const drawn = this.#blocks(text, from).map((block, i, all) => ({
      start: block.start,
      end: block.end,
      settled: block.end <= trace.settled,
      element: painter.block(block, i === all.length - 1 ? text.length : block.end),
    }));
    for (const {element} of this.#shown.slice(kept.length)) element.remove();
    this.#root.append(...drawn.map(({element}) => element));
    this.#shown = [...kept, ...drawn];
  }

  #blocks(text, from) {
    if (!this.#asJson) return parseMarkdown(text, from);
    const [start, end] = [from, text.length];
    const children = [{type: 'text', start, end}];
    return start < end ? [{type: 'code', language: 'json', start, end, children}] : [];
  }

  // Something that was not there when the text was drawn has come. One function for the view's life, so that it is
  // called once for however many formulas wait.
  #redraw = () => {
    for (const {element} of this.#shown) element.remove();
    this.#shown = [];
    if (this.#trace) this.update(this.#trace);
  };
}

// The thoughts before an answer: plain text with its marks.
export function paintThoughts(trace, root) {
  root.replaceChildren();
  new Painter(trace, () => {}).thoughts(root);
}

// Makes elements from front to back, so the marks and rejections are walked once.
class Painter {
  #trace;
  #redraw;
  #mark = 0;
  #rejection = 0;

  constructor(trace, redraw) {
    this.#trace = trace;
    this.#redraw = redraw;
  }

  thoughts(root) {
    this.#leaf({start: 0, end: this.#trace.contentStart}, root);
  }

  // With what was rejected up to `until`, which may lie behind the block.
  block(node, until) {
    const element = this.#element(node);
    this.#reject(until, lastLine(element));
    return element;
  }

  skipTo(offset) {
    const {marks, rejections} = this.#trace;
    while (this.#mark < marks.length && marks[this.#mark].end <= offset) ++this.#mark;
    while (this.#rejection < rejections.length && rejections[this.#rejection].at <= offset) ++this.#rejection;
  }

  #element(node) {
    switch (node.type) {
      case 'code':
        return this.#code(node);
      case 'list':
        return this.#list(node);
      case 'table':
        return this.#table(node);
      case 'formula':
        return this.#formula(node);
      case 'heading':
        return this.#children(node, make(`h${Math.min(6, node.level + 3)}`));
      default:
        return this.#children(node, make(kTags[node.type]));
    }
  }

  #code({language, children}) {
    return codeBlock({
      language: language.split(/\s/)[0],
      leaves: children,
      source: this.#trace.text,
      paint: (leaf, parent) => this.#leaf(leaf, parent),
      redraw: this.#redraw,
    });
  }

  #list({first, children}) {
    const list = make(first === null ? 'ul' : 'ol');
    if (first !== null) list.start = first;
    for (const item of children) {
      const element = list.appendChild(make('li'));
      if (item.checked !== null) {
        element.className = 'task';
        element.append(make('span', '', item.checked ? '☑ ' : '☐ '));
      }
      this.#children(item, element);
    }
    return list;
  }

  #table({aligned, children}) {
    const scroller = make('div', 'table-scroller');
    scroller.tabIndex = 0;
    const table = scroller.appendChild(make('table'));
    children.forEach((row, i) => {
      const line = (i === 0 ? table.createTHead() : (table.tBodies[0] ?? table.createTBody())).insertRow();
      row.children.forEach((cell, column) => {
        const element = line.appendChild(make(i === 0 ? 'th' : 'td'));
        if (i === 0) element.scope = 'col';
        if (aligned[column]) element.className = `to-${aligned[column]}`;
        this.#children(cell, element);
      });
    });
    return scroller;
  }

  // Tokens of a formula cannot be told apart once it is set: it has no marks.
  #formula({formula, display, start, end}) {
    const raw = this.#trace.text.slice(start, end);
    return formulaElement({formula, display, raw, redraw: this.#redraw});
  }

  #children(node, parent) {
    for (const child of node.children) {
      if (child.type === 'text') {
        this.#leaf(child, parent);
      } else if (child.type === 'break') {
        parent.append(make('br'));
      } else if (child.type === 'formula') {
        parent.append(this.#formula(child));
        this.#reject(child.end, parent);
      } else if (child.start !== undefined) {
        parent.append(this.#element(child));
      } else {
        this.#children(child, parent.appendChild(this.#inline(child)));
      }
    }
    return parent;
  }

  #inline(node) {
    if (node.type !== 'link') return make(kTags[node.type]);
    const link = make('a');
    link.href = node.href; // the parser lets http and https through, nothing else
    link.rel = 'noopener noreferrer';
    link.target = '_blank';
    return link;
  }

  // The stretch [start, end): cut where a mark begins or ends and where a rejection stands.
  #leaf({start, end, text: other}, parent) {
    const {text, marks, rejections} = this.#trace;
    if (other !== undefined) {
      parent.append(other);
      return;
    }
    while (start < end) {
      while (this.#mark < marks.length && marks[this.#mark].end <= start) ++this.#mark;
      const mark = marks[this.#mark];
      const inside = mark && mark.start <= start;
      let until = Math.min(end, inside ? mark.end : (mark?.start ?? end));
      const rejection = rejections[this.#rejection];
      if (rejection && rejection.at > start) until = Math.min(until, rejection.at);
      const piece = text.slice(start, until);
      if (inside) parent.append(...tokenNodes(piece, mark.kind));
      else parent.append(piece);
      start = until;
      this.#reject(start, parent);
    }
  }

  // What was rejected up to here. Markdown's own characters are not shown, so a rejection may come a little late.
  #reject(offset, parent) {
    const {rejections} = this.#trace;
    for (; this.#rejection < rejections.length && rejections[this.#rejection].at <= offset; ++this.#rejection) {
      const {rejected} = rejections[this.#rejection];
      const mark = parent.appendChild(make('span', 'rejected'));
      mark.dataset.rejected = rejected;
      mark.style.setProperty('--count', Math.min(rejected, 16));
      mark.title = `${rejected} drafted ${rejected === 1 ? 'token' : 'tokens'} rejected`;
      mark.setAttribute('aria-hidden', 'true');
    }
  }
}

// Where something that stands behind a block's text goes.
function lastLine(element) {
  if (element.matches('.code-block')) return element.querySelector('code');
  if (element.matches('.table-scroller')) return element.querySelector('tr:last-child > :last-child') ?? element;
  if (element.matches('ul, ol, blockquote, li') && element.lastElementChild) {
    const last = element.lastElementChild;
    return last.matches('ul, ol, li, blockquote, p, .code-block') ? lastLine(last) : element;
  }
  return element;
}

// The space around marked text is not marked. A bonus that is nothing but space leaves a small mark of its own.
function tokenNodes(piece, kind) {
  const text = piece.trim();
  if (text === '' && kind === 'accepted') return [piece];
  const span = make('span', text === '' ? `token ${kind} blank` : `token ${kind}`, text);
  const before = piece.length - piece.trimStart().length;
  return text === '' ? [span, piece] : [piece.slice(0, before), span, piece.slice(before + text.length)];
}
