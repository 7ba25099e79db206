// The pictures of the page in README.md and docs/web.md: taken here, of a server under load, and looked at for what spoils a picture.
// MILLRACE_URL serves the demo model. With MILLRACE_PICTURES, a folder (docs/img), they are written there.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { MOUSE, Page, launch } from './page.mjs';

const { MILLRACE_URL: URL, MILLRACE_PICTURES: FOLDER } = process.env;
const CHAT = { width: 1120, height: 800 };
const LIVE = { width: 1220, height: 1000, path: '/#live', shows: '.live-view' };
const GREEDY = { temperature: 0, max_tokens: 400 };
// An answer that is stopped on its way after so many bytes of its stream.
const STREAMED_BYTES = 26_000;

let browser;
before(async () => { browser = await launch(MOUSE); });
after(async () => { await browser.close(); });

const picture = async (page, name) => {
  const options = { type: 'webp', quality: 88 };
  if (FOLDER) mkdirSync(FOLDER, { recursive: true });
  const bytes = await page.page.screenshot(FOLDER ? { ...options, path: `${FOLDER}/${name}.webp` } : options);
  assert.ok(bytes.length > 10_000, `${name} has ${bytes.length} bytes`);
};

// Text that is cut off without an ellipsis, or lies over other text, among what `selector` names.
const spoiled = (page, selector) => page.page.$$eval(selector, (nodes) => {
  // What is seen of a node: without what its scrolling ancestors hide.
  const seen = (node) => {
    const { left, top, right, bottom } = node.getBoundingClientRect();
    const box = { left, top, right, bottom };
    for (let at = node.parentElement; at; at = at.parentElement) {
      if (getComputedStyle(at).overflowY === 'visible') continue;
      const limit = at.getBoundingClientRect();
      Object.assign(box, { left: Math.max(box.left, limit.left), top: Math.max(box.top, limit.top), right: Math.min(box.right, limit.right), bottom: Math.min(box.bottom, limit.bottom) });
    }
    return box;
  };
  const boxes = nodes.filter((node) => node.checkVisibility() && node.innerText?.trim()).map((node) => ({ text: node.innerText.trim().slice(0, 40), node, box: seen(node) }));
  const cut = boxes.filter(({ node }) => node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).textOverflow !== 'ellipsis' && getComputedStyle(node).overflowX !== 'auto' && node.clientWidth > 0);
  const over = boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => !a.node.contains(b.node) && !b.node.contains(a.node)
    && a.box.left < b.box.right - 1 && b.box.left < a.box.right - 1 && a.box.top < b.box.bottom - 1 && b.box.top < a.box.bottom - 1).map((b) => `${a.text} / ${b.text}`));
  return [...cut.map(({ text }) => `cut: ${text}`), ...over.map((pair) => `over each other: ${pair}`)];
});

test('the chat: an answer with its figures, and one that streams', async () => {
  for (const dark of [false, true]) {
    const page = await Page.open(browser, URL, { ...CHAT, dark });
    await page.ready();
    for (const [i, question] of ['Write a story with the words: dragon, cake, brave.', 'A story about the moon.'].entries()) {
      page.forced = { ...GREEDY, max_tokens: 60 };
      if (i > 0) await page.page.click('.new');
      await page.ask(question, 1);
    }
    await page.page.click('.new');
    page.forced = GREEDY;
    await page.ask('Tell me a short story about a dog and a red ball.', 1);
    // Where all tokens came in one read, there is no rate: the picture wants one.
    while (!(await page.texts('.stats dt')).includes('tokens/s')) {
      const begun = await page.page.evaluate(() => Math.max(...Object.keys(localStorage).filter((name) => name.startsWith('millrace.chat.')).map((name) => JSON.parse(localStorage.getItem(name)).updated)));
      await page.click('Retry');
      await page.wait((before) => Object.keys(localStorage).filter((name) => name.startsWith('millrace.chat.')).some((name) => {
        const { updated, messages } = JSON.parse(localStorage.getItem(name));
        return updated > before && messages.at(-1).finish;
      }), begun);
      await page.ended(1);
    }
    page.forced = { ...GREEDY, min_tokens: 160, max_tokens: 220 };
    await page.page.evaluate((bytes) => { window.gate.bytes = bytes; }, STREAMED_BYTES);
    await page.write('And what did the dog do the next day?');
    await page.wait(() => document.querySelector('.answer.live .markdown')?.innerText.length > 120);
    await page.page.mouse.move(0, 0);
    assert.deepEqual(await page.texts('.answer .note'), []); // complete, not cut off
    assert.deepEqual(await page.texts('.answer:not(.live) .stats dt'), ['in', 'cached', 'out', 'first token', 'tokens/s', 'context']);
    assert.deepEqual(await spoiled(page, '.stats div, .row .title, .bubble, .answer .markdown p, .model, .status, .hint'), []);
    await picture(page, dark ? 'chat-dark' : 'chat');
    await page.page.evaluate(() => window.gate.open());
    await page.ended(2);
    await page.close();
  }
});

const generate = async (i) => {
  const text = `A story for ${['Tom', 'Mia', 'Ben'][i % 3]}. ${'Once upon a time there was a little dog with a red ball. '.repeat(2 + (i % 4) * 3)}Number ${i}.`;
  const answer = await fetch(`${URL}/generate`, { method: 'POST', headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ text, rid: `story-${i}`, stream: true, sampling_params: { max_new_tokens: 120 + 40 * (i % 5), ignore_eos: true, temperature: 0.8 } }) });
  assert.equal(answer.status, 200);
  await answer.text();
};

test('the Live view under load: every panel has something in it', async () => {
  for (const dark of [false, true]) {
    const page = await Page.open(browser, URL, { ...LIVE, dark });
    await page.page.waitForSelector('.tile');
    let next = 0, ends = false;
    const clients = Array.from({ length: 12 }, async () => { while (!ends) await generate(next++); });
    try {
      await page.wait(() => document.querySelectorAll('.steps .touch').length > 60 && document.querySelectorAll('.request.decoding').length >= 6
        && document.querySelectorAll('.prefix').length > 8 && document.querySelectorAll('.log li').length > 12
        && Number(document.querySelector('[data-tile=generated] b').innerText.match(/[\d.]+/)[0]) > 0
        && [...document.querySelectorAll('.latency dd')].every((node) => /\d/.test(node.innerText)));
      assert.deepEqual(await page.texts('.empty'), []);
      await page.page.evaluate(() => { document.querySelector('.live-view').scrollTop = 0; });
      const height = await page.page.evaluate(() => document.querySelector('.live-view').scrollHeight + document.querySelector('header').offsetHeight);
      await page.page.setViewport({ width: LIVE.width, height: Math.min(height, 2400) });
      await page.page.waitForSelector('.request.decoding');
      assert.deepEqual(await spoiled(page, '.tile > span, .tile b, .panel h2, .request .counts, .request .chip, .latency dt, .latency dd, .legend li, .log span'), []);
      await picture(page, dark ? 'live-dark' : 'live');
    } finally {
      ends = true;
      await Promise.all(clients);
    }
    await page.close();
  }
});
