// That the browser keeps conversations, and what a reader can do with them, before a scripted server.
import assert from 'node:assert/strict';
import {readFile} from 'node:fs/promises';
import {describe, it} from 'node:test';
import {accessibilityProblems, answerText, ask, drawnBlocks, figure, idle, send} from './support/browser.mjs';
import {block, firstToken} from './support/mock_server.mjs';
import {scriptedPage} from './support/scripted_page.mjs';

const kSteps = [firstToken('The'), block(7, ' fox', ' went', ' out'), block(7, ' at', ' night'), firstToken('.')];
const kText = 'The fox went out at night.';
const kOther = [firstToken('Another'), block(3, ' answer', '.')];

const messages = (page) => page.locator('.message .said').allTextContents();
const rows = (page) => page.locator('#history li .open').allTextContents();

async function reload(page) {
  await page.reload();
  await page.waitForFunction(() => document.getElementById('model-name').textContent !== '');
}

// As browsers duplicate a tab: what it remembers is copied.
async function duplicate(page) {
  const copy = await page.context().newPage();
  await copy.goto(page.url());
  const remembered = await page.evaluate(() => ({...sessionStorage}));
  await copy.evaluate((entries) => Object.assign(sessionStorage, entries), remembered);
  await reload(copy);
  await copy.locator('.turn').waitFor();
  return copy;
}

async function exported(page, click) {
  const [download] = await Promise.all([page.waitForEvent('download'), click()]);
  return readFile(await download.path(), 'utf8');
}

async function importText(page, text) {
  await page.setInputFiles('#import-file', {
    name: 'chats.json',
    mimeType: 'application/json',
    buffer: Buffer.from(text),
  });
}

describe('conversations', () => {
  const {withPage, mock} = scriptedPage(kSteps);

  it('are there after a reload, with their blocks and figures, and go on', () =>
    withPage({}, {}, async (page) => {
      await ask(page, 'One');
      await ask(page, 'Two');
      const seen = async () => [
        await messages(page),
        await answerText(page, 0),
        await drawnBlocks(page, 1),
        await figure(page, 'length', 1),
        await figure(page, 'tokens', 1),
        await figure(page, 'rate', 1),
      ];
      const before = await seen();
      await reload(page);
      await page.locator('.turn').nth(1).waitFor();
      assert.deepEqual(await seen(), before);
      await ask(page, 'Three');
      assert.equal(mock().requests[2].messages.length, 5);
      assert.equal(mock().requests[2].messages[1].content, kText);
    }));

  it('keep what had come of an answer that failed, and go on from it', () =>
    withPage({breakAfter: 3}, {}, async (page) => {
      await ask(page, 'One');
      await reload(page);
      await page.locator('.answer').waitFor();
      assert.match(await page.locator('.answer').textContent(), /The engine lost its mind\./);
      const kept = await answerText(page, 0);
      assert.ok(kept !== '' && kText.startsWith(kept), kept);
      mock().script = {steps: kOther};
      await ask(page, 'Two');
      assert.equal(mock().requests[1].messages[1].content, kept);
    }));

  it('are kept with what was there of an answer when the page was left', () =>
    withPage(
      {pauseMs: 700, steps: [...kSteps, ...Array.from({length: 40}, () => block(3, ' so', ' on'))]},
      {},
      async (page) => {
        await send(page, 'One');
        await page.waitForTimeout(3500);
        await page.reload();
        await page.locator('.answer').waitFor();
        assert.match(await answerText(page), /^The fox went out/);
        assert.match(await page.locator('.answer').textContent(), /left before this answer was complete/);
      },
    ));

  it('are another for each new chat, and can be chosen, and deleted', () =>
    withPage({}, {}, async (page) => {
      await ask(page, 'First of all');
      await page.click('#new-chat');
      await ask(page, 'Second to none');
      await page.click('#open-history');
      await page.locator('#history li').nth(1).waitFor();
      assert.deepEqual(await rows(page), ['Second to none', 'First of all']);
      await page.click('#history .open >> text=First of all');
      await page.waitForFunction(() => document.querySelector('.message .said').textContent === 'First of all');
      assert.equal(await page.locator('.turn').count(), 1);
      assert.deepEqual(await accessibilityProblems(page), []);
      await page.click('[aria-label="Delete First of all"]');
      assert.deepEqual(await accessibilityProblems(page), []);
      await page.click('#confirm-no');
      assert.equal((await rows(page)).length, 2);
      await page.click('[aria-label="Delete First of all"]');
      await page.click('#confirm-yes');
      await page.waitForFunction(() => document.querySelectorAll('#history li').length === 1);
      assert.equal(await page.locator('.turn').count(), 0);
      assert.equal(await page.locator('#welcome').isVisible(), true);
      await page.click('#delete-all');
      await page.click('#confirm-yes');
      await page.waitForFunction(() => document.querySelectorAll('#history li').length === 0);
      await reload(page);
      assert.equal(await page.locator('.turn').count(), 0);
    }));

  it('become two where a tab and its copy go on from one', () =>
    withPage({}, {}, async (page) => {
      await ask(page, 'One');
      const copy = await duplicate(page);
      await ask(page, 'Two');
      await ask(copy, 'Three');
      await ask(page, 'Four');
      await ask(copy, 'Five');
      for (const [tab, expected] of [
        [page, ['One', 'Two', 'Four']],
        [copy, ['One', 'Three', 'Five']],
      ]) {
        await reload(tab);
        await tab.locator('.turn').nth(2).waitFor();
        assert.deepEqual(await messages(tab), expected);
      }
      await page.click('#open-history');
      await page.locator('#history li').nth(1).waitFor();
      assert.deepEqual(await rows(page), ['One', 'One']);
    }));

  it('stay where a tab empties what its copy has changed', () =>
    withPage({}, {}, async (page) => {
      await ask(page, 'One');
      const copy = await duplicate(page);
      await ask(copy, 'Two');
      await page.locator('.message').locator('text=Delete').click();
      await page.click('#confirm-yes');
      await page.locator('.turn').waitFor({state: 'detached'});
      await reload(copy);
      await copy.locator('.turn').nth(1).waitFor();
      assert.deepEqual(await messages(copy), ['One', 'Two']);
    }));

  it('go through a file and come back the same', () =>
    withPage({}, {}, async (page) => {
      await page.check('#compare');
      await ask(page, 'One');
      await page.click('#new-chat');
      await ask(page, 'Two');
      await page.click('#open-history');
      const file = await exported(page, () => page.click('#export-all'));
      assert.equal(JSON.parse(file).conversations.length, 2);
      await importText(page, file);
      await page.waitForFunction(() => /^0 of 2/.test(document.getElementById('notice-text').textContent));
      await page.click('#delete-all');
      await page.click('#confirm-yes');
      await page.waitForFunction(() => document.querySelectorAll('#history li').length === 0);
      await importText(page, file);
      await page.waitForFunction(() => /^2 of 2/.test(document.getElementById('notice-text').textContent));
      assert.equal(await exported(page, () => page.click('#export-all')), file);
      await page.click('#history .open >> text=One');
      await page.locator('.verdict').waitFor();
      assert.equal(await page.locator('.answer').count(), 2);
      assert.match(await page.textContent('.verdict'), /^The same text/);
      assert.equal(
        JSON.parse(await exported(page, () => page.click('[aria-label="Export Two"]'))).conversations[0].title,
        'Two',
      );
    }));

  it('are refused with a sentence where the file is not theirs', () =>
    withPage({}, {}, async (page) => {
      await page.click('#open-history');
      const good = {id: 'a', title: 't', created: 1, changed: 1, turns: []};
      const file = (...conversations) => JSON.stringify({format: 'volley.conversations', version: 1, conversations});
      const answer = (trace) => ({
        speculative: true,
        seed: 1,
        asJson: false,
        notes: [],
        answer: {trace, finish: 'stop', tokens: 1, firstToken: 1, rate: 1},
      });
      for (const [text, sentence] of [
        ['{', /is not JSON/],
        ['{"format": "other"}', /no conversations/],
        [JSON.stringify({format: 'volley.conversations', version: 9, conversations: []}), /version 9/],
        [file({...good, title: 5}), /Conversation 1 of this file/],
        [
          file(good, {...good, turns: [{message: 'x', answers: [answer({text: 'abc', marks: [0, 99, 1]})]}]}),
          /Conversation 2 of this file/,
        ],
      ]) {
        await importText(page, text);
        await page.waitForFunction(
          (source) => new RegExp(source).test(document.getElementById('notice-text').textContent),
          sentence.source,
        );
      }
      assert.equal((await rows(page)).length, 0);
      const hostile = '<img src=x onerror="globalThis.owned = 1">';
      await importText(page, file({...good, title: hostile, turns: [{message: hostile, answers: []}]}));
      await page.locator('#history li').waitFor();
      await page.click('#history li .open');
      await page.locator('.message .said').waitFor();
      assert.deepEqual(await messages(page), [hostile]);
      assert.equal(await page.evaluate(() => globalThis.owned), undefined);
    }));

  it('have a bound, and the reader hears of it', () =>
    withPage({}, {}, async (page) => {
      const many = Array.from({length: 200}, (_, i) => ({
        id: `${i}`,
        title: `Chat ${i}`,
        created: i,
        changed: i,
        turns: [{message: 'x', answers: []}],
      }));
      await page.click('#open-history');
      await importText(page, JSON.stringify({format: 'volley.conversations', version: 1, conversations: many}));
      await page.waitForFunction(() => /^200 of 200/.test(document.getElementById('notice-text').textContent));
      await page.click('#notice-close');
      await ask(page, 'One too many');
      await page.locator('#notice:not([hidden])').waitFor();
      assert.match(
        await page.textContent('#notice-text'),
        /no room for this conversation.*200 of them.*Export and delete/,
      );
      assert.equal(await answerText(page), kText);
      assert.equal((await rows(page)).length, 200);
      // Large ones count by their size.
      await page.click('#notice-close');
      await page.click('#delete-all');
      await page.click('#confirm-yes');
      await page.waitForFunction(() => document.querySelectorAll('#history li').length === 0);
      await page.evaluate(
        (four) => {
          const conversations = four.map((one) => ({...one, turns: [{message: 'x'.repeat(9e6), answers: []}]}));
          const files = new DataTransfer();
          files.items.add(
            new File([JSON.stringify({format: 'volley.conversations', version: 1, conversations})], 'large.json'),
          );
          const input = document.getElementById('import-file');
          input.files = files.files;
          input.dispatchEvent(new Event('change'));
        },
        many.slice(0, 4),
      );
      await page.locator('#notice:not([hidden])').waitFor();
      assert.match(await page.textContent('#notice-text'), /no room/);
      await page.waitForFunction(() => document.querySelectorAll('#history li').length === 3);
    }));

  it('do without a browser that keeps anything', () =>
    withPage({}, {}, async (page) => {
      await page.addInitScript(() => {
        IDBFactory.prototype.open = () => {
          throw new DOMException('not here', 'SecurityError');
        };
      });
      await reload(page);
      await ask(page, 'One');
      assert.equal(await answerText(page), kText);
      assert.match(await page.textContent('#notice-text'), /keeps nothing for this page/);
    }));
});

describe('turns', () => {
  const {withPage, mock} = scriptedPage(kSteps);

  it('are answered anew, with another seed', () =>
    withPage({}, {}, async (page) => {
      await ask(page, 'One');
      mock().script = {steps: kOther};
      await page.click('text=Regenerate');
      await idle(page);
      assert.equal(await answerText(page), 'Another answer.');
      assert.equal(await page.locator('.answer').count(), 1);
      assert.notEqual(mock().requests[0].seed, mock().requests[1].seed);
      assert.deepEqual(mock().requests[0].messages, mock().requests[1].messages);
      await reload(page);
      await page.locator('.answer').waitFor();
      assert.equal(await answerText(page), 'Another answer.');
    }));

  it('are edited, after a question where others follow', () =>
    withPage({}, {}, async (page) => {
      await ask(page, 'One');
      await ask(page, 'Two');
      await page.locator('.message').first().locator('text=Edit').click();
      assert.equal(await page.inputValue('.edit textarea'), 'One');
      assert.deepEqual(await accessibilityProblems(page), []);
      await page.keyboard.press('Escape');
      assert.deepEqual(await messages(page), ['One', 'Two']);
      await page.locator('.message').first().locator('text=Edit').click();
      await page.fill('.edit textarea', 'Changed');
      await page.keyboard.press('Enter');
      await page.locator('#confirm-dialog[open]').waitFor();
      assert.match(await page.textContent('#confirm-question'), /The turn after this one will be deleted/);
      await page.click('#confirm-no');
      assert.equal(await page.locator('.turn').count(), 2);
      await page.click('text=Send again');
      await page.click('#confirm-yes');
      await page.waitForFunction(() => document.querySelectorAll('.turn').length === 1);
      await idle(page);
      assert.deepEqual(await messages(page), ['Changed']);
      assert.deepEqual(
        mock()
          .requests.at(-1)
          .messages.map(({content}) => content),
        ['Changed'],
      );
    }));

  it('are deleted with their answers', () =>
    withPage({}, {}, async (page) => {
      await ask(page, 'One');
      await ask(page, 'Two');
      await page.locator('.message').first().locator('text=Delete').click();
      await page.click('#confirm-yes');
      await page.waitForFunction(() => document.querySelectorAll('.turn').length === 1);
      await ask(page, 'Three');
      assert.deepEqual(
        mock()
          .requests.at(-1)
          .messages.map(({content}) => content),
        ['Two', kText, 'Three'],
      );
      await reload(page);
      await page.locator('.turn').nth(1).waitFor();
      assert.deepEqual(await messages(page), ['Two', 'Three']);
    }));

  it('can be asked at once in a new chat while another is answered', () =>
    withPage({pauseMs: 200}, {}, async (page) => {
      await send(page, 'One');
      await page.locator('.answer-text .token').first().waitFor();
      await page.click('#new-chat');
      await ask(page, 'Two');
      assert.deepEqual(await messages(page), ['Two']);
      assert.equal(await answerText(page), kText);
      await page.click('#open-history');
      await page.locator('#history li').nth(1).waitFor();
      assert.deepEqual((await rows(page)).sort(), ['One', 'Two']);
    }));

  it('are reached by keyboard alone: edit, regenerate, the list of chats, export', () =>
    withPage({}, {}, async (page) => {
      const tabTo = async (description, matches) => {
        for (let i = 0; i < 60; ++i) {
          if (await page.evaluate(matches)) return;
          await page.keyboard.press('Tab');
        }
        assert.fail(`no ${description} by Tab`);
      };
      await page.focus('#prompt');
      await page.keyboard.type('One');
      await page.keyboard.press('Enter');
      await idle(page);
      await tabTo('Edit', () => document.activeElement.textContent === 'Edit');
      await page.keyboard.press('Enter');
      await page.keyboard.press('End');
      await page.keyboard.type(' more');
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.querySelector('.said')?.textContent === 'One more');
      await idle(page);
      assert.equal(await page.evaluate(() => document.activeElement.id), 'prompt');
      await tabTo('Regenerate', () => document.activeElement.textContent === 'Regenerate');
      await page.keyboard.press('Space');
      await page.waitForTimeout(50);
      await idle(page);
      assert.equal(mock().requests.length, 3);
      await tabTo('Chats', () => document.activeElement.id === 'open-history');
      await page.keyboard.press('Enter');
      await tabTo('the chat', () => document.activeElement.matches('#history li .open'));
      await page.keyboard.press('Enter');
      await tabTo('its Delete', () => document.activeElement.getAttribute('aria-label') === 'Delete One more');
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.activeElement.id === 'confirm-no');
      await page.keyboard.press('Tab');
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.querySelectorAll('#history li').length === 0);
      await page.waitForFunction(() => document.activeElement.id === 'import');
      await page.keyboard.press('Escape');
      assert.equal(await page.evaluate(() => document.activeElement.id), 'open-history');
    }));
});
