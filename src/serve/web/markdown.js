// A small part of Markdown, read into a tree whose leaves are stretches of the source: {type: 'text', start, end}. The
// source is a model's answer, possibly cut off anywhere, so everything that does not close stays plain text. No DOM.
//
// blocks: {type: 'paragraph' | 'heading' | 'quote' | 'code' | 'list' | 'rule', start, end, children, …}

const kFence = /^ {0,3}(`{3,}|~{3,})([^\n`]*)$/;
const kHeading = /^ {0,3}(#{1,6})[ \t]+(?=\S)/;
const kItem = /^([ \t]*)(?:[-*+]|(\d{1,9})[.)])[ \t]+(?=\S)/;
const kQuote = /^ {0,3}> ?/;
const kRule = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;

export function parseMarkdown(source) {
  const lines = splitLines(source);
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    i = readBlock(source, lines, i, blocks);
  }
  return blocks;
}

function splitLines(source) {
  const lines = [];
  for (let start = 0; start < source.length; ) {
    const found = source.indexOf('\n', start);
    const end = found < 0 ? source.length : found;
    lines.push({start, end, text: source.slice(start, end)});
    start = end + 1;
  }
  return lines;
}

// Reads the block that begins at line i; returns the line after it.
function readBlock(source, lines, i, blocks) {
  const line = lines[i];
  if (line.text.trim() === '') return i + 1;
  if (kFence.test(line.text)) return readCode(lines, i, blocks);
  const heading = kHeading.exec(line.text);
  if (heading) {
    const children = parseInline(source, line.start + heading[0].length, line.end);
    blocks.push({type: 'heading', level: heading[1].length, start: line.start, end: line.end, children});
    return i + 1;
  }
  if (kRule.test(line.text)) {
    blocks.push({type: 'rule', start: line.start, end: line.end, children: []});
    return i + 1;
  }
  if (kQuote.test(line.text)) return readQuote(source, lines, i, blocks);
  if (kItem.test(line.text)) return readList(source, lines, i, blocks);
  let last = i;
  while (last + 1 < lines.length && !beginsBlock(lines[last + 1].text)) ++last;
  const [start, end] = [line.start, lines[last].end];
  blocks.push({type: 'paragraph', start, end, children: parseInline(source, start, end)});
  return last + 1;
}

function beginsBlock(text) {
  return text.trim() === '' || [kFence, kHeading, kItem, kQuote, kRule].some((rule) => rule.test(text));
}

// A fence that is still open runs to the end: its answer is still being written.
function readCode(lines, i, blocks) {
  const [, fence, info] = kFence.exec(lines[i].text);
  let last = i + 1;
  const closes = (text) => text.trim().startsWith(fence) && text.trim().replaceAll(fence[0], '') === '';
  while (last < lines.length && !closes(lines[last].text)) ++last;
  const closed = last < lines.length;
  const children = [];
  const [from, to] = [lines[i + 1]?.start, lines[last - 1].end];
  if (to > from) children.push({type: 'text', start: from, end: to});
  const end = lines[closed ? last : last - 1].end;
  blocks.push({type: 'code', language: info.trim(), start: lines[i].start, end, children});
  return closed ? last + 1 : last;
}

function readQuote(source, lines, i, blocks) {
  const children = [];
  let last = i;
  for (; last < lines.length && kQuote.test(lines[last].text); ++last) {
    const {start, end, text} = lines[last];
    if (children.length > 0) children.push({type: 'break'});
    children.push(...parseInline(source, start + kQuote.exec(text)[0].length, end));
  }
  blocks.push({type: 'quote', start: lines[i].start, end: lines[last - 1].end, children});
  return last;
}

// Items keep their depth as a number; lines that belong to none of them continue the item before.
function readList(source, lines, i, blocks) {
  const items = [];
  let last = i;
  for (; last < lines.length; ++last) {
    const {start, end, text} = lines[last];
    const item = kItem.exec(text);
    if (item) {
      const depth = Math.min(4, Math.floor(item[1].replaceAll('\t', '    ').length / 2));
      items.push({depth, number: item[2] ?? null, start: start + item[0].length, end});
    } else if (beginsBlock(text)) {
      break;
    } else {
      items.at(-1).end = end;
    }
  }
  const children = items.map((item) => ({
    type: 'item',
    depth: item.depth,
    number: item.number,
    children: parseInline(source, item.start, item.end),
  }));
  blocks.push({type: 'list', start: lines[i].start, end: lines[last - 1].end, children});
  return last;
}

const kInline = new RegExp(
  [
    '(?<ticks>`+)(?<code>(?:(?!\\k<ticks>)[^])+?)\\k<ticks>(?!`)',
    '\\*\\*(?=\\S)(?<strong>[^]*?\\S)\\*\\*(?!\\*)',
    '\\*(?=[^\\s*])(?<em>[^*]*?[^\\s*])\\*(?!\\*)',
    '(?<![\\p{L}\\p{N}_])_(?=[^\\s_])(?<under>[^_]*?[^\\s_])_(?![\\p{L}\\p{N}_])',
    '\\[(?<label>[^\\]\\n]+)\\]\\((?<href>https?://[^\\s()]+)\\)',
  ].join('|'),
  'du',
);

// The stretch [start, end) as leaves and {type: 'strong' | 'em' | 'inline-code' | 'link', children}.
export function parseInline(source, start, end) {
  const nodes = [];
  while (start < end) {
    const found = kInline.exec(source.slice(start, end));
    const until = found ? start + found.index : end;
    if (until > start) nodes.push({type: 'text', start, end: until});
    if (!found) break;
    nodes.push(inlineNode(source, start, found));
    start = until + found[0].length;
  }
  return nodes;
}

function inlineNode(source, offset, found) {
  const {code, strong, em, under, href} = found.groups;
  const range = (name) => found.indices.groups[name].map((index) => offset + index);
  if (code !== undefined) {
    const [start, end] = range('code');
    return {type: 'inline-code', children: [{type: 'text', start, end}]};
  }
  if (strong !== undefined) return {type: 'strong', children: parseInline(source, ...range('strong'))};
  if (em !== undefined) return {type: 'em', children: parseInline(source, ...range('em'))};
  if (under !== undefined) return {type: 'em', children: parseInline(source, ...range('under'))};
  return {type: 'link', href, children: parseInline(source, ...range('label'))};
}
