// The page's modules that touch no document: how streams are read, text is parsed and blocks are laid over it.
import assert from 'node:assert/strict';
import {readFile} from 'node:fs/promises';
import {describe, it} from 'node:test';
import {Answer, contextUse, verdict} from '../../src/serve/web/answer.js';
import {BlockTrace} from '../../src/serve/web/blocks.js';
import {eventPayloads} from '../../src/serve/web/chat_client.js';
import {parseMarkdown} from '../../src/serve/web/markdown.js';
import {welcomeFor} from '../../src/serve/web/welcome.js';
import {block, firstToken} from './support/mock_server.mjs';

// Small, seeded, and the same everywhere.
function randomNumbers(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

const stretches = (trace) => trace.marks.map(({start, end, kind}) => [kind, trace.text.slice(start, end)]);

describe('BlockTrace', () => {
  it('marks accepted tokens, the bonus and what was rejected', () => {
    const trace = new BlockTrace();
    trace.add('The', firstToken('The'));
    trace.add(' fox went out', block(7, ' fox', ' went', ' out'));
    assert.deepEqual(stretches(trace), [
      ['accepted', ' fox went'],
      ['bonus', ' out'],
    ]);
    assert.deepEqual(trace.rejections, [{at: 16, rejected: 5}]);
    assert.equal(trace.acceptanceLength, 3);
    assert.deepEqual([trace.tokens, trace.drafted, trace.accepted], [4, 7, 2]);
  });

  it('leaves plain decoding unmarked, at one token a step', () => {
    const trace = new BlockTrace();
    for (const piece of ['a', 'b', 'c']) trace.add(piece, firstToken(piece));
    assert.deepEqual(trace.marks, []);
    assert.equal(trace.acceptanceLength, 1);
  });

  it('waits for text that is held back', () => {
    const trace = new BlockTrace();
    trace.add('one', block(2, 'one', ' tw'));
    trace.add(' two three', block(3, 'o', ' three'));
    assert.deepEqual(stretches(trace), [
      ['accepted', 'one'],
      ['bonus', ' tw'],
      ['accepted', 'o'],
      ['bonus', ' three'],
    ]);
  });

  it('takes text that comes before its tokens', () => {
    const trace = new BlockTrace();
    trace.add('3', firstToken('3'));
    trace.add('5, 49', undefined);
    assert.deepEqual(stretches(trace), []);
    trace.add('', block(6, '5', ',', ' 49', '<|im_end|>'));
    trace.end();
    assert.deepEqual(stretches(trace), [['accepted', '5, 49']]);
    assert.deepEqual(trace.rejections, [{at: 6, rejected: 3}]);
  });

  it('gives a character of several tokens to them together', () => {
    const trace = new BlockTrace();
    trace.add('caf', block(4, 'caf', '\uFFFD'));
    trace.add('é au', block(4, '\uFFFD', ' au'));
    assert.equal(trace.text, 'café au');
    assert.deepEqual(stretches(trace).at(-1), ['bonus', ' au']);
    assert.equal(
      trace.rejections.reduce((sum, {rejected}) => sum + rejected, 0),
      6,
    );
  });

  it('keeps the rejections of tokens that have no text', () => {
    const trace = new BlockTrace();
    trace.add('end', block(9, 'end', '<|im_end|>'));
    trace.end();
    assert.deepEqual(trace.rejections, [{at: 3, rejected: 8}]);
  });

  it('goes on with another request, whose first token is no step, without what the one before held back', () => {
    const trace = new BlockTrace();
    trace.add('The', firstToken('The'));
    trace.add(' fox', block(3, ' fox', ' we'));
    trace.resume();
    trace.add(' went', firstToken(' went'));
    trace.add(' out.', block(3, ' out', '.'));
    assert.equal(trace.text, 'The fox went out.');
    assert.deepEqual(stretches(trace), [
      ['accepted', ' fox'],
      ['accepted', ' out'],
      ['bonus', '.'],
    ]);
    assert.equal(trace.steps.length, 2);
    assert.equal(trace.acceptanceLength, 2);
    assert.equal(trace.tokens, 6);
  });

  it('shows text of a server that reports no blocks', () => {
    const trace = new BlockTrace();
    trace.add('hello', undefined);
    assert.equal(trace.text, 'hello');
    assert.equal(trace.reported, false);
    assert.equal(trace.acceptanceLength, null);
  });

  it('lays random blocks, held back at random, over exactly their text', () => {
    const random = randomNumbers(7);
    const words = ['a', ' fox', '\n', ' é', '😀', '**', ' of', '.', '  ', 'lantern'];
    for (let round = 0; round < 300; ++round) {
      const trace = new BlockTrace();
      const whole = [];
      let sent = 0;
      let rejected = 0;
      for (let step = 0; step < 8; ++step) {
        const pieces = Array.from({length: 1 + random(6)}, () => words[random(words.length)]);
        whole.push(...pieces);
        const text = whole.join('');
        const until = step === 7 ? text.length : sent + random(text.length - sent + 1);
        const drafted = pieces.length - 1 + random(4) + 1;
        rejected += drafted - (pieces.length - 1);
        trace.add(text.slice(sent, until), block(drafted, ...pieces));
        sent = until;
      }
      trace.end();
      assert.equal(trace.text, whole.join(''));
      assert.equal(
        trace.rejections.reduce((sum, one) => sum + one.rejected, 0),
        rejected,
      );
      assert.equal(
        trace.marks.reduce((sum, {start, end}) => sum + end - start, 0),
        trace.text.length,
      );
      trace.marks.forEach(({start, end}, i) => assert.ok(start < end && start === (trace.marks[i - 1]?.end ?? 0)));
    }
  });
});

describe('parseMarkdown', () => {
  const shape = (source) => {
    const walk = (node) =>
      node.type === 'text'
        ? (node.text ?? source.slice(node.start, node.end))
        : [node.type, ...(node.children ?? []).map(walk)];
    return parseMarkdown(source).map(walk);
  };

  it('reads paragraphs, headings, lists, quotes, rules and code', () => {
    const source =
      '# Title\nText\nmore\n\n- one\n- two\n\n3. three\n> said\n> twice\n\n---\n```js\nlet a = *b*;\n```\nend';
    assert.deepEqual(shape(source), [
      ['heading', 'Title'],
      ['paragraph', 'Text\nmore'],
      ['list', ['item', ['paragraph', 'one']], ['item', ['paragraph', 'two']]],
      ['list', ['item', ['paragraph', 'three']]],
      ['quote', ['paragraph', 'said\n', 'twice']],
      ['rule'],
      ['code', 'let a = *b*;'],
      ['paragraph', 'end'],
    ]);
  });

  it('reads emphasis, code and links inside of a line', () => {
    assert.deepEqual(shape('a **b *c*** `d*e*` _f_ snake_case_name [g](https://h.example/i)'), [
      [
        'paragraph',
        'a ',
        ['strong', 'b ', ['em', 'c']],
        ' ',
        ['inline-code', 'd*e*'],
        ' ',
        ['em', 'f'],
        ' snake_case_name ',
        ['link', 'g'],
      ],
    ]);
  });

  it('makes no link of anything but http and https', () => {
    for (const href of ['javascript:alert(1)', 'data:text/html,x', '/local', 'HTTP://x y']) {
      const source = `[click](${href})`;
      assert.deepEqual(shape(source), [['paragraph', source]], href);
    }
  });

  it('takes what is still open as text, and an open fence as code', () => {
    assert.deepEqual(shape('so **bold'), [['paragraph', 'so **bold']]);
    assert.deepEqual(shape('```\nx = 1'), [['code', 'x = 1']]);
    assert.deepEqual(shape('```'), [['code']]);
  });

  it('gives leaves in order and within the source, whatever the source', () => {
    const random = randomNumbers(3);
    const parts = [
      '*',
      '**',
      '_',
      '`',
      '```',
      '\n',
      '\n\n',
      '- ',
      '1. ',
      '> ',
      '# ',
      'word',
      ' ',
      '[a](https://b.c)',
      '\t',
      '---',
      '😀',
    ];
    for (let round = 0; round < 3000; ++round) {
      const source = Array.from({length: random(14)}, () => parts[random(parts.length)]).join('');
      let last = 0;
      const check = (node) => {
        if (node.type === 'text') {
          assert.ok(node.start >= last && node.end > node.start && node.end <= source.length, JSON.stringify(source));
          last = node.end;
        }
        for (const child of node.children ?? []) check(child);
      };
      for (const one of parseMarkdown(source)) check(one);
    }
  });
});

describe('eventPayloads', () => {
  const collect = async (parts) => {
    const payloads = [];
    for await (const payload of eventPayloads(new Blob(parts).stream())) payloads.push(payload);
    return payloads;
  };

  it('reads events with either line end, comments and several data lines', async () => {
    assert.deepEqual(await collect([': hi\n\ndata: {"a": 1}\r\n\r\nevent: x\ndata:one\ndata: two\n\n']), [
      '{"a": 1}',
      'one\ntwo',
    ]);
  });

  it('reads the same events from pieces cut anywhere, also inside of a character', async () => {
    const bytes = new TextEncoder().encode('data: é😀\n\ndata: b\n\n');
    for (let cut = 0; cut <= bytes.length; ++cut) {
      const stream = new ReadableStream({
        start(controller) {
          for (const part of [bytes.slice(0, cut), bytes.slice(cut)]) if (part.length > 0) controller.enqueue(part);
          controller.close();
        },
      });
      const payloads = [];
      for await (const payload of eventPayloads(stream)) payloads.push(payload);
      assert.deepEqual(payloads, ['é😀', 'b'], `cut at ${cut}`);
    }
  });

  it('drops an event that the end of the stream cuts off', async () => {
    assert.deepEqual(await collect(['data: whole\n\ndata: hal']), ['whole']);
  });
});

describe('Answer', () => {
  const chunk = (content, volley, finish = null) => ({choices: [{delta: {content}, finish_reason: finish}], volley});

  it('takes its rate from the server where it tells, else from arrival', () => {
    const answer = new Answer(100);
    answer.take(chunk('a', firstToken('a')), 150);
    answer.take(chunk('bcd', block(5, 'b', 'c', 'd')), 250);
    assert.equal(answer.firstToken, 50);
    assert.equal(answer.rate, 30);
    answer.take(chunk('', {timing: {queue_s: 0, ttft_s: 0.01, total_s: 0.02}}, 'stop'), 250);
    assert.ok(Math.abs(answer.rate - 300) < 1e-6);
    assert.equal(answer.finish, 'stop');
  });

  it('counts by usage if the server reports no blocks', () => {
    const answer = new Answer(0);
    answer.take(chunk('hello'), 10);
    assert.equal(answer.tokens, null);
    answer.take(
      {choices: [], usage: {completion_tokens: 3, completion_tokens_details: {accepted_prediction_tokens: 2}}},
      20,
    );
    assert.deepEqual([answer.tokens, answer.accepted], [3, 2]);
  });

  it('goes on with all its tokens, and the rate and first token of the request that goes on', () => {
    const usage = (prompt, completion) => ({choices: [], usage: {prompt_tokens: prompt, completion_tokens: completion}});
    for (const blocks of [true, false]) {
      const step = (one) => (blocks ? one : undefined);
      const answer = new Answer(0);
      answer.take(chunk('abc', step(block(5, 'a', 'b', 'c'))), 10);
      answer.take(usage(7, 3), 20);
      const resumed = Answer.fromRecord(answer.toRecord()).resumed(1000);
      assert.deepEqual([resumed.tokens, resumed.rate, resumed.context, resumed.finish], [3, null, null, null]);
      resumed.take(chunk('d', step(firstToken('d'))), 1040);
      resumed.take(chunk('ef', step(block(5, 'e', 'f'))), 1140);
      resumed.take(usage(10, 3), 1150);
      assert.equal(resumed.trace.content, 'abcdef');
      assert.deepEqual([resumed.tokens, resumed.firstToken, resumed.rate, resumed.context], [6, 40, 20, 13]);
    }
  });

  it('keeps what it took of the context, and reads records that do not tell', () => {
    const answer = new Answer(0);
    answer.take({choices: [], usage: {prompt_tokens: 7, completion_tokens: 3}}, 20);
    const {context, ...older} = answer.toRecord();
    assert.equal(context, 10);
    assert.equal(Answer.fromRecord({...older, context}).context, 10);
    assert.equal(Answer.fromRecord(older).context, null);
    assert.throws(() => Answer.fromRecord({...older, context: 'x'}), TypeError);
  });

  it('compares texts and rates, and only where both can be compared', () => {
    const make = (steps, seconds, finish = 'stop') => {
      const answer = new Answer(0);
      for (const step of steps) answer.take(chunk(step.pieces.join(''), step), 1);
      answer.take(chunk('', {timing: {ttft_s: 0, total_s: seconds}}, finish), 2);
      return answer;
    };
    const plain = [firstToken('a'), firstToken('b'), firstToken('c')];
    const drafted = [firstToken('a'), block(4, 'b', 'c')];
    assert.deepEqual(verdict(make(drafted, 1), make(plain, 4)), {
      text: 'The same text, 3 tokens, 4.00 times as fast with speculation.',
      rates: [2, 0.5],
    });
    assert.match(verdict(make(drafted, 1), make(drafted, 1)).text, /speculates whatever the request says/);
    assert.match(verdict(make(drafted, 1), make([firstToken('x')], 1)).text, /differ/);
    assert.match(verdict(make(drafted, 1), make(plain, 1, null)).text, /did not reach its end/);
  });
});

describe('contextUse', () => {
  it('is a share in words, which warns near the end and says when it is full', () => {
    assert.equal(contextUse(null, 2048), null);
    assert.equal(contextUse(10, null), null);
    const use = contextUse(512, 2048);
    assert.deepEqual([use.share, use.near, use.full, use.text], [0.25, false, false, '25 % of context']);
    assert.match(use.figures, /^512 of the 2,048 tokens/);
    assert.deepEqual([contextUse(1900, 2048).near, contextUse(1900, 2048).full], [true, false]);
    assert.match(contextUse(2048, 2048).text, /full.*new chat/);
    assert.equal(contextUse(5000, 2048).share, 1, 'of a model with less context than the one before');
  });
});

describe('welcomeFor', () => {
  it('tells of the pocket model what `volley chat` tells', async () => {
    const {note, examples} = welcomeFor('pocket');
    assert.match(note, /toy.*four tasks: sums, sorted lists, facts as JSON, and short stories/);
    assert.equal(examples.length, 4);
    const greeting = await readFile(new URL('../../apps/chat/chat.cc', import.meta.url), 'utf8');
    for (const example of examples) assert.ok(greeting.includes(` ${example}\\n`), example);
  });

  it('proposes to any other model what any can do, and calls none a toy', () => {
    const {note, examples} = welcomeFor('org/pocket-large');
    assert.equal(note, '');
    assert.equal(examples.length, 4);
    assert.ok(examples.every((example) => !welcomeFor('pocket').examples.includes(example)));
  });
});
