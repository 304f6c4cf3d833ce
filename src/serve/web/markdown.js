// A model's Markdown as a tree whose leaves are stretches of the source: {type: 'text', start, end}, with `text` where
// an entity stands for something else. The source may be cut off anywhere. No DOM, and no HTML: what looks like it is
// text, and so are links that lead anywhere but to http and https, and pictures.
//
// blocks: {type: 'paragraph' | 'heading' | 'quote' | 'code' | 'list' | 'rule' | 'table' | 'formula', start, end, …}
import {readTree} from './vendor/markdown.js';

// Reads from offset `from` on, where a block begins. All offsets are those of `source`.
export function parseMarkdown(source, from = 0) {
  const text = source.slice(from);
  const masked = maskFormulas(maskTooManyMarks(text));
  const reader = new Reader(text, masked, from);
  return readTree(masked).children.map((node) => reader.block(node));
}

const kMostDepth = 24; // of blocks in blocks: what a hostile model nests deeper stays text
const kNoFormula = '\uE000'; // for a dollar that is money
const kNoMark = '\uE001'; // for what would be a mark

const kMarks = /[*_~`[\]!<>&$\\=]|(?<=\d)[.)]|[-+](?=\s)/g;
const kFence = /^[\s>]*(?:`{3,}|~{3,})/gm;
const kMostWork = 4e6; // about a third of a second
const kContainer = /^\s*(?:[-+*>]|\d+[.)])/;
const kMostContainers = 1000; // quotes, lists and items with empty lines around them

// The reader compares the marks of a paragraph with one another, and nests containers as deep as their marks do: sixty
// thousand stars would take it a minute. A stretch between empty lines that would take too long is text without marks,
// of the same length. Fences stay: what looks like marks is code there.
function maskTooManyMarks(text) {
  let work = kMostWork;
  let containers = 0;
  const parts = text.split(/(\n[ \t>]*(?=\n))/);
  const masked = parts.map((part) => {
    const marks = part.match(kMarks)?.length ?? 0;
    if (kContainer.test(part)) ++containers;
    if (marks ** 2 <= work && containers <= kMostContainers) {
      work -= marks ** 2;
      return part;
    }
    const fences = [...part.matchAll(kFence)];
    const ends = [...fences.map(({index}) => index), part.length];
    const outside = (i) => part.slice(i === 0 ? 0 : ends[i - 1] + fences[i - 1][0].length, ends[i]);
    return ends.map((_, i) => (i === 0 ? '' : fences[i - 1][0]) + outside(i).replace(kMarks, kNoMark)).join('');
  });
  return masked.join('');
}

// The same length, with $$ or $ for the other marks of formulas, and without the dollars that mark none.
function maskFormulas(text) {
  const asDollars = (whole, body) => {
    if (/\n[ \t]*\n/.test(body)) return whole;
    const [first, last] = [body.split('\n', 1)[0], body.slice(body.lastIndexOf('\n') + 1)];
    // Two dollars that begin a line with text and end on another would begin a block without an end.
    const fence = !body.includes('\n') || (first.trim() === '' && last.trim() === '') ? ['$$', '$$'] : [' $', '$ '];
    return fence[0] + body + fence[1];
  };
  return maskMoney(text)
    .replace(/(?<!\\)\\\[([^]{0,4000}?)\\\]/g, asDollars)
    .replace(/(?<!\\)\\\(([^]{0,4000}?)\\\)/g, asDollars);
}

// A dollar opens a formula before something that is no space, if the next one closes it: after something that is no
// space, and not before a digit (the rule is Pandoc's).
function maskMoney(text) {
  const dollars = [...text.matchAll(/(?<![\\$])\$(?!\$)/g)].map(({index}) => index);
  const kept = new Set();
  for (let i = 0; i + 1 < dollars.length; ++i) {
    const [open, close] = [dollars[i], dollars[i + 1]];
    const body = text.slice(open + 1, close);
    if (/^\s|\s$|\n[ \t]*\n/.test(body) || body === '' || /\d/.test(text[close + 1] ?? '')) continue;
    kept.add(open).add(close);
    ++i;
  }
  let masked = '';
  let last = 0;
  for (const index of dollars) {
    if (kept.has(index)) continue;
    masked += text.slice(last, index) + kNoFormula;
    last = index + 1;
  }
  return masked + text.slice(last);
}

const kSpans = {strong: 'strong', emphasis: 'em', delete: 'del'};

class Reader {
  #text;
  #masked;
  #base;
  #depth = 0;

  constructor(text, masked, base) {
    this.#text = text;
    this.#masked = masked;
    this.#base = base;
  }

  block(node) {
    const [start, end] = this.#range(node);
    const at = {start: start + this.#base, end: end + this.#base};
    switch (this.#depth < kMostDepth || node.type === 'listItem' ? node.type : 'raw') {
      case 'paragraph':
        return {type: 'paragraph', ...at, children: this.#inlines(node)};
      case 'heading':
        return {type: 'heading', level: node.depth, ...at, children: this.#inlines(node)};
      case 'blockquote':
        return {type: 'quote', ...at, children: this.#blocks(node)};
      case 'thematicBreak':
        return {type: 'rule', ...at, children: []};
      case 'code':
        return {type: 'code', language: node.lang ?? '', ...at, children: this.#code(node.value, start, end)};
      case 'list':
        return {type: 'list', first: node.ordered ? (node.start ?? 1) : null, ...at, children: this.#blocks(node)};
      case 'listItem':
        return {type: 'item', checked: node.checked ?? null, ...at, children: this.#blocks(node)};
      case 'table': {
        const cell = (one) => ({type: 'cell', children: this.#inlines(one)});
        const rows = node.children.map((row) => ({type: 'row', children: row.children.map(cell)}));
        return {type: 'table', aligned: node.align, ...at, children: rows};
      }
      case 'math':
        return {type: 'formula', display: true, formula: this.#formula(node), ...at, children: []};
      default:
        return {type: 'paragraph', ...at, children: [this.#raw(start, end)]};
    }
  }

  #range({position}) {
    return [position.start.offset, position.end.offset];
  }

  #raw(start, end) {
    return {type: 'text', start: start + this.#base, end: end + this.#base};
  }

  #blocks(node) {
    return this.#deeper(() => node.children.map((child) => this.block(child)));
  }

  #inlines(node) {
    return this.#deeper(() => node.children.flatMap((child) => this.#inline(child)));
  }

  #deeper(read) {
    ++this.#depth;
    const children = read();
    --this.#depth;
    return children;
  }

  #inline(node) {
    const [start, end] = this.#range(node);
    switch (this.#depth < kMostDepth ? node.type : 'raw') {
      case 'text':
        return this.#leaves(node.value, start, end);
      case 'inlineCode':
        return [{type: 'inline-code', children: this.#leaves(node.value, start, end)}];
      case 'inlineMath': {
        const display = this.#text.startsWith('$$', start) || this.#text.startsWith('\\[', start);
        const at = {start: start + this.#base, end: end + this.#base};
        return [{type: 'formula', display, formula: this.#formula(node), ...at, children: []}];
      }
      case 'break':
        return [{type: 'break'}];
      case 'link':
        return [
          isAddress(node.url) ? {type: 'link', href: node.url, children: this.#inlines(node)} : this.#raw(start, end),
        ];
      case 'image':
        // A picture is another host's: asking for it would tell that host of this answer.
        return [
          isAddress(node.url)
            ? {type: 'link', href: node.url, children: [this.#raw(start, end)]}
            : this.#raw(start, end),
        ];
      case 'strong':
      case 'emphasis':
      case 'delete':
        return [{type: kSpans[node.type], children: this.#inlines(node)}];
      default:
        return [this.#raw(start, end)];
    }
  }

  #formula({value}) {
    return value.replaceAll(kNoFormula, '$');
  }

  #code(value, start, end) {
    const line = this.#masked.indexOf('\n', start);
    return line < 0 || line >= end ? [] : this.#leaves(value, line + 1, end);
  }

  // Where the characters of `value` stand in [start, end): all of the source but escapes, entities, and what containers
  // put before each line.
  #leaves(value, start, end) {
    const leaves = [];
    const same = (i, j) => this.#masked[i] === value[j] || (this.#masked[i] === '\n' && value[j] === ' ');
    let i = start;
    let j = 0;
    while (j < value.length && i < end) {
      const entity =
        this.#masked[i] === '&' ? /^&(?:#x?[\da-f]+|[\da-z]+);/i.exec(this.#masked.slice(i, i + 40)) : null;
      if (entity && !value.startsWith(entity[0], j)) {
        const text = String.fromCodePoint(value.codePointAt(j));
        leaves.push({...this.#raw(i, i + entity[0].length), text});
        i += entity[0].length;
        j += text.length;
        continue;
      }
      // A container takes a part of a tab, and leaves spaces.
      if (this.#masked[i] === '\t' && value[j] === ' ') {
        const text = /^ {1,4}/.exec(value.slice(j, j + 4))[0];
        leaves.push({...this.#raw(i, i + 1), text});
        i += 1;
        j += text.length;
        continue;
      }
      let n = 0;
      while (i + n < end && j + n < value.length && same(i + n, j + n) && (n === 0 || this.#masked[i + n] !== '&')) ++n;
      if (n > 0) leaves.push(this.#raw(i, i + n));
      j += n;
      i += Math.max(n, 1);
    }
    if (j < value.length) leaves.push({...this.#raw(i, i), text: value.slice(j)});
    return leaves;
  }
}

function isAddress(url) {
  try {
    return ['http:', 'https:'].includes(new URL(url).protocol);
  } catch {
    return false;
  }
}
