// Pictures in the chat, in headless Chromium. MILLRACE_VISION_URL serves a model that takes them, MILLRACE_URL one that does not.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Page, launch } from './page.mjs';

const { MILLRACE_VISION_URL: URL_VISION, MILLRACE_URL: URL_TEXT } = process.env;

let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

// A picture of this size and color as a file, given to the page as a user does: "button", "paste" or "drop".
const give = (page, way, { width = 64, height = 48, color = 'red', count = 1, broken = false } = {}) => page.page.evaluate(async (how, wide, high, fill, times, bad) => {
  const canvas = Object.assign(document.createElement('canvas'), { width: wide, height: high });
  const to = canvas.getContext('2d');
  to.fillStyle = fill;
  to.fillRect(0, 0, wide, high);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, 'image/png'));
  const files = new DataTransfer();
  for (let i = 0; i < times; ++i) files.items.add(new File([bad ? 'no picture' : blob], `${fill}.png`, { type: 'image/png' }));
  if (how === 'button') {
    const input = document.querySelector('.picture-file');
    input.files = files.files;
    input.dispatchEvent(new Event('change', { bubbles: true }));
  } else if (how === 'paste') {
    document.getElementById('question').dispatchEvent(new ClipboardEvent('paste', { clipboardData: files, bubbles: true, cancelable: true }));
  } else {
    const event = new DragEvent('drop', { dataTransfer: files, bubbles: true, cancelable: true });
    document.querySelector('.messages').dispatchEvent(event);
    if (!event.defaultPrevented) throw new Error('the browser would have left the page');
  }
}, way, width, height, color, count, broken);
const attached = (page, count) => page.wait((n) => document.querySelectorAll('.attached li').length === n, count);
// The color in the middle of each canvas of `selector`, once it is drawn.
const colors = (page, selector) => page.page.$$eval(selector, (nodes) => nodes.map((node) => [...node.getContext('2d').getImageData(node.width / 2, node.height / 2, 1, 1).data].slice(0, 3).map((value) => Math.round(value / 255))));
const drawn = (page, selector, count) => page.wait((where, n) => {
  const nodes = [...document.querySelectorAll(where)];
  return nodes.length === n && nodes.every((node) => node.getContext('2d').getImageData(node.width / 2, node.height / 2, 1, 1).data[3] === 255);
}, selector, count);

test('pictures come by button, paste and drop, go with the question, and stay', async () => {
  const page = await Page.open(browser, URL_VISION);
  await page.ready();
  await page.page.waitForSelector('[aria-label="Attach pictures"]');
  await give(page, 'button', { color: 'red' });
  await attached(page, 1);
  await give(page, 'paste', { color: 'lime', width: 3000, height: 1500 });
  await attached(page, 2);
  await give(page, 'drop', { color: 'blue', count: 2 });
  await attached(page, 4);
  await drawn(page, '.attached canvas', 4);
  assert.deepEqual(await colors(page, '.attached canvas'), [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]);
  assert.deepEqual(await page.page.$$eval('.attached canvas', (nodes) => nodes.slice(0, 2).map((node) => [node.width, node.height])), [[64, 48], [1024, 512]]);
  await page.shot('pictures-attached');
  await give(page, 'button');
  await page.wait(() => document.querySelector('.notice')?.innerText.includes('4 pictures at most'));
  await page.click('Remove picture 2');
  await attached(page, 3);
  await page.click('Remove picture 3');
  await attached(page, 2);

  page.forced = { max_tokens: 6, ignore_eos: true };
  const [request] = await Promise.all([page.page.waitForRequest((one) => one.url().endsWith('/chat/completions')), page.write('What is this?')]);
  const [message] = JSON.parse(request.postData()).messages;
  assert.deepEqual(message.content.map((part) => part.type), ['image_url', 'image_url', 'text']);
  assert.ok(message.content.slice(0, 2).every((part) => part.image_url.url.startsWith('data:image/jpeg;base64,')));
  await page.ended(1);
  assert.equal(await page.page.$('.answer .problem'), null, (await page.texts('.answer'))[0]);
  assert.equal((await page.page.$$('.attached')).length, 0);
  await drawn(page, '.question canvas', 2);
  assert.deepEqual(await colors(page, '.question canvas'), [[1, 0, 0], [0, 0, 1]]);
  await page.shot('pictures-asked');

  // They are kept, and go with the conversation.
  await page.page.reload();
  await page.ready();
  await drawn(page, '.question canvas', 2);
  const [again] = await Promise.all([page.page.waitForRequest((one) => one.url().endsWith('/chat/completions')), page.write('And now?')]);
  assert.deepEqual(JSON.parse(again.postData()).messages[0], message);
  await page.ended(2);
  await page.close();
});

test('a picture alone is a question, and a file that is none is named', async () => {
  const page = await Page.open(browser, URL_VISION);
  await page.ready();
  await page.page.waitForSelector('[aria-label="Attach pictures"]');
  await give(page, 'button', { broken: true, color: 'odd' });
  await page.wait(() => document.querySelector('.notice')?.innerText.includes('odd.png is no picture'));
  assert.equal(await page.page.$eval('[aria-label="Send"]', (button) => button.disabled), true);
  await give(page, 'drop');
  await attached(page, 1);
  page.forced = { max_tokens: 4, ignore_eos: true };
  await page.click('Send');
  await page.ended(1);
  assert.equal(await page.page.$('.answer .problem'), null);
  await page.wait(() => document.querySelector('.row .title')?.innerText.trim() === 'A picture');
  await page.close();
});

test('a model without eyes has no button, and takes no drop', async () => {
  const page = await Page.open(browser, URL_TEXT);
  await page.ready();
  assert.equal(await page.page.$('[aria-label="Attach pictures"]'), null);
  await assert.rejects(give(page, 'drop'), /would have left the page/);
  assert.equal(await page.page.$('.attached'), null);
  await page.close();
});
