// What answers look like: formulas, code, tables, hostile ones; the legend, the layout, and what the settings offer.
import assert from 'node:assert/strict';
import {describe, it} from 'node:test';
import {
  accessibilityProblems,
  answerText,
  ask,
  drawnBlocks,
  idle,
  overflowsSideways,
  send,
} from './support/browser.mjs';
import {block, firstToken} from './support/mock_server.mjs';
import {scriptedPage} from './support/scripted_page.mjs';

const kRich = `The rule \\(p(x) \\ge q(x)\\) and

\\[ \\sum_{i=1}^{n} i = \\frac{n(n+1)}{2} \\]

| Model | Rate |
|:--|--:|
| small | **3.4** |

\`\`\`python
def accept(block, target):
    for i, token in enumerate(block):  # each one
        if token != target[i]: return "no"
\`\`\`

1. one
   - nested

> said
`;
const kCard = {
  max_model_len: 40960,
  volley: {
    block_size: 8,
    thinking: true,
    reasoning_effort: true,
    default_sampling: {
      temperature: 0.6,
      top_p: 0.95,
      top_k: 0,
      min_p: 0,
      repetition_penalty: 1.05,
      presence_penalty: 0,
      frequency_penalty: 0,
    },
  },
};

// The text in blocks of a few words, with a plain step now and then.
function stepsOf(text) {
  const pieces = text.match(/\s*\S+|\s+$/g);
  const steps = [firstToken(pieces[0])];
  for (let i = 1, n = 0; i < pieces.length; ++n) {
    if (n % 4 === 3) {
      steps.push(firstToken(pieces[i++]));
    } else {
      const few = pieces.slice(i, i + 1 + (n % 5));
      i += few.length;
      steps.push(block(7, ...few));
    }
  }
  return steps;
}

const withLibraries = (page) =>
  page.waitForFunction(() => document.querySelector('.katex-html') && document.querySelector('.hljs-keyword'));

describe('answers', () => {
  const {withPage} = scriptedPage(stepsOf(kRich));

  it('have formulas, code in colours, tables and lists, with their tokens marked', () =>
    withPage({}, {permissions: ['clipboard-read', 'clipboard-write']}, async (page) => {
      await ask(page, 'Show me');
      await withLibraries(page);
      assert.equal(await page.locator('.answer-text .formula').count(), 2);
      assert.equal(await page.locator('.answer-text .formula.display .katex-display').count(), 1);
      // Set in its own face, which came from this server.
      await page.waitForFunction(
        () => document.fonts.check('16px KaTeX_Main') && document.fonts.check('16px KaTeX_Math'),
      );
      assert.deepEqual(await page.locator('.answer-text th').allTextContents(), ['Model', 'Rate']);
      assert.equal(await page.locator('.answer-text td.to-right strong').textContent(), '3.4');
      assert.equal(await page.locator('.answer-text ol > li > ul > li').textContent(), 'nested');
      const code = kRich.split('```')[1].replace('python\n', '').trimEnd();
      assert.equal(await page.locator('.answer-text pre code').textContent(), code);
      assert.ok((await page.locator('.hljs-keyword').allTextContents()).includes('def'));
      assert.ok((await page.locator('.answer-text pre .token').count()) > 2);
      await page.click('.code-head button');
      assert.equal(await page.evaluate(() => navigator.clipboard.readText()), code);
      const drawn = await drawnBlocks(page);
      assert.equal(drawn.rejected, drawn.rejectedInText);
    }));

  it('are drawn the same while they come as when they are complete', () =>
    withPage({pauseMs: 25}, {}, async (page) => {
      await ask(page, 'Show me');
      await withLibraries(page);
      const html = () =>
        page.evaluate(() => document.querySelector('.answer-text').innerHTML.replace(/ data-rejected="\d+"/g, ''));
      const live = await html();
      await page.reload();
      await page.locator('.answer').waitFor();
      await withLibraries(page);
      assert.equal(await html(), live);
    }));

  it('of a hostile model make no script, no request and nothing but text and links', () => {
    const hostile = [
      '<img src=x onerror="globalThis.owned = 1"> <script>globalThis.owned = 1</script> <svg onload=owned=1>\n\n',
      '<iframe src="javascript:globalThis.owned=1"></iframe> <style>*{display:none}</style> <form action="https://evil.example">\n\n',
      '[a](javascript:globalThis.owned=1) [b](JaVaScRiPt:owned=1) [c](data:text/html,<script>1</script>) [d](vbscript:x)\n\n',
      '![pixel](https://evil.example/pixel.png) ![x](x "onerror=owned=1") <https://ok.example/?a="onclick=owned>\n\n',
      '[ok](https://ok.example/a"onmouseover="owned=1) [ref][1] &lt;script&gt;globalThis.owned=1&lt;/script&gt;\n\n[1]: javascript:owned\n\n',
      '```"><script>globalThis.owned=1</script>\n</code></pre><script>globalThis.owned=1</script>\n```\n\n',
      '```html\n<script>globalThis.owned = 1</script><img src=x onerror=owned=1>\n```\n\n',
      '$\\href{javascript:owned=1}{x}$ $\\includegraphics{https://evil.example/p.png}$ $\\htmlStyle{display:none}{y}$\n\n',
      '$\\def\\a{\\a\\a}\\a$ $\\fcolorbox{red}{blue}{x}$ $\\pmb{x}$ $\\url{javascript:owned=1}$ $\\rule{9999em}{9999em}$ $\\unknown{$\n\n',
      '$$\\begin{matrix} x \\\\[1000em] y$$\n\n| <script>owned=1</script> | b |\n|---|---|\n| <img src=x onerror=owned=1> | `<b>` |\n\n',
      `${'> - '.repeat(400)}deep\n\n${'**a *b '.repeat(400)}\n\n${'[a]('.repeat(400)}`,
    ];
    return withPage({steps: [firstToken('x '), ...hostile.map((piece) => block(5, piece, ''))]}, {}, async (page) => {
      await ask(page, '<img src=x onerror="globalThis.owned = 1">');
      await page.waitForFunction(() => document.querySelector('.katex-html') && document.querySelector('.hljs-name'));
      await page.waitForTimeout(300);
      assert.equal(await page.evaluate(() => globalThis.owned), undefined);
      const found = await page.evaluate(() => {
        const elements = [...document.querySelectorAll('.turn *')];
        const wrong = 'img, script, iframe, style, form:not(.edit), object, embed, link, meta, base, input';
        return {
          elements: elements.filter((one) => one.matches(wrong)).map((one) => one.outerHTML),
          handlers: elements.flatMap((one) => one.getAttributeNames().filter((name) => name.startsWith('on'))),
          links: [...document.querySelectorAll('.turn a')].map(({href, rel, target}) => ({
            safe: /^https?:/.test(href),
            rel,
            target,
          })),
          wide: Math.max(...elements.map((one) => one.getBoundingClientRect().height)),
        };
      });
      assert.deepEqual(found.elements, []);
      assert.deepEqual(found.handlers, []);
      assert.ok(found.links.length > 0);
      for (const link of found.links)
        assert.deepEqual(link, {safe: true, rel: 'noopener noreferrer', target: '_blank'});
      assert.match(await answerText(page), /<iframe src="javascript:globalThis.owned=1"><\/iframe>/);
      assert.equal(await overflowsSideways(page), false);
      await page.reload();
      await page.locator('.answer').waitFor();
      assert.equal(await page.evaluate(() => globalThis.owned), undefined);
    });
  });

  it('please axe in light and dark, wide and on a phone, with thoughts, code, formulas, tables and a schema', async () => {
    const steps = [{...block(5, 'So', ' it'), thoughts: 'So it'}, ...stepsOf(kRich)];
    for (const colorScheme of ['light', 'dark']) {
      for (const viewport of [
        {width: 1280, height: 800},
        {width: 390, height: 844},
      ]) {
        await withPage({steps, card: kCard}, {colorScheme, viewport}, async (page) => {
          await ask(page, 'Show me');
          await withLibraries(page);
          await page.click('.reasoning summary');
          assert.equal(await page.textContent('.reasoning-text'), 'So it');
          assert.deepEqual(await accessibilityProblems(page), [], `${colorScheme} ${viewport.width}`);
          assert.equal(await overflowsSideways(page), false);
          await page.click('#open-settings');
          await page.fill('[name="schema"]', '{');
          assert.deepEqual(await accessibilityProblems(page), [], `settings ${colorScheme} ${viewport.width}`);
        });
      }
    }
  });
});

describe('the legend and the layout', () => {
  const {withPage} = scriptedPage(stepsOf(kRich));
  const boxes = (page, ...selectors) =>
    page.evaluate((all) => {
      return all.map((selector) => {
        const {x, y, width, height} = document.querySelector(selector).getBoundingClientRect();
        return [selector, x, y, width, height].join(' ');
      });
    }, selectors);

  it('tell of every kind of token, always', async () => {
    for (const viewport of [
      {width: 1280, height: 800},
      {width: 360, height: 640},
    ]) {
      await withPage({}, {viewport}, async (page) => {
        const legend = page.locator('#legend');
        const seen = async () => {
          assert.equal(await legend.isVisible(), true);
          const box = await legend.boundingBox();
          assert.ok(box.y >= 0 && box.y + box.height <= viewport.height && box.width <= viewport.width);
        };
        await seen();
        assert.match(await legend.innerText(), /accepted[^]*bonus[^]*rejected[^]*plain[^]*no draft/);
        await ask(page, 'Show me');
        await seen();
        // A plain step is a mark of its own, and looks as the legend says.
        assert.ok((await page.locator('.strip path.plain').getAttribute('d')).includes('M'));
        const fills = await page.evaluate(() =>
          ['.strip path.plain', '.key.plain'].map((selector) => {
            const style = getComputedStyle(document.querySelector(selector));
            return selector.startsWith('.key') ? style.backgroundColor : style.fill;
          }),
        );
        assert.equal(fills[0], fills[1]);
        await page.evaluate(() => (document.getElementById('conversation').scrollTop = 0));
        await seen();
      });
    }
  });

  it('do not jump with Compare', () =>
    withPage({pauseMs: 40}, {viewport: {width: 1280, height: 1000}}, async (page) => {
      await ask(page, 'One');
      await page.evaluate(() => (document.getElementById('conversation').scrollTop = 0));
      const fixed = [
        '.bar',
        '#readout-rate',
        '#readout-length',
        '#legend',
        '#composer',
        '#prompt',
        '.message',
        '.answer',
        '.answer-text',
        '.strip',
      ];
      const before = await boxes(page, ...fixed);
      await page.check('#compare');
      assert.deepEqual(await boxes(page, ...fixed), before);
      await page.click('#new-chat');
      const outer = ['.bar', '#legend', '#composer', '#prompt'];
      const still = await boxes(page, ...outer);
      await send(page, 'Two');
      // From the first frame to the last: both columns stand where they will stand, and the turn is as wide as any.
      await page.locator('.answer').nth(1).waitFor();
      const columns = () =>
        page.evaluate(() =>
          [...document.querySelectorAll('.turn, .answer')].map((one) => {
            const {x, width} = one.getBoundingClientRect();
            return [x, width];
          }),
        );
      const first = await columns();
      const [left, , width] = before
        .find((line) => line.startsWith('.message '))
        .split(' ')
        .slice(1)
        .map(Number);
      assert.deepEqual(first[0], [left, width]);
      assert.equal(first[1][1], first[2][1]);
      while ((await page.locator('[aria-busy="true"]').count()) > 0) {
        assert.deepEqual(await columns(), first);
        assert.deepEqual(await boxes(page, ...outer), still);
        await page.waitForTimeout(30);
      }
      await idle(page);
      assert.deepEqual(await columns(), first);
      assert.deepEqual(await boxes(page, ...outer), still);
    }));

  it('have room for a step’s column and for the verdict before they come', () =>
    withPage({pauseMs: 40, card: kCard}, {}, async (page) => {
      await page.check('#compare');
      await send(page, 'One');
      await page.locator('.answer').nth(1).waitFor();
      const heights = () =>
        page.evaluate(() =>
          ['.strip', '.verdict'].map((one) => document.querySelector(one).getBoundingClientRect().height),
        );
      const before = await heights();
      await idle(page);
      assert.deepEqual(await heights(), before);
    }));
});

describe('what the settings offer', () => {
  const {withPage, mock} = scriptedPage(stepsOf('Yes.'));
  const sent = () => mock().requests.at(-1);

  it('are the server’s own values', () =>
    withPage({card: kCard}, {}, async (page) => {
      await page.click('#open-settings');
      const shown = await page.evaluate(() =>
        Object.fromEntries(
          [...document.querySelectorAll('#settings input[type="number"]')].map((one) => [one.name, one.placeholder]),
        ),
      );
      assert.deepEqual(shown, {
        temperature: '0.6',
        top_p: '0.95',
        top_k: 'off',
        min_p: '0',
        seed: 'drawn',
        repetition_penalty: '1.05',
        presence_penalty: '0',
        frequency_penalty: '0',
        max_tokens: 'up to 40960',
      });
    }));

  it('are milder where the model’s makers name none, and sent then', () => {
    const usual = {...kCard.volley.default_sampling, temperature: 1, top_p: 1};
    const chat = {...usual, temperature: 0.7, top_p: 0.95};
    const card = {...kCard, volley: {...kCard.volley, default_sampling: usual, chat_sampling: chat}};
    return withPage({card}, {}, async (page) => {
      await page.click('#open-settings');
      assert.equal(await page.getAttribute('[name="temperature"]', 'placeholder'), '0.7');
      await page.fill('[name="top_p"]', '0.5');
      await ask(page, 'One');
      assert.deepEqual([sent().temperature, sent().top_p, sent().top_k], [0.7, 0.5, undefined]);
      await page.fill('[name="temperature"]', '1');
      await ask(page, 'Two');
      assert.equal(sent().temperature, 1);
    });
  });

  it('switch thinking, and only where the model’s template knows it', () =>
    withPage({card: kCard}, {}, async (page) => {
      assert.equal(await page.isChecked('#thinking'), true);
      await ask(page, 'One');
      assert.equal(sent().chat_template_kwargs, undefined);
      await page.uncheck('#thinking');
      await page.click('#open-settings');
      await page.selectOption('[name="reasoning_effort"]', 'low');
      await ask(page, 'Two');
      assert.deepEqual(sent().chat_template_kwargs, {enable_thinking: false});
      assert.equal(sent().reasoning_effort, 'low');
      mock().script = {steps: stepsOf('Yes.')};
      await page.reload();
      await page.waitForFunction(() => document.getElementById('model-name').textContent === 'mock');
      assert.equal(await page.isVisible('#thinking'), false);
      assert.equal(await page.isVisible('[name="reasoning_effort"]'), false);
      await ask(page, 'Three');
      assert.equal(sent().chat_template_kwargs, undefined);
      assert.equal(sent().reasoning_effort, undefined);
    }));

  it('hold answers to a schema, and say while one types what is wrong with it', () =>
    withPage({steps: [firstToken('{"a_b_c":'), block(3, ' "*x*"', '}')]}, {}, async (page) => {
      await page.click('#open-settings');
      await page.focus('[name="schema"]');
      await page.keyboard.type('{"type": "object"');
      assert.match(await page.textContent('#schema-message'), /^Not JSON/);
      assert.equal(await page.getAttribute('[name="schema"]', 'aria-invalid'), 'true');
      await send(page, 'One');
      assert.equal(mock().requests.length, 0);
      assert.equal(await page.evaluate(() => document.activeElement.name), 'schema');
      await page.keyboard.press('Control+End');
      await page.keyboard.type('}');
      assert.match(await page.textContent('#schema-message'), /answers will be JSON/);
      await page.press('#prompt', 'Enter');
      await idle(page);
      assert.deepEqual(sent().response_format, {
        type: 'json_schema',
        json_schema: {name: 'answer', schema: {type: 'object'}},
      });
      await page.locator('.hljs-attr').waitFor();
      assert.equal(await page.locator('.answer-text code').textContent(), '{"a_b_c": "*x*"}');
      await page.click('#reset-settings');
      assert.equal(await page.textContent('#schema-message'), '');
      await ask(page, 'Two');
      assert.equal(sent().response_format, undefined);
    }));
});
