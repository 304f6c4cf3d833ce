// The message field and what stands around it: the focus, the end of the text, the meter of the context, going on with
// an answer, and what an empty page proposes. Before a scripted server.
import assert from 'node:assert/strict';
import {describe, it} from 'node:test';
import {accessibilityProblems, answerText, ask, idle, send} from './support/browser.mjs';
import {block, firstToken} from './support/mock_server.mjs';
import {scriptedPage} from './support/scripted_page.mjs';

const kSteps = [firstToken('The'), block(7, ' fox', ' went', ' out'), block(7, ' at', ' night', '.')];
const kText = 'The fox went out at night.';
const kLong = [firstToken('So'), ...Array.from({length: 400}, () => block(5, ' it', ' went', ' on.\n\n'))];
const kCard = {max_model_len: 100};

const focused = (page) => page.evaluate(() => document.activeElement.id || document.activeElement.textContent);

describe('the focus', () => {
  const {withPage} = scriptedPage(kSteps);

  it('is in the message field when the page opens, an answer ends or a conversation is chosen', () =>
    withPage({}, {}, async (page) => {
      assert.equal(await focused(page), 'prompt');
      await page.fill('#prompt', 'One');
      await page.click('#send');
      await idle(page);
      assert.equal(await focused(page), 'prompt');
      await page.click('text=Regenerate');
      await page.waitForTimeout(50);
      await idle(page);
      assert.equal(await focused(page), 'prompt');
      await page.click('#new-chat');
      await page.click('#examples button');
      await idle(page);
      assert.equal(await focused(page), 'prompt');
      await page.click('#open-history');
      await page.click('#history .open >> text=One');
      await page.waitForFunction(() => document.querySelector('.said')?.textContent === 'One');
      assert.equal(await focused(page), 'prompt');
    }));

  it('is there after Stop too', () =>
    withPage({steps: kLong, pauseMs: 20}, {}, async (page) => {
      await send(page, 'One');
      await page.locator('.answer-text .token').first().waitFor();
      await page.click('#stop');
      await idle(page);
      assert.equal(await focused(page), 'prompt');
    }));

  it('stays with a reader who took it elsewhere', () =>
    withPage({pauseMs: 200}, {}, async (page) => {
      await send(page, 'One');
      await page.click('#open-settings');
      await page.focus('[name="system"]');
      await idle(page);
      assert.equal(await page.evaluate(() => document.activeElement.name), 'system');
    }));

  it('is taken by nothing where it would open a keyboard, and a chosen conversation is in sight', () =>
    withPage({}, {hasTouch: true, isMobile: true, viewport: {width: 390, height: 844}}, async (page) => {
      assert.notEqual(await focused(page), 'prompt');
      await page.keyboard.press('Tab');
      assert.equal(await page.evaluate(() => document.activeElement.className), 'skip');
      await page.keyboard.press('Enter');
      assert.equal(await focused(page), 'prompt');
      await page.tap('#new-chat');
      await page.tap('#examples button');
      await idle(page);
      assert.notEqual(await focused(page), 'prompt');
      await page.tap('#open-history');
      await page.tap('#history .open');
      await page.locator('#history').waitFor({state: 'hidden'});
      assert.notEqual(await focused(page), 'prompt');
    }));
});

describe('the end of the text', () => {
  const {withPage} = scriptedPage(kLong);
  const left = (page) =>
    page.evaluate(() => {
      const {scrollHeight, scrollTop, clientHeight} = document.getElementById('conversation');
      return scrollHeight - scrollTop - clientHeight;
    });
  const top = (page) => page.evaluate(() => document.getElementById('conversation').scrollTop);
  const follows = async (page) => {
    await page.waitForTimeout(300);
    for (let i = 0; i < 5; ++i) {
      assert.ok((await left(page)) < 40);
      await page.waitForTimeout(60);
    }
  };

  // While an answer is written: `leave` scrolls up a little, and what is in sight then stays.
  async function leavesAlone(page, leave) {
    await send(page, 'Go on');
    await page.waitForFunction(() => document.getElementById('conversation').scrollTop > 300);
    await follows(page);
    await leave();
    await page.waitForTimeout(400); // the browser scrolls smoothly
    const stands = await top(page);
    await page.waitForTimeout(500);
    assert.equal(await top(page), stands);
    assert.ok((await left(page)) > 40);
    assert.equal(await page.locator('#to-end').isVisible(), true);
  }
  const over = (page) => page.mouse.move(600, 300);

  it('is left with one notch of the wheel, and found again with others', () =>
    withPage({pauseMs: 15}, {}, async (page) => {
      await over(page);
      await leavesAlone(page, () => page.mouse.wheel(0, -60));
      assert.deepEqual(await accessibilityProblems(page), []);
      await page.mouse.wheel(0, 100_000);
      await follows(page);
      assert.equal(await page.locator('#to-end').isVisible(), false);
      await page.keyboard.press('Escape');
      await idle(page);
    }));

  it('is left with a page up from the message field, and found again with the button', () =>
    withPage({pauseMs: 15}, {}, async (page) => {
      await leavesAlone(page, () => page.press('#prompt', 'PageUp'));
      const before = await top(page);
      await page.press('#prompt', 'PageUp');
      assert.ok((await top(page)) < before);
      await page.press('#prompt', 'PageDown');
      assert.equal(await top(page), before);
      await page.click('#to-end');
      assert.equal(await focused(page), 'prompt');
      await follows(page);
      await page.keyboard.press('Escape');
      await idle(page);
    }));

  // This browser scrolls at once; others begin with less than a pixel.
  it('is left before a smooth scroll has moved anything', async () => {
    for (const [type, fields] of [
      ['wheel', {deltaY: -60}],
      ['keydown', {key: 'PageUp'}],
    ]) {
      await withPage({pauseMs: 15}, {}, async (page) => {
        await leavesAlone(page, () => page.dispatchEvent('#conversation', type, fields));
        await page.keyboard.press('Escape');
        await idle(page);
      });
    }
  });

  it('is left with a drag of a finger', () =>
    withPage({pauseMs: 15}, {hasTouch: true, isMobile: true, viewport: {width: 390, height: 700}}, async (page) => {
      const devtools = await page.context().newCDPSession(page);
      const touch = (type, y) =>
        devtools.send('Input.dispatchTouchEvent', {type, touchPoints: y === null ? [] : [{x: 200, y}]});
      await leavesAlone(page, async () => {
        await touch('touchStart', 250);
        for (let y = 255; y <= 350; y += 5) await touch('touchMove', y);
        await touch('touchEnd', null);
      });
      await page.tap('#stop');
      await idle(page);
    }));

  it('is left where the reader is when the answer ends', () =>
    withPage({steps: kLong.slice(0, 60), pauseMs: 25}, {}, async (page) => {
      await over(page);
      await leavesAlone(page, () => page.mouse.wheel(0, -200));
      const stands = await top(page);
      await idle(page);
      assert.equal(await top(page), stands);
    }));
});

describe('the meter of the context', () => {
  const {withPage, mock} = scriptedPage(kSteps);
  const meter = (page) => page.locator('#context');

  it('says what the latest answer took, also after a reload, and moves nothing', () =>
    withPage({card: kCard}, {}, async (page) => {
      const box = () =>
        page.evaluate(() => Math.round(document.getElementById('composer').getBoundingClientRect().height));
      const before = await box();
      assert.equal(await meter(page).isVisible(), false);
      await ask(page, 'One');
      assert.equal(await meter(page).textContent(), '14 % of context'); // 7 of the prompt, 7 of the answer
      assert.match(await meter(page).getAttribute('aria-valuetext'), /^14 of the 100 tokens/);
      assert.equal(await box(), before);
      assert.deepEqual(await accessibilityProblems(page), []);
      await page.reload();
      await page.locator('.answer').waitFor();
      await page.waitForFunction(() => document.getElementById('context').textContent === '14 % of context');
      await page.click('#new-chat');
      assert.equal(await meter(page).isVisible(), false);
    }));

  it('counts an answer that was stopped', () =>
    withPage({card: {max_model_len: 10_000}, steps: kLong, pauseMs: 10, promptTokens: 2000}, {}, async (page) => {
      await send(page, 'One');
      await page.locator('.answer-text .bonus').first().waitFor();
      await page.keyboard.press('Escape');
      await idle(page);
      assert.match(await meter(page).textContent(), /^2\d % of context/);
    }));

  it('warns near the end, and says in a sentence that it is full', async () => {
    for (const viewport of [
      {width: 1280, height: 800},
      {width: 390, height: 844},
    ]) {
      await withPage({card: kCard, promptTokens: 85}, {viewport}, async (page) => {
        await ask(page, 'One');
        assert.equal(await page.locator('#context.near').textContent(), '92 % of context');
        mock().script = {steps: kSteps, card: kCard, promptTokens: 93, finish: 'length'};
        await ask(page, 'Two');
        assert.equal(await meter(page).innerText(), 'The context is full: start a new chat.');
        assert.match(await page.locator('.answer').last().textContent(), /Cut off: the model’s context is full\./);
        assert.equal(await page.locator('text=Continue').count(), 0);
        assert.deepEqual(await accessibilityProblems(page), []);
      });
    }
  });

  it('is not there where the server tells no length', () =>
    withPage({}, {}, async (page) => {
      await ask(page, 'One');
      assert.equal(await meter(page).isVisible(), false);
    }));
});

describe('an answer that is not complete', () => {
  const {withPage, mock} = scriptedPage(kSteps);
  const kMore = [firstToken(' and'), block(7, ' came', ' back', '.')];
  const sent = () => mock().requests.at(-1);
  const goOn = async (page) => {
    await page.click('text=Continue');
    await page.waitForTimeout(50);
    await idle(page);
  };

  it('goes on where it was cut, with its seed and settings, and is one answer', () =>
    withPage({finish: 'length'}, {}, async (page) => {
      await ask(page, 'One');
      await ask(page, 'Two');
      await page.click('#open-settings');
      await page.fill('[name="seed"]', '5');
      await page.fill('[name="temperature"]', '0.5');
      await page.fill('[name="schema"]', '{"type": "object"}');
      const {seed} = sent();
      mock().script = {steps: kSteps, more: kMore};
      await page.locator('.answer').last().locator('text=Continue').click();
      await page.waitForTimeout(50);
      await idle(page);
      assert.equal(await answerText(page, 1), `${kText} and came back.`);
      assert.equal(await page.locator('.answer').count(), 2);
      assert.equal(sent().continue_final_message, true);
      assert.deepEqual([sent().seed, sent().temperature, sent().response_format], [seed, 0.5, undefined]);
      assert.deepEqual(
        sent().messages.map(({role, content}) => [role, content]),
        [
          ['user', 'One'],
          ['assistant', kText],
          ['user', 'Two'],
          ['assistant', kText],
        ],
      );
      assert.equal(await page.locator('.answer').last().locator('text=Continue').count(), 0);
      assert.doesNotMatch(await page.locator('.answer').last().textContent(), /Cut off/);
      await page.reload();
      await page.locator('.answer').nth(1).waitFor();
      assert.equal(await answerText(page, 1), `${kText} and came back.`);
    }));

  it('goes on after Stop, and after the page was left', () =>
    withPage({steps: [...kSteps, ...kLong], more: kMore, pauseMs: 60}, {}, async (page) => {
      await send(page, 'One');
      await page.waitForFunction((text) => document.querySelector('.answer-text')?.textContent.startsWith(text), kText);
      await page.click('#stop');
      await idle(page);
      const stopped = await page.evaluate(() => document.querySelector('.answer-text').textContent);
      await page.reload();
      await page.locator('.answer').waitFor();
      assert.match(await page.locator('.answer').textContent(), /Stopped\./);
      await goOn(page);
      const whole = await answerText(page);
      assert.ok(whole.startsWith(stopped.trimEnd()) && whole.endsWith('and came back.'), whole);
      assert.doesNotMatch(await page.locator('.answer').textContent(), /Stopped\./);
      assert.equal(await focused(page), 'prompt');
    }));

  it('brings its thoughts along', () => {
    const steps = [{...block(5, 'So', ' it'), thoughts: 'So it'}, ...kSteps];
    return withPage({steps, more: kMore, finish: 'length'}, {}, async (page) => {
      await ask(page, 'One');
      await goOn(page);
      assert.deepEqual(sent().messages.at(-1), {role: 'assistant', content: kText, reasoning_content: 'So it'});
      assert.equal(await answerText(page), `${kText} and came back.`);
    });
  });

  it('keeps what was there when the server refuses, and can be asked again', () =>
    withPage({finish: 'length'}, {expected: /status of 400/}, async (page) => {
      await ask(page, 'One');
      mock().script = {refusal: 'Not now.'};
      await goOn(page);
      assert.match(await page.textContent('.failure'), /Not now\./);
      assert.equal(await answerText(page), kText);
      mock().script = {more: kMore};
      await page.click('text=Try again');
      await page.waitForTimeout(50);
      await idle(page);
      assert.equal(sent().continue_final_message, true);
      assert.equal(await answerText(page), `${kText} and came back.`);
    }));

  it('asks before it drops the turns that follow', () =>
    withPage({finish: 'length'}, {}, async (page) => {
      await ask(page, 'One');
      await ask(page, 'Two');
      await page.locator('text=Continue').first().click();
      await page.click('#confirm-no');
      assert.equal(mock().requests.length, 2);
      mock().script = {more: kMore};
      await page.locator('text=Continue').first().click();
      await page.click('#confirm-yes');
      await page.waitForFunction(() => document.querySelectorAll('.turn').length === 1);
      await idle(page);
      assert.equal(await answerText(page), `${kText} and came back.`);
    }));

  it('is told apart from one that is complete, compared, or JSON', () =>
    withPage({}, {}, async (page) => {
      await ask(page, 'One');
      mock().script = {steps: kSteps, finish: 'length'};
      await page.check('#compare');
      await ask(page, 'Two');
      await page.uncheck('#compare');
      await page.click('#open-settings');
      await page.fill('[name="schema"]', '{"type": "object"}');
      await ask(page, 'Three');
      assert.equal(await page.locator('.answer').count(), 4);
      assert.equal(await page.locator('text=Continue').count(), 0);
    }));
});

describe('the empty page', () => {
  const {withPage, mock} = scriptedPage(kSteps);
  const examples = (page) => page.locator('#examples button').allTextContents();

  it('says of the pocket model what it is, and proposes its tasks', () =>
    withPage({models: ['pocket', 'other']}, {}, async (page) => {
      assert.match(await page.textContent('#model-note'), /is a toy .* four tasks/);
      const proposed = await examples(page);
      assert.match(proposed.join('\n'), /What is .*\nSort these .*\nTurn the facts into JSON.*\nTell me a story/);
      assert.deepEqual(await accessibilityProblems(page), []);
      await page.click('#open-settings');
      await page.selectOption('[name="model"]', 'other');
      assert.equal(await page.locator('#model-note').isVisible(), false);
      assert.notDeepEqual(await examples(page), proposed);
      await page.selectOption('[name="model"]', 'pocket');
      await page.click('#close-settings');
      await page.click(`text=${proposed[1]}`);
      await idle(page);
      assert.equal(mock().requests[0].messages[0].content, proposed[1]);
      assert.equal(await page.locator('#welcome').isVisible(), false);
    }));

  it('proposes general things to another model, and no examples before it is known', async () => {
    await withPage({}, {}, async (page) => {
      assert.equal(await page.locator('#model-note').isVisible(), false);
      assert.match((await examples(page)).join('\n'), /Why .*\nWrite a Python function.*\nSummarise.*\n.*JSON/);
    });
    await withPage({loading: 1}, {expected: /status of 503/}, async (page) => {
      assert.equal(await page.locator('#examples').isVisible(), false);
      await page.locator('#examples button').first().waitFor();
    });
  });
});

describe('pictures', () => {
  const {withPage, mock} = scriptedPage(kSteps);
  const kPixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
  const kUrl = `data:image/png;base64,${kPixel}`;
  const file = (mimeType, name) => ({name, mimeType, buffer: Buffer.from(kPixel, 'base64')});
  const sees = {card: {modalities: ['text', 'image']}};
  const thumbnails = (page) => page.locator('#pictures .thumbnail').count();
  const drop = (page, kind) =>
    page.evaluate(
      ([url, event]) => {
        const data = new DataTransfer();
        const bytes = Uint8Array.from(atob(url.split(',')[1]), (c) => c.charCodeAt(0));
        data.items.add(new File([bytes], 'a.png', {type: 'image/png'}));
        const made =
          event === 'drop'
            ? new DragEvent('drop', {dataTransfer: data, bubbles: true})
            : new ClipboardEvent('paste', {clipboardData: data, bubbles: true});
        document.getElementById('prompt').dispatchEvent(made);
      },
      [kUrl, kind],
    );

  it('are chosen, pasted and dropped, shown, sent with the message and kept', () =>
    withPage(sees, {}, async (page) => {
      await page.setInputFiles('#picture-file', [file('image/png', 'a.png'), file('image/png', 'b.png')]);
      await drop(page, 'paste');
      await drop(page, 'drop');
      await page.waitForFunction(() => document.querySelectorAll('#pictures .thumbnail').length === 4);
      await page.click('#pictures button >> nth=0');
      await page.click('#pictures button >> nth=0');
      assert.equal(await thumbnails(page), 2);
      assert.deepEqual(await accessibilityProblems(page), []);
      await page.fill('#prompt', 'What?');
      await page.click('#send');
      await idle(page);
      const picture = {type: 'image_url', image_url: {url: kUrl}};
      const content = [picture, picture, {type: 'text', text: 'What?'}];
      assert.deepEqual(mock().requests.at(-1).messages.at(-1).content, content);
      assert.equal(await thumbnails(page), 0);
      await page.reload();
      await page.locator('.answer').waitFor();
      assert.equal(await page.locator('.message .thumbnail').count(), 2);
      await page.fill('#prompt', 'And?');
      await page.click('#send');
      await idle(page);
      assert.deepEqual(mock().requests.at(-1).messages[0].content, content);
    }));

  it('of other kinds are refused by a sentence, and a model without sight is offered none', async () => {
    await withPage(sees, {}, async (page) => {
      await page.setInputFiles('#picture-file', file('image/svg+xml', 'a.svg'));
      await page.locator('#notice >> text=a.svg is no picture').waitFor();
      assert.equal(await thumbnails(page), 0);
    });
    await withPage({}, {}, async (page) => {
      assert.equal(await page.locator('#add-picture').isVisible(), false);
      await drop(page, 'paste');
      await page.waitForTimeout(50);
      assert.equal(await thumbnails(page), 0);
    });
  });
});
