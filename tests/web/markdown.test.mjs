// What the page makes of Markdown, formulas and schemas, without a document: which stretch of the source is what.
import assert from 'node:assert/strict';
import {describe, it} from 'node:test';
import {BlockTrace} from '../../src/serve/web/blocks.js';
import {parseMarkdown} from '../../src/serve/web/markdown.js';
import {readSchema} from '../../src/serve/web/schema_box.js';
import {block, firstToken} from './support/mock_server.mjs';

const shape = (source) => {
  const walk = (node) => {
    if (node.type === 'text') return node.text ?? source.slice(node.start, node.end);
    if (node.type === 'formula') return [node.display ? 'display' : 'inline', node.formula.trim()];
    return [node.type, ...(node.children ?? []).map(walk)];
  };
  return parseMarkdown(source).map(walk);
};

describe('Markdown of models', () => {
  it('has formulas in each of the forms that models write', () => {
    for (const source of ['\\(x^2\\)', '$x^2$', '$x^2$'])
      assert.deepEqual(shape(`a ${source}`)[0].at(-1), ['inline', 'x^2']);
    for (const source of ['$$\nx^2\n$$', '\\[\nx^2\n\\]']) assert.deepEqual(shape(source), [['display', 'x^2']]);
    for (const source of ['\\[ x^2 \\]', '$$x^2$$'])
      assert.deepEqual(shape(source), [['paragraph', ['display', 'x^2']]]);
    assert.deepEqual(shape('so \\[ a\n= b \\] follows')[0][2], ['inline', 'a\n= b']);
  });

  it('leaves money, code and escapes alone', () => {
    for (const source of ['costs $5 and $10', 'from $20k-$30k', 'a $ b $ c', 'US$5, $x']) {
      assert.deepEqual(shape(source), [['paragraph', source].flat()].map(joined), source);
    }
    assert.deepEqual(shape('`$HOME` and `$PATH`'), [
      ['paragraph', ['inline-code', '$HOME'], ' and ', ['inline-code', '$PATH']],
    ]);
    assert.deepEqual(shape('```bash\nPS1="\\[\\033[0m\\] \\(x\\)"\n```'), [['code', 'PS1="\\[\\033[0m\\] \\(x\\)"']]);
    assert.equal(joined(shape('5 \\* 3 &lt; 20 &amp;c. &nosuch;')[0])[1], '5 * 3 < 20 &c. &nosuch;');
  });

  it('has tables, struck text, tasks and nested lists', () => {
    assert.deepEqual(shape('| a | b |\n|---|---|\n| `1` | ~~2~~ |'), [
      ['table', ['row', ['cell', 'a'], ['cell', 'b']], ['row', ['cell', ['inline-code', '1']], ['cell', ['del', '2']]]],
    ]);
    const [list] = parseMarkdown('3. [x] done\n   - inner\n4. [ ] open');
    assert.equal(list.first, 3);
    assert.deepEqual(
      list.children.map(({checked}) => checked),
      [true, false],
    );
    assert.equal(list.children[0].children[1].type, 'list');
  });

  it('takes HTML and pictures for text', () => {
    assert.deepEqual(shape('<b>x</b> <img src=x onerror=y>').map(joined), [
      ['paragraph', '<b>x</b> <img src=x onerror=y>'],
    ]);
    assert.deepEqual(shape('![p](data:image/png;base64,AA)').map(joined), [
      ['paragraph', '![p](data:image/png;base64,AA)'],
    ]);
    assert.deepEqual(shape('![p](https://h.example/p.png)'), [
      ['paragraph', ['link', '![p](https://h.example/p.png)']],
    ]);
  });

  it('bounds how deep a hostile model nests, and loses no text of it', () => {
    const depth = (node) => 1 + Math.max(0, ...(node.children ?? []).map(depth));
    const deep = (open, close = '') => `${open.repeat(60)}x${close.repeat(60)}`;
    const lists = Array.from({length: 60}, (_, i) => `${'  '.repeat(i)}- x${i}`).join('\n');
    for (const source of [
      deep('> '),
      deep('> - '),
      lists,
      deep('**a *b ', '* **'),
      `| ${deep('*a **b ', '** *')} |\n|---|`,
    ]) {
      const blocks = parseMarkdown(source);
      assert.ok(Math.max(...blocks.map(depth)) <= 30, source.slice(0, 20));
      assert.ok(JSON.stringify(shape(source)).includes('x'), source.slice(0, 20));
      const check = (node, parent) => {
        assert.equal(node.type === 'item', parent === 'list');
        for (const child of node.children ?? []) check(child, node.type);
      };
      for (const one of blocks) check(one, null);
    }
  });

  it('takes no longer than a moment for sixty thousand characters of marks, and loses no text of it', () => {
    const marks = ['**a', '*a', '*a**', '~~a', '[a](', '![', '`a``', '> ', '1. ', '**a\n', '===\n', '- a\n\nb\n\n', '> a\n\n'];
    for (const one of marks) {
      const source = one.repeat(Math.ceil(60_000 / one.length));
      const begin = process.cpuUsage();
      const text = JSON.stringify(shape(source));
      const {user} = process.cpuUsage(begin);
      assert.ok(user < 4e6, `${one}: ${user / 1000} ms`); // unbounded they take up to half a minute
      if (one.includes('a')) assert.ok(text.split('a').length - 1 >= source.split('a').length - 1, one);
    }
  });

  it('keeps what is before and behind too many marks', () => {
    const [first, , code, last] = parseMarkdown(`a **b**\n\n${'*x'.repeat(5000)}\n\n\`\`\`c\n${'*p = &q[0];\n'.repeat(900)}\`\`\`\n\nc *d*`);
    assert.deepEqual(
      first.children.map(({type}) => type),
      ['text', 'strong'],
    );
    assert.deepEqual([code.type, code.language], ['code', 'c']);
    assert.equal(last.children.at(-1).type, 'em');
  });

  it('reads on from the beginning of any block as if it had read all', () => {
    const source =
      '# T\n\npara *one*\n\n- a\n- b\n\n| a |\n|---|\n| 1 |\n\n```\ncode\n```\n\n$$\nx\n$$\n\n> said\n\nend $x$';
    const whole = parseMarkdown(source);
    for (const [i, {start}] of whole.entries()) {
      assert.deepEqual(parseMarkdown(source, start), whole.slice(i), `block ${i}`);
    }
  });
});

// Neighbouring texts of a paragraph as one.
function joined([type, ...children]) {
  return [type, children.filter((child) => typeof child === 'string').join('')];
}

describe('BlockTrace with thoughts', () => {
  it('finds the answer behind the tokens that end the thoughts and have no text', () => {
    const trace = new BlockTrace();
    trace.add('', firstToken('<think>'));
    trace.add('', block(5, '\n', 'So', ' it'), 'So it');
    trace.add('Hello world', block(7, '\n', '</think>', '\n\n', 'Hello', ' world'));
    trace.end();
    assert.equal(trace.content, 'Hello world');
    assert.equal(trace.text.slice(0, trace.contentStart), 'So it');
    const marked = trace.marks.map(({start, end, kind}) => [kind, trace.text.slice(start, end)]);
    assert.deepEqual(marked, [
      ['accepted', 'So'],
      ['bonus', ' it'],
      ['accepted', 'Hello'],
      ['bonus', ' world'],
    ]);
    assert.equal(
      trace.rejections.reduce((sum, {rejected}) => sum + rejected, 0),
      6,
    );
  });

  it('is the same after it was kept', () => {
    const trace = new BlockTrace();
    trace.add('The', firstToken('The'));
    trace.add(' fox went', block(7, ' fox', ' went'));
    trace.end();
    const again = BlockTrace.fromRecord(JSON.parse(JSON.stringify(trace.toRecord())));
    for (const name of ['text', 'contentStart', 'marks', 'rejections', 'steps', 'tokens', 'drafted', 'accepted']) {
      assert.deepEqual(again[name], trace[name], name);
    }
    assert.equal(again.acceptanceLength, trace.acceptanceLength);
  });

  it('refuses records that it did not write', () => {
    const trace = new BlockTrace();
    trace.add('The fox', block(7, 'The', ' fox'));
    const good = trace.toRecord();
    for (const wrong of [
      {text: 5},
      {marks: [0, 99, 0]},
      {marks: [3, 0, 0]},
      {marks: [0, 3, 7]},
      {marks: [0, 3]},
      {steps: [1, 2, 1e9]},
      {steps: [1, 2, 3]},
      {rejections: [-1, 2]},
      {contentStart: 8},
      {totals: []},
    ]) {
      assert.throws(() => BlockTrace.fromRecord({...good, ...wrong}), TypeError, JSON.stringify(wrong));
    }
  });
});

describe('readSchema', () => {
  it('takes schemas and says of others what is wrong', () => {
    assert.deepEqual(readSchema('  '), {schema: null, problem: ''});
    const schema = {
      type: 'object',
      properties: {a: {type: ['string', 'null']}, b: {items: {enum: [1]}}},
      required: ['a'],
    };
    assert.deepEqual(readSchema(JSON.stringify(schema)), {schema, problem: ''});
    for (const [text, problem] of [
      ['{"type": "object",', /^Not JSON: /],
      ['[]', /must be an object/],
      ['{"type": "text"}', /the type "text": use object/],
      ['{"properties": {"a": {"type": "strin"}}}', /“a” has the type "strin"/],
      ['{"properties": []}', /"properties" of The schema must be an object/],
      ['{"required": "a"}', /must be a list of names/],
      ['{"items": {"enum": []}}', /"enum"/],
    ]) {
      assert.match(readSchema(text).problem, problem, text);
      assert.equal(readSchema(text).schema, null);
    }
  });
});
