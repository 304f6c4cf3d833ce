// Chromium with the page in it, and what tests do there.
import assert from 'node:assert/strict';
import {axeSource, chromium} from './packages.mjs';

export async function launch() {
  // Containers run as root and without user namespaces, where Chromium has no sandbox to offer, and with little shared
  // memory.
  const args = ['--disable-dev-shm-usage', ...(process.getuid() === 0 ? ['--no-sandbox'] : [])];
  return chromium.launch({executablePath: process.env.VOLLEY_CHROMIUM ?? '/usr/bin/chromium', args});
}

// Opens the page of `url`. `page.complaints` collects what no test wants: requests to other origins, errors of scripts
// and violations of the policy. `expected` matches complaints that this test provokes.
export async function openPage(browser, url, {expected = null, ...options} = {}) {
  const context = await browser.newContext({viewport: {width: 1280, height: 800}, ...options});
  context.setDefaultTimeout(10_000);
  const page = await context.newPage();
  page.complaints = [];
  const complain = (text) => expected?.test(text) || page.complaints.push(text);
  page.on('request', (request) => request.url().startsWith(url) || complain(`request to ${request.url()}`));
  page.on('pageerror', (error) => complain(`error: ${error.message}`));
  page.on('console', (message) => ['error', 'warning'].includes(message.type()) && complain(message.text()));
  await page.goto(url);
  await page.waitForFunction(() => document.getElementById('model-name').textContent !== '');
  return page;
}

export async function closePage(page) {
  assert.deepEqual(page.complaints, []);
  await page.context().close();
}

export async function send(page, text) {
  await page.fill('#prompt', text);
  await page.press('#prompt', 'Enter');
}

// Until nothing runs any more.
export async function idle(page) {
  await page.waitForFunction(
    () => document.getElementById('stop').hidden && !document.querySelector('[aria-busy="true"]'),
  );
}

export async function ask(page, text) {
  await send(page, text);
  await idle(page);
}

export const figure = (page, name, answer = 0) =>
  page.locator('.answer').nth(answer).locator(`[data-figure="${name}"]`).textContent();
export const answerText = (page, answer = 0) => page.locator('.answer-text').nth(answer).textContent();

// What the strip and the text show of one answer's blocks, counted.
export function drawnBlocks(page, answer = 0) {
  return page
    .locator('.answer')
    .nth(answer)
    .evaluate((element) => {
      const shapes = (kind) =>
        (element.querySelector(`.strip path.${kind}`)?.getAttribute('d') ?? '').split('M').length - 1;
      const rejections = [...element.querySelectorAll('.answer-text .rejected')];
      return {
        accepted: shapes('accepted'),
        bonus: shapes('bonus'),
        plain: shapes('plain'),
        rejected: shapes('rejected'),
        rejectedInText: rejections.reduce((sum, mark) => sum + Number(mark.dataset.rejected), 0),
        bonusInText: element.querySelectorAll('.answer-text .token.bonus').length,
      };
    });
}

// What axe finds wrong with the page as it is, as sentences.
export async function accessibilityProblems(page) {
  await page.evaluate(axeSource); // by the debugger, which the page's policy does not bind
  const {violations} = await page.evaluate(() => globalThis.axe.run());
  return violations.flatMap(({id, help, nodes}) => nodes.map((node) => `${id}: ${help}: ${node.target.join(' ')}`));
}

export async function overflowsSideways(page) {
  return page.evaluate(() => document.scrollingElement.scrollWidth > innerWidth);
}
