// The page in Chromium, against a scripted server: what a real one cannot be made to do on demand.
import assert from 'node:assert/strict';
import {after, before, describe, it} from 'node:test';
import {
  accessibilityProblems,
  answerText,
  ask,
  closePage,
  drawnBlocks,
  figure,
  idle,
  launch,
  openPage,
  overflowsSideways,
  send,
} from './support/browser.mjs';
import {block, firstToken, startMock} from './support/mock_server.mjs';

const kSteps = [
  firstToken('The'),
  block(7, ' fox', ' went', ' out'),
  block(7, ' at', ' night'),
  block(7, ' with', ' a', ' lamp', '.'),
];
const kText = 'The fox went out at night with a lamp.';

describe('the page', () => {
  let browser;
  let mock;
  before(async () => {
    browser = await launch();
    mock = await startMock({steps: kSteps});
  });
  after(async () => {
    await browser.close();
    mock.stop();
  });

  // Opens the page with this script behind it, and closes it: nothing may have complained.
  async function withPage(script, options, act) {
    mock.script = {steps: kSteps, ...script};
    mock.requests.length = 0;
    const page = await openPage(browser, mock.url, options);
    await act(page);
    await closePage(page);
  }

  it('draws each block while the answer is still coming', () =>
    withPage({pauseMs: 300}, {}, async (page) => {
      await send(page, 'Tell me');
      await page.locator('.answer-text .token.bonus').first().waitFor();
      assert.equal(await page.locator('.answer').getAttribute('aria-busy'), 'true');
      assert.ok((await answerText(page)).length < kText.length);
      assert.notEqual(await page.textContent('#readout-length'), '–');
      await idle(page);
      assert.equal(await answerText(page), kText);
      assert.deepEqual(await drawnBlocks(page), {
        accepted: 6,
        bonus: 3,
        plain: 0,
        rejected: 15,
        rejectedInText: 15,
        bonusInText: 3,
      });
      assert.equal(await figure(page, 'length'), '3.0');
      assert.equal(await page.textContent('#readout-length'), '3.0');
    }));

  it('hides the blocks when asked, and remembers it', () =>
    withPage({}, {}, async (page) => {
      await page.uncheck('#show-blocks');
      await ask(page, 'Tell me');
      assert.equal(await page.locator('.strip').isVisible(), false);
      assert.equal(await page.locator('.rejected:not(.sample)').first().isVisible(), false);
      await page.reload();
      assert.equal(await page.isChecked('#show-blocks'), false);
    }));

  it('stops an answer with the button and with Escape, and the server hears of it', () =>
    withPage({steps: Array.from({length: 200}, () => block(3, 'so', ' on')), pauseMs: 30}, {}, async (page) => {
      const aborted = mock.aborted;
      for (const [i, stop] of [() => page.click('#stop'), () => page.keyboard.press('Escape')].entries()) {
        await send(page, 'Go on');
        await page.waitForFunction((n) => document.querySelectorAll('.answer')[n]?.querySelector('.bonus'), i);
        await stop();
        await idle(page);
        assert.match(await page.locator('.answer').nth(i).textContent(), /Stopped\./);
        assert.equal(await page.isVisible('#send'), true);
      }
      for (let i = 0; i < 500 && mock.aborted < aborted + 2; ++i) await page.waitForTimeout(20);
      assert.equal(mock.aborted, aborted + 2);
    }));

  it('says what went wrong, in the middle of an answer and before one, and tries again', () =>
    withPage({breakAfter: 2}, {expected: /status of 400/}, async (page) => {
      await ask(page, 'Tell me');
      assert.equal(await page.locator('[role="alert"].failure p').textContent(), 'The engine lost its mind.');
      mock.script = {steps: kSteps, refusal: 'The prompt is too long.'};
      await page.click('text=Try again');
      await idle(page);
      assert.equal(await page.locator('[role="alert"].failure p').textContent(), 'The prompt is too long.');
      mock.script = {steps: kSteps};
      await page.click('text=Try again');
      await idle(page);
      assert.equal(await page.locator('.failure').count(), 0);
      assert.equal(await answerText(page), kText);
    }));

  it('waits for a server that still loads its model', () =>
    withPage({loading: 1}, {expected: /status of 503/}, async (page) => {
      assert.equal(await page.textContent('#model-name'), 'loading …');
      await page.waitForFunction(() => document.getElementById('model-name').textContent === 'mock');
    }));

  it('tells a server that is gone from one that refuses', () =>
    withPage({}, {expected: /ERR_/}, async (page) => {
      await page.route('**/v1/chat/completions', (route) => route.abort());
      await ask(page, 'Tell me');
      assert.match(await page.locator('[role="alert"].failure p').textContent(), /cannot be reached/);
    }));

  it('asks for a key on 401, keeps it for this tab only, and goes on', () =>
    withPage({key: 'sesame'}, {expected: /status of 401/}, async (page) => {
      await page.locator('#key-dialog[open]').waitFor();
      assert.deepEqual(await accessibilityProblems(page), []);
      await page.keyboard.type('wrong');
      await page.keyboard.press('Enter');
      await page.waitForFunction(
        () => document.getElementById('key-dialog').open && !document.getElementById('key-input').value,
      );
      await page.fill('#key-input', 'sesame');
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.getElementById('model-name').textContent === 'mock');
      await ask(page, 'Tell me');
      assert.equal(await answerText(page), kText);
      assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes('sesame')), false);
      await page.reload();
      await page.waitForFunction(() => document.getElementById('model-name').textContent === 'mock');
    }));

  it('asks for a key in the middle of a chat, and then sends the message again', () =>
    withPage({}, {expected: /status of 401/}, async (page) => {
      mock.script = {steps: kSteps, key: 'sesame'};
      await send(page, 'Tell me');
      await page.locator('#key-dialog[open]').waitFor();
      await page.fill('#key-input', 'sesame');
      await page.click('text=Use this key');
      await page.waitForFunction((text) => document.querySelector('.answer-text')?.textContent === text, kText);
      await idle(page);
    }));

  it('makes no element and no script of what a model writes', () => {
    const pieces = [
      '<img src=x onerror="globalThis.owned = 1">',
      '<script>globalThis.owned = 1</script>',
      ' [a](javascript:globalThis.owned=1)',
      ' **b**',
    ];
    return withPage({steps: [firstToken('x '), block(9, ...pieces)]}, {}, async (page) => {
      await ask(page, '<b>Me too</b>');
      assert.equal(await answerText(page), `x ${pieces.join('')}`.replaceAll('**', ''));
      assert.equal(await page.locator('.answer-text :is(img, script, a), .message b').count(), 0);
      assert.equal(await page.locator('.answer-text strong').count(), 1);
      assert.equal(await page.evaluate(() => globalThis.owned), undefined);
    });
  });

  it('sends the conversation so far, and forgets it with a new chat', () =>
    withPage({}, {}, async (page) => {
      await page.click('#open-settings');
      await page.fill('[name="system"]', 'Be brief.');
      await ask(page, 'One');
      await ask(page, 'Two');
      const roles = [
        ['system', 'Be brief.'],
        ['user', 'One'],
        ['assistant', kText],
        ['user', 'Two'],
      ];
      assert.deepEqual(
        mock.requests[1].messages.map(({role, content}) => [role, content]),
        roles,
      );
      await page.click('#new-chat');
      assert.equal(await page.locator('.turn').count(), 0);
      await ask(page, 'Three');
      assert.equal(mock.requests[2].messages.length, 2);
    }));

  it('sends each setting by its name, and nothing for an empty field', () =>
    withPage({models: ['mock', 'other']}, {}, async (page) => {
      await ask(page, 'One');
      const {seed, ...rest} = mock.requests[0];
      assert.ok(Number.isInteger(seed));
      assert.deepEqual(rest, {
        model: 'mock',
        messages: [{role: 'user', content: 'One'}],
        volley: {blocks: true},
        stream: true,
        stream_options: {include_usage: true, continuous_usage_stats: true},
      });
      const values = {
        temperature: 0.8,
        top_p: 0.9,
        top_k: 40,
        min_p: 0.05,
        seed: 7,
        max_tokens: 50,
        repetition_penalty: 1.1,
        presence_penalty: 0.5,
        frequency_penalty: -0.5,
      };
      await page.click('#open-settings');
      for (const [name, value] of Object.entries(values)) await page.fill(`[name="${name}"]`, String(value));
      await page.fill('[name="stop"]', 'END');
      await page.selectOption('[name="model"]', 'other');
      await ask(page, 'Two');
      const sent = mock.requests[1];
      for (const [name, value] of Object.entries({...values, model: 'other', stop: ['END']}))
        assert.deepEqual(sent[name], value, name);
      await page.reload();
      assert.equal(await page.inputValue('[name="temperature"]'), '0.8');
    }));

  it('leads to a setting that cannot be used instead of sending it', () =>
    withPage({}, {}, async (page) => {
      await page.click('#open-settings');
      await page.fill('[name="top_p"]', '1.5');
      await page.click('#close-settings');
      await send(page, 'One');
      assert.equal(await page.evaluate(() => document.activeElement.name), 'top_p');
      assert.equal(await page.getAttribute('[name="top_p"]', 'aria-invalid'), 'true');
      assert.equal(mock.requests.length, 0);
    }));

  it('compares with plain decoding, with the same seed', () =>
    withPage({}, {}, async (page) => {
      await page.check('#compare');
      await ask(page, 'One');
      assert.equal(mock.requests.length, 2);
      assert.equal(mock.requests[0].seed, mock.requests[1].seed);
      const [ours, plain] = mock.requests.map((request) => request.cache_salt);
      assert.ok(ours && plain && ours !== plain, 'neither has its prompt in the cache');
      assert.deepEqual(mock.requests[1].volley, {blocks: true, speculation: false});
      assert.equal(await answerText(page, 1), kText);
      assert.match(await page.textContent('.verdict'), /^The same text, 10 tokens/);
      assert.equal(await figure(page, 'length', 1), '1.0');
      assert.deepEqual(await accessibilityProblems(page), []);
    }));

  it('claims no comparison with a server that speculates all the same, and no blocks of one that reports none', () =>
    withPage({honoursSwitch: false}, {}, async (page) => {
      await page.check('#compare');
      await ask(page, 'One');
      assert.match(await page.textContent('.verdict'), /speculates whatever/);
      await page.uncheck('#compare');
      mock.script = {steps: kSteps, blocks: false};
      await ask(page, 'Two');
      assert.match(await page.locator('.answer').last().textContent(), /does not report its blocks/);
    }));

  it('shows no blocks and compares nothing where the server has no drafter', () =>
    withPage({card: {volley: {block_size: 1}}}, {}, async (page) => {
      await page.waitForSelector('body.plain-server');
      await page.evaluate(() => (document.getElementById('compare').checked = true)); // kept from another server
      await ask(page, 'One');
      assert.equal(mock.requests.length, 1);
      assert.equal(mock.requests[0].cache_salt, undefined);
      for (const hidden of ['#compare', '#show-blocks', '#legend', '.strip', '.verdict', '#readout-length']) {
        assert.equal(await page.locator(hidden).first().isVisible(), false, hidden);
      }
      assert.ok(await page.locator('#readout-rate').isVisible());
    }));

  it('copies the text of an answer', () =>
    withPage({}, {permissions: ['clipboard-read', 'clipboard-write']}, async (page) => {
      await ask(page, 'One');
      await page.click('.answer .actions button');
      await page.locator('text=Copied').waitFor();
      assert.equal(await page.evaluate(() => navigator.clipboard.readText()), kText);
    }));

  it('follows the system’s theme, and the toggle’s, also after a reload', async () => {
    const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const seen = {};
    for (const colorScheme of ['light', 'dark']) {
      await withPage({}, {colorScheme}, async (page) => {
        seen[colorScheme] = await background(page);
        await ask(page, 'One');
        assert.deepEqual(await accessibilityProblems(page), [], colorScheme);
        await page.click('#theme');
        seen[`not ${colorScheme}`] = await background(page);
        await page.reload();
        assert.equal(await background(page), seen[`not ${colorScheme}`]);
      });
    }
    assert.notEqual(seen.light, seen.dark);
    assert.deepEqual([seen['not light'], seen['not dark']], [seen.dark, seen.light]);
  });

  it('fits a phone: nothing is wider than the screen, and the settings cover it', () =>
    withPage(
      {steps: [firstToken('word '.repeat(30)), block(7, 'long'.repeat(80), '.')]},
      {viewport: {width: 360, height: 640}},
      async (page) => {
        assert.equal(await overflowsSideways(page), false);
        await page.check('#compare');
        await ask(page, 'unbroken'.repeat(30));
        assert.equal(await overflowsSideways(page), false);
        await page.click('#open-settings');
        assert.equal(await overflowsSideways(page), false);
        assert.deepEqual(await accessibilityProblems(page), []);
        assert.equal(await page.evaluate(() => document.getElementById('main').inert), true);
        await page.keyboard.press('Escape');
        assert.equal(await page.isVisible('#settings'), false);
        assert.equal(await page.evaluate(() => document.activeElement.id), 'open-settings');
        assert.equal(await page.isVisible('#send'), true);
      },
    ));

  it('does everything by keyboard alone', () =>
    withPage({}, {}, async (page) => {
      const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.name);
      const tabTo = async (id) => {
        for (let i = 0; i < 40 && (await focused()) !== id; ++i) await page.keyboard.press('Tab');
        assert.equal(await focused(), id);
      };
      assert.equal(await focused(), 'prompt');
      await page.keyboard.type('One');
      await page.keyboard.press('Shift+Enter');
      await page.keyboard.type('line');
      await page.keyboard.press('Enter');
      await idle(page);
      assert.equal(mock.requests[0].messages[0].content, 'One\nline');
      await tabTo('compare');
      await page.keyboard.press('Space');
      assert.equal(await page.isChecked('#compare'), true);
      await tabTo('send');
      await tabTo('open-settings');
      await page.keyboard.press('Enter');
      assert.equal(await focused(), 'close-settings');
      await tabTo('temperature');
      await page.keyboard.type('0.5');
      await page.keyboard.press('Escape');
      assert.equal(await focused(), 'open-settings');
      await tabTo('prompt');
      await page.keyboard.type('Two');
      await page.keyboard.press('Enter');
      await idle(page);
      assert.equal(mock.requests[1].temperature, 0.5);
      assert.equal(mock.requests.length, 3);
    }));
});
