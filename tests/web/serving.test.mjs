// The page as `volley serve` serves it, with the pocket models: nothing between the engine and the screen is scripted.
// VOLLEY_SCREENSHOTS=FOLDER leaves pictures there.
import assert from 'node:assert/strict';
import {mkdir, readFile, readdir} from 'node:fs/promises';
import {after, before, describe, it} from 'node:test';
import {answerText, ask, closePage, drawnBlocks, figure, idle, launch, openPage, send} from './support/browser.mjs';
import {kRoot} from './support/packages.mjs';
import {parseEvents, startVolley} from './support/volley.mjs';

const kStory = 'Tell me a story about a fox and a lantern.';

describe('the page of a real server', () => {
  let browser;
  let volley;
  before(async () => {
    // What a step drafts is then no matter of how busy the machine is.
    volley = await startVolley({args: ['--verify', 'full']});
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    assert.equal(await volley.stop(), 0);
  });

  async function withPage(options, act) {
    const page = await openPage(browser, volley.url, options);
    await act(page);
    await closePage(page);
  }

  async function complete(fields) {
    const response = await fetch(`${volley.url}v1/chat/completions`, {
      method: 'POST',
      headers: {'Content-Type': 'application/json'},
      body: JSON.stringify({messages: [{role: 'user', content: kStory}], ...fields}),
    });
    assert.equal(response.status, 200);
    return response.json();
  }

  const setSeed = async (page, seed) => {
    await page.click('#open-settings');
    await page.fill('[name="seed"]', String(seed));
    await page.fill('[name="temperature"]', '0.8');
    await page.click('#close-settings');
  };

  it('is served whole, with its policy, and again only when it has changed', async () => {
    const response = await fetch(volley.url);
    assert.match(response.headers.get('content-security-policy'), /^default-src 'none'/);
    assert.match(response.headers.get('content-type'), /^text\/html/);
    const again = await fetch(volley.url, {headers: {'If-None-Match': response.headers.get('etag')}});
    assert.equal(again.status, 304);
    assert.equal((await fetch(volley.url, {method: 'HEAD'})).status, 200);
  });

  it('is served compressed to those who read that, libraries to nobody else', async (test) => {
    const folder = `${kRoot}src/serve/web/`;
    const names = [...(await readdir(folder)), ...(await readdir(`${folder}vendor`)).map((name) => `vendor/${name}`)];
    let [sent, whole] = [0, 0];
    for (const name of names.filter((one) => one !== 'CMakeLists.txt' && /\.(html|css|js|svg|txt|woff2)$/.test(one))) {
      const bytes = await readFile(folder + name);
      const response = await fetch(volley.url + (name === 'index.html' ? '' : `web/${name}`)); // accepts gzip by itself
      assert.equal(response.headers.get('content-encoding'), name.endsWith('.woff2') ? null : 'gzip', name);
      sent += Number(response.headers.get('content-length'));
      whole += bytes.length;
      assert.ok(Buffer.from(await response.arrayBuffer()).equals(bytes), name);
      const plain = await fetch(response.url, {headers: {'Accept-Encoding': 'identity'}});
      const refused = name.startsWith('vendor/') && !name.endsWith('.woff2');
      assert.equal(plain.status, refused ? 406 : 200, name);
      if (!refused) assert.ok(Buffer.from(await plain.arrayBuffer()).equals(bytes), name);
    }
    test.diagnostic(`the page's files have ${whole} bytes, and are sent as ${sent}`);
  });

  it('asks nobody but its server for anything', () =>
    withPage({}, async (page) => {
      assert.equal(await page.textContent('#model-name'), 'pocket');
      assert.match(await page.textContent('#model-note'), /toy/);
      assert.deepEqual(page.complaints, []);
    }));

  it('streams the text that the API gives for the same seed', () =>
    withPage({}, async (page) => {
      await setSeed(page, 11);
      await ask(page, kStory);
      const {choices} = await complete({seed: 11, temperature: 0.8});
      assert.equal(await answerText(page), choices[0].message.content);
    }));

  it('draws blocks whose sums are the usage', () =>
    withPage({}, async (page) => {
      let body;
      await page.route('**/v1/chat/completions', async (route) => {
        const response = await route.fetch();
        body = await response.text();
        await route.fulfill({response, body});
      });
      for (const seed of [1, 2, 3]) {
        await setSeed(page, seed);
        await ask(page, kStory);
        // The page asks for usage with every piece; the last one has the details.
        const {usage} = parseEvents(body).findLast((event) => event.usage);
        const details = usage.completion_tokens_details;
        const drawn = await drawnBlocks(page, seed - 1);
        assert.equal(drawn.accepted, details.accepted_prediction_tokens);
        assert.equal(drawn.rejected, details.rejected_prediction_tokens);
        assert.equal(drawn.rejectedInText, details.rejected_prediction_tokens);
        assert.equal(drawn.accepted + drawn.bonus + drawn.plain + 1, usage.completion_tokens);
        assert.ok(drawn.bonusInText > 0 && drawn.bonusInText <= drawn.bonus);
        assert.equal(await figure(page, 'tokens', seed - 1), String(usage.completion_tokens));
      }
    }));

  it('goes on with an answer that was cut, as the API does with its text', () =>
    withPage({}, async (page) => {
      await setSeed(page, 11);
      await page.click('#open-settings');
      await page.fill('[name="max_tokens"]', '12');
      await ask(page, kStory);
      const cut = await answerText(page);
      await page.fill('[name="max_tokens"]', '');
      await page.click('text=Continue');
      await page.waitForFunction((text) => document.querySelector('.answer-text').textContent.length > text.length, cut);
      await idle(page);
      const {choices, usage} = await complete({
        messages: [
          {role: 'user', content: kStory},
          {role: 'assistant', content: cut},
        ],
        continue_final_message: true,
        seed: 11,
        temperature: 0.8,
      });
      assert.equal(await answerText(page), cut + choices[0].message.content);
      assert.equal(await figure(page, 'tokens'), String(12 + usage.completion_tokens));
      const {data} = await (await fetch(`${volley.url}v1/models`)).json();
      const share = Math.round((usage.total_tokens / data[0].max_model_len) * 100);
      assert.equal(await page.textContent('#context'), `${share} % of context`);
    }));

  it('gives the same text without speculation, one token a step', () =>
    withPage({}, async (page) => {
      await page.check('#compare');
      await setSeed(page, 5);
      await ask(page, kStory);
      assert.match(await page.textContent('.verdict'), /^The same text, \d+ tokens/);
      assert.equal(await answerText(page, 0), await answerText(page, 1));
      assert.equal(await figure(page, 'length', 1), '1.0');
      assert.ok(Number(await figure(page, 'length', 0)) > 2);
    }));

  it('shows what the server takes for an empty field, and holds an answer to a schema', () =>
    withPage({}, async (page) => {
      const {data} = await (await fetch(`${volley.url}v1/models`)).json();
      const defaults = data[0].volley.default_sampling;
      await page.click('#open-settings');
      assert.equal(await page.getAttribute('[name="temperature"]', 'placeholder'), String(defaults.temperature));
      assert.equal(await page.isVisible('#thinking'), data[0].volley.thinking !== null);
      const schema = {
        type: 'object',
        properties: {name: {type: 'string', maxLength: 8}},
        required: ['name'],
        additionalProperties: false,
      };
      await page.fill('[name="schema"]', JSON.stringify(schema));
      await ask(page, 'Turn the facts into JSON: Mia is 59 years old.');
      const answer = JSON.parse(await page.locator('.answer-text code').textContent());
      assert.deepEqual(Object.keys(answer), ['name']);
      await page.locator('.answer-text .hljs-attr').first().waitFor();
      await page.reload();
      await page.locator('.answer').waitFor();
      assert.deepEqual(JSON.parse(await page.locator('.answer-text code').textContent()), answer);
    }));

  it('applies the settings', () =>
    withPage({}, async (page) => {
      await page.click('#open-settings');
      await page.fill('[name="max_tokens"]', '5');
      await ask(page, kStory);
      assert.equal(await figure(page, 'tokens'), '5');
      assert.match(await page.locator('.answer').textContent(), /Cut off at the token limit/);
      await page.fill('[name="max_tokens"]', '');
      await page.fill('[name="stop"]', '.');
      await ask(page, kStory);
      const text = await answerText(page, 1);
      assert.ok(text.length > 0 && !text.includes('.'));
      // What the page lets through and the server does not is told in the server's words.
      await page.fill('[name="stop"]', '');
      await page.evaluate(() => (document.querySelector('[name="max_tokens"]').max = ''));
      await page.fill('[name="max_tokens"]', '4000000');
      page.once('console', () => page.complaints.pop());
      await ask(page, kStory);
      assert.match(await page.locator('.failure').textContent(), /context length/);
    }));

  it('stops: the server cancels the request', () =>
    withPage({}, async (page) => {
      // The pocket models are done with a story before a finger moves, so this one may not end by itself, and the
      // click comes from within the page.
      await page.route('**/v1/chat/completions', (route) => {
        const body = {...route.request().postDataJSON(), ignore_eos: true};
        body.volley.speculation = false;
        route.continue({postData: JSON.stringify(body)});
      });
      await page.evaluate(() => {
        const click = () =>
          document.querySelector('.answer-text')?.textContent && document.getElementById('stop').click();
        new MutationObserver(click).observe(document.getElementById('conversation'), {subtree: true, childList: true});
      });
      await ask(page, kStory);
      assert.match(await page.locator('.answer').textContent(), /Stopped\./);
      // It has no end of its own and the context holds 2048 tokens: fewer means that it was cancelled.
      assert.ok(Number((await figure(page, 'tokens')).replace(',', '')) < 1900);
    }));

  it('shows the first token soon', async (test) => {
    await withPage({}, async (page) => {
      const times = [];
      for (let i = 0; i < 5; ++i) {
        await page.fill('#prompt', kStory);
        times.push(await page.evaluate(timeToPaintedText));
        await idle(page);
      }
      times.sort((a, b) => a - b);
      test.diagnostic(
        `from sending to the first token on screen: median ${times[2].toFixed(0)} ms, slowest ${times[4].toFixed(0)} ms`,
      );
      assert.ok(times[4] < 5000);
    });
  });

  it('asks for the key of a server that wants one', async () => {
    const locked = await startVolley({env: {VOLLEY_API_KEYS: 'sesame,other'}});
    try {
      const page = await openPage(browser, locked.url, {expected: /status of 401/});
      await page.locator('#key-dialog[open]').waitFor();
      assert.match(await page.textContent('#key-message'), /API key/);
      await page.fill('#key-input', 'sesame');
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.getElementById('model-name').textContent === 'pocket');
      await ask(page, kStory);
      assert.ok((await answerText(page)).length > 0);
      await closePage(page);
    } finally {
      await locked.stop();
    }
  });

  it(
    'has pictures to look at',
    {skip: !process.env.VOLLEY_SCREENSHOTS && 'VOLLEY_SCREENSHOTS is not set'},
    async () => {
      const folder = process.env.VOLLEY_SCREENSHOTS;
      await mkdir(folder, {recursive: true});
      const usual = await startVolley(); // which drafts as it does by itself
      const shoot = async (name, options, act) => {
        const page = await openPage(browser, usual.url, {deviceScaleFactor: 1, ...options});
        await act(page);
        await page.waitForTimeout(100);
        await page.screenshot({path: `${folder}/${name}.png`});
        await closePage(page);
      };
      const chat = async (page) => {
        await setSeed(page, 4);
        await ask(page, kStory);
        await page.evaluate(() => document.activeElement.blur());
      };
      try {
        await shoot('welcome', {}, async () => {});
        await shoot('light', {}, chat);
        await shoot('dark', {colorScheme: 'dark'}, chat);
        await shoot('phone', {viewport: {width: 390, height: 844}}, chat);
        await shoot('settings', {}, async (page) => {
          await chat(page);
          await page.click('#open-settings');
        });
        await shoot('schema', {colorScheme: 'dark'}, async (page) => {
          await page.click('#open-settings');
          await page.fill('[name="schema"]', '{"type": "object", "required": ["name"]');
        });
        await shoot('chats', {}, async (page) => {
          await chat(page);
          await page.click('#open-history');
        });
        await shoot('compare', {viewport: {width: 1280, height: 960}}, async (page) => {
          await page.check('#compare');
          await chat(page);
        });
      } finally {
        await usual.stop();
      }
    },
  );
});

// Runs in the page: sends what the composer holds; milliseconds until a frame with text of the new answer is painted.
function timeToPaintedText() {
  const before = document.querySelectorAll('.answer').length;
  const start = performance.now();
  return new Promise((resolve) => {
    const look = () => {
      if (!document.querySelectorAll('.answer-text')[before]?.textContent) return;
      observer.disconnect();
      requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start)));
    };
    const observer = new MutationObserver(look);
    observer.observe(document.getElementById('conversation'), {subtree: true, childList: true, characterData: true});
    document.getElementById('composer').requestSubmit();
  });
}
