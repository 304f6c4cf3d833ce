// An answer's text as elements: Markdown with the marks of its blocks. A model's text reaches the document
// as text nodes only.
import {parseMarkdown} from './markdown.js';

const kTags = {paragraph: 'p', quote: 'blockquote', strong: 'strong', em: 'em', 'inline-code': 'code', rule: 'hr'};

export class TextView {
  #root;
  #shown = []; // [{start, end, settled, element}]: the document's children, by their stretch of the source

  constructor(root) {
    this.#root = root;
  }

  // Draws `trace` (blocks.js) anew. All but the last two blocks of text are final once there is text after them and
  // their marks are settled, so they stay as they are.
  update(trace) {
    const painter = new Painter(trace);
    const blocks = parseMarkdown(trace.text);
    const shown = [];
    for (let i = 0; i < blocks.length; ++i) {
      const {start, end} = blocks[i];
      const old = this.#shown[i];
      const final = old?.settled && i < this.#shown.length - 2 && old.start === start && old.end === end;
      shown.push(final ? old : {start, end, settled: end <= trace.settled, element: painter.block(blocks[i])});
      if (final) painter.skipTo(end);
    }
    for (let i = 0; i < Math.max(shown.length, this.#shown.length); ++i) {
      const [now, before] = [shown[i]?.element, this.#shown[i]?.element];
      if (now === before) continue;
      if (now && before) before.replaceWith(now);
      else if (now) this.#root.append(now);
      else before.remove();
    }
    this.#shown = shown;
  }
}

// Makes elements from front to back, so the marks and rejections are walked once.
class Painter {
  #trace;
  #mark = 0;
  #rejection = 0;

  constructor(trace) {
    this.#trace = trace;
  }

  block(node) {
    let element;
    if (node.type === 'code') {
      element = document.createElement('pre');
      element.tabIndex = 0; // wide code is scrolled by keyboard too
      const code = element.appendChild(document.createElement('code'));
      if (node.language) element.dataset.language = node.language.split(/\s/)[0];
      this.#children(node, code);
    } else if (node.type === 'list') {
      element = document.createElement('ul');
      for (const child of node.children) element.append(this.#item(child));
    } else {
      element = document.createElement(node.type === 'heading' ? `h${Math.min(6, node.level + 3)}` : kTags[node.type]);
      this.#children(node, element);
    }
    this.#reject(node.end, element.lastElementChild?.matches('li, pre > code') ? element.lastElementChild : element);
    return element;
  }

  skipTo(offset) {
    const {marks, rejections} = this.#trace;
    while (this.#mark < marks.length && marks[this.#mark].end <= offset) ++this.#mark;
    while (this.#rejection < rejections.length && rejections[this.#rejection].at <= offset) ++this.#rejection;
  }

  #item({depth, number, children}) {
    const element = document.createElement('li');
    element.dataset.depth = depth;
    if (number === null) {
      element.className = 'bullet';
    } else {
      const label = element.appendChild(document.createElement('span'));
      label.className = 'number';
      label.textContent = `${number}. `;
    }
    this.#children({children}, element);
    return element;
  }

  #children(node, parent) {
    for (const child of node.children) {
      if (child.type === 'text') {
        this.#leaf(child.start, child.end, parent);
      } else if (child.type === 'break') {
        parent.append(document.createElement('br'));
      } else {
        this.#children(child, parent.appendChild(this.#inline(child)));
      }
    }
  }

  #inline(node) {
    if (node.type !== 'link') return document.createElement(kTags[node.type]);
    const link = document.createElement('a');
    link.href = node.href; // the parser lets http and https through, nothing else
    link.rel = 'noopener noreferrer';
    link.target = '_blank';
    return link;
  }

  // The stretch [start, end): cut where a mark begins or ends and where a rejection stands.
  #leaf(start, end, parent) {
    const {text, marks, rejections} = this.#trace;
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
      const mark = parent.appendChild(document.createElement('span'));
      mark.className = 'rejected';
      mark.dataset.rejected = rejected;
      mark.style.setProperty('--count', Math.min(rejected, 16));
      mark.title = `${rejected} drafted ${rejected === 1 ? 'token' : 'tokens'} rejected`;
      mark.setAttribute('aria-hidden', 'true');
    }
  }
}

// The space around marked text is not marked. A bonus that is nothing but space leaves a small mark of its own.
function tokenNodes(piece, kind) {
  const text = piece.trim();
  if (text === '' && kind === 'accepted') return [piece];
  const span = document.createElement('span');
  span.className = text === '' ? `token ${kind} blank` : `token ${kind}`;
  span.textContent = text;
  const before = piece.length - piece.trimStart().length;
  return text === '' ? [span, piece] : [piece.slice(0, before), span, piece.slice(before + text.length)];
}
