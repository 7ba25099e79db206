// The page in headless Chromium against a started server, as a user has it. MILLRACE_URL serves without a key, MILLRACE_KEY_URL wants
// the key "secret".
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { createRequire } from 'node:module';
import { Page, WAIT_MS, launch } from './page.mjs';

const URL_FREE = process.env.MILLRACE_URL;
const URL_KEY = process.env.MILLRACE_KEY_URL;
const STORY = 'Tell me a short story about a dog and a red ball.';
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

// An answer that is the same each time and outlasts the gate's GATE_BYTES, about 27 events.
const LONG = { temperature: 0, min_tokens: 90, max_tokens: 200 };
const GATE_BYTES = 12_000;

let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

const metric = async (name) => {
  const text = await (await fetch(`${URL_FREE}/metrics`)).text();
  return text.split('\n').filter((line) => line.startsWith(name)).reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0);
};
const admin = async (path, body) => assert.equal((await fetch(URL_FREE + path, { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } })).status, 200);
async function until(condition, what) {
  for (const end = Date.now() + WAIT_MS; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 20))) {
    if (await condition()) return;
  }
  assert.fail(`no ${what} within ${WAIT_MS} ms`);
}
// A grammar that makes the model write exactly this.
const exactly = (text) => ({ ebnf: `root ::= ${JSON.stringify(text)}`, max_tokens: 900 });
const axeFaults = async (page) => {
  await page.page.evaluate(AXE);
  const found = await page.page.evaluate(() => globalThis.axe.run());
  return found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' ')}`);
};

test('an answer streams, and what it cost stands under it', async () => {
  const page = await Page.open(browser, URL_FREE);
  await page.ready();
  await page.shot('welcome');
  page.forced = LONG;
  await page.page.evaluate((bytes) => { window.gate.bytes = bytes; }, GATE_BYTES);
  await page.write(STORY);
  await page.wait(() => document.querySelector('.answer.live .markdown')?.innerText.length > 20);
  const part = (await page.texts('.answer .markdown'))[0];
  assert.ok(await page.page.$('[aria-label="Stop"]'));
  assert.equal(await page.page.$('[aria-label="Retry"]'), null);
  await page.shot('streaming');
  await page.page.evaluate(() => window.gate.open());
  await page.ended(1);
  const text = (await page.texts('.answer .markdown'))[0];
  assert.ok(text.length > part.length && text.startsWith(part.slice(0, -3)), `${part}\n${text}`);
  assert.deepEqual(await page.texts('.stats dt'), ['in', 'cached', 'out', 'first token', 'tokens/s', 'context']);
  // A screen reader got each sentence once.
  await page.wait((all) => [...document.querySelectorAll('[role=log] p')].map((node) => node.textContent).join('').replace(/\s+/g, ' ').trim() === all,
    text.replace(/\s+/g, ' ').trim());
  await page.shot('answer-light');
  await page.close();
});

test('stop aborts the request on the server, and keeps the page usable', async () => {
  const page = await Page.open(browser, URL_FREE);
  await page.ready();
  const name = 'millrace:num_aborted_requests_total';
  const aborted = await metric(name);
  await admin('/pause_generation', { mode: 'in_place' }); // so that the answer cannot end before it is stopped
  try {
    await page.write(STORY);
    await page.page.waitForSelector('[aria-label="Stop"]');
    await until(async () => (await (await fetch(`${URL_FREE}/ready`)).json()).stages.some((stage) => stage.running + stage.waiting > 0), 'request at the scheduler');
    await page.click('Stop');
    await page.ended(1);
    await until(async () => (await metric(name)) > aborted, 'abort in the metrics');
  } finally {
    await admin('/continue_generation', {});
  }
  assert.match((await page.texts('.answer .note'))[0], /^Stopped/);
  // Escape does the same, in the middle of a text, which is kept.
  page.forced = LONG;
  await page.page.evaluate((bytes) => { window.gate.bytes = bytes; }, GATE_BYTES);
  await page.write('And then?');
  await page.wait(() => document.querySelector('.answer.live .markdown')?.innerText.length > 20);
  await page.page.keyboard.press('Escape');
  await page.ended(2);
  assert.ok((await page.texts('.answer .markdown'))[0].length > 20);
  await page.close();
});

test('retry and edit ask again', async () => {
  const page = await Page.open(browser, URL_FREE);
  await page.ready();
  page.forced = { temperature: 0, max_tokens: 24 };
  const first = await page.ask('Write a story with the words: dragon, cake, brave.', 1);
  const begun = await page.page.evaluate(() => JSON.parse(localStorage.getItem(Object.keys(localStorage).find((name) => name.startsWith('millrace.chat.')))).messages[1].started_ms);
  await page.click('Retry');
  await page.wait((before) => {
    const [, answer] = JSON.parse(localStorage.getItem(Object.keys(localStorage).find((name) => name.startsWith('millrace.chat.')))).messages;
    return answer.started_ms > before && answer.finish && document.querySelector('.answer .markdown')?.innerText.trim() === answer.content.trim();
  }, begun);
  assert.equal((await page.texts('.answer .markdown'))[0], first);
  await page.ask('Go on.', 2);
  await page.page.hover('.question');
  await page.click('Edit');
  await page.page.waitForSelector('.editing textarea');
  await page.page.$eval('.editing textarea', (area) => area.select());
  await page.page.keyboard.type('Write a story with the words: sun, boat, happy.');
  await page.page.keyboard.press('Enter');
  await page.wait(() => document.querySelector('.bubble')?.innerText.includes('sun, boat'));
  await page.ended(1);
  assert.deepEqual(await page.texts('.bubble'), ['Write a story with the words: sun, boat, happy.']);
  assert.notEqual((await page.texts('.answer .markdown'))[0], first);
  await page.close();
});

test('conversations survive a reload, and are renamed, exported, imported and deleted', async () => {
  const page = await Page.open(browser, URL_FREE);
  await page.ready();
  page.forced = { max_tokens: 16 };
  const answer = await page.ask('One <b>question</b>', 1);
  await page.page.evaluate(() => document.querySelector('.new').click());
  await page.wait(() => document.querySelector('.welcome'));
  await page.ask('Another question', 1);
  assert.equal(await page.storage(), 2);
  await page.page.reload();
  await page.page.waitForSelector('.answer');
  assert.deepEqual(await page.texts('.row .title'), ['Another question', 'One <b>question</b>']);
  await page.page.evaluate(() => document.querySelectorAll('.row .title')[1].click());
  await page.wait((text) => document.querySelector('.answer .markdown')?.innerText.trim() === text, answer);
  assert.deepEqual(await page.texts('.bubble'), ['One <b>question</b>']);

  await page.page.hover('.row.shown');
  await page.page.click('.row.shown [aria-label="Rename"]');
  await page.page.waitForSelector('.renaming input');
  await page.page.$eval('.renaming input', (input) => input.select());
  await page.page.keyboard.type('My chat');
  await page.page.keyboard.press('Enter');
  await page.wait(() => document.querySelector('.row.shown .title')?.innerText === 'My chat');

  // The exported file, read where the page makes a link to it.
  const file = await page.page.evaluate(async () => {
    const made = new Promise((resolve) => { const real = URL.createObjectURL; URL.createObjectURL = (blob) => { resolve(blob.text()); return real(blob); }; });
    document.querySelector('[aria-label="Export all chats"]').click();
    return made;
  });
  assert.equal(JSON.parse(file).conversations.length, 2);
  for (const left of [1, 0]) {
    await page.page.hover('.row.shown');
    await page.page.click('.row.shown [aria-label="Delete"]');
    await page.page.waitForSelector('.row.asking .danger');
    await page.page.click('.row.asking .danger');
    await page.wait((n) => Object.keys(localStorage).filter((name) => name.startsWith('millrace.chat.')).length === n && !document.querySelector('.row.asking'), left);
  }
  const take = async (text) => page.page.evaluate((content) => {
    const input = document.querySelector('input[type=file]');
    const files = new DataTransfer();
    files.items.add(new File([content], 'chats.json'));
    input.files = files.files;
    input.dispatchEvent(new Event('change', { bubbles: true }));
  }, text);
  await take(file);
  await page.wait(() => Object.keys(localStorage).filter((name) => name.startsWith('millrace.chat.')).length === 2);
  await page.wait(() => [...document.querySelectorAll('.row .title')].some((row) => row.innerText.trim() === 'My chat'));
  await take('{"format": 1}');
  await page.wait(() => document.querySelector('.notice')?.innerText.includes('Nothing was imported'));
  await page.close();
});

test('an answer that streams while the page is closed is kept as far as it came', async () => {
  const page = await Page.open(browser, URL_FREE);
  await page.ready();
  page.forced = LONG;
  await page.page.evaluate((bytes) => { window.gate.bytes = bytes; }, GATE_BYTES);
  await page.write(STORY);
  await page.wait(() => document.querySelector('.answer.live .markdown')?.innerText.length > 20);
  await page.page.reload();
  await page.page.waitForSelector('.answer .markdown');
  assert.ok((await page.texts('.answer .markdown'))[0].length > 20);
  assert.match((await page.texts('.answer .note'))[0], /^Interrupted/);
  assert.equal(await page.page.$('.answer.live'), null);
  await page.close();
});

test('settings and the system message go with the request', async () => {
  const page = await Page.open(browser, URL_FREE);
  await page.ready();
  await page.click('System message and sampling');
  await page.page.waitForSelector('dialog.drawer[open]');
  await page.page.type('.system textarea', 'Be brief.');
  for (const [label, value] of [['Temperature', '0.25'], ['Longest answer', '7']]) {
    await page.page.$$eval('.setting', (rows, name) => rows.find((row) => row.innerText.startsWith(name)).querySelector('input').focus(), label);
    await page.page.keyboard.type(value);
  }
  await page.shot('settings');
  await page.page.keyboard.press('Escape');
  await page.wait(() => !document.querySelector('dialog[open]'));
  const [request] = await Promise.all([page.page.waitForRequest((one) => one.url().endsWith('/chat/completions')), page.write('Hello')]);
  const body = JSON.parse(request.postData());
  assert.deepEqual([body.messages[0], body.max_tokens, body.temperature], [{ role: 'system', content: 'Be brief.' }, 7, 0.25]);
  await page.ended(1);
  assert.equal((await page.texts('.stats dd'))[2], '7');
  assert.match((await page.texts('.answer .note'))[0], /^Cut off/);
  await page.close();
});

test('text of the model makes no element, no request and no script', async () => {
  const page = await Page.open(browser, URL_FREE);
  await page.ready();
  await page.page.evaluate(() => { window.hit = 0; window.alert = () => { window.hit += 1; }; });
  const hostile = '<img src=http://203.0.113.9/a onerror=alert(1)><script>alert(1)</script><svg onload=alert(1)>\n\n![pixel](http://203.0.113.9/p.png)\n\n[run](javascript:alert(1)) '
    + '<style>*{display:none}</style><iframe src=http://203.0.113.9></iframe>\n\n- [ ] <form action=http://203.0.113.9><input autofocus onfocus=alert(1)>\n\n[fine](https://203.0.113.9/x)';
  page.forced = exactly(hostile);
  await page.ask('Repeat it.', 1);
  await page.shot('hostile');
  const made = await page.page.$$eval('.answer .markdown *', (nodes) => nodes.map((node) => node.localName));
  assert.deepEqual(made.filter((name) => !['p', 'br', 'a', 'ul', 'li'].includes(name)), []);
  const links = await page.page.$$eval('.answer .markdown a', (nodes) => nodes.map((node) => [node.getAttribute('href'), node.rel]));
  assert.ok(links.length >= 2 && links.every(([href, rel]) => /^https?:/.test(href) && rel.includes('noopener')), JSON.stringify(links));
  assert.match((await page.texts('.answer .markdown'))[0], /<script>alert\(1\)<\/script>/);
  assert.equal(await page.page.evaluate(() => window.hit), 0);
  // A key that the page keeps in its storage stays out of reach of inline scripts too: the policy refuses them.
  assert.equal(await page.page.evaluate(() => {
    const script = document.createElement('script');
    script.textContent = 'window.hit = 99';
    document.body.append(script);
    return window.hit;
  }), 0);
  await page.close([/Content Security Policy/]);
});

test('Markdown is shown as such', async () => {
  const page = await Page.open(browser, URL_FREE);
  await page.ready();
  page.forced = exactly('# Balls\n\nA *red* **ball**, and `code`:\n\n```cpp\nint main() {}\n```\n\n| color | size |\n|---|--:|\n| red | 3 |\n\n1. one\n2. two\n');
  await page.ask('Show me Markdown.', 1);
  const made = await page.page.$$eval('.answer .markdown *', (nodes) => nodes.map((node) => node.localName));
  for (const name of ['h1', 'em', 'strong', 'code', 'pre', 'table', 'td', 'ol', 'li', 'button']) assert.ok(made.includes(name), `${name} in ${made}`);
  await page.shot('markdown');
  await page.close();
});

test('the page asks for the key, keeps it, and sends the question again', async () => {
  const page = await Page.open(browser, URL_KEY);
  await page.page.waitForSelector('dialog.key[open]');
  await page.shot('key');
  await page.page.type('.key input', 'wrong');
  await page.page.keyboard.press('Enter');
  await page.page.waitForSelector('.key .problem');
  await page.page.$eval('.key input', (input) => input.select());
  await page.page.keyboard.type('secret');
  await page.page.keyboard.press('Enter');
  await page.wait(() => !document.querySelector('dialog[open]'));
  await page.ready();
  page.forced = { max_tokens: 8 };
  assert.ok(await page.ask(STORY, 1));
  await page.page.reload();
  await page.ready();
  assert.equal(await page.page.$('dialog[open]'), null);
  // The key changes under an open page.
  await page.page.evaluate(() => localStorage.setItem('millrace.key', 'old'));
  await page.write('And then?');
  await page.page.waitForSelector('dialog.key[open]');
  await page.page.type('.key input', 'secret');
  await page.page.keyboard.press('Enter');
  await page.wait(() => !document.querySelector('dialog[open]'));
  await page.wait(() => document.querySelectorAll('.answer .markdown').length === 2 && !document.querySelector('.answer.live'));
  await page.close([/401/]);
});

test('narrow and dark windows show everything, and nothing fails the accessibility rules', async () => {
  for (const [name, view] of [['narrow', { width: 360, height: 720 }], ['dark', { dark: true }], ['narrow-dark', { width: 360, height: 720, dark: true }], ['light', {}]]) {
    const page = await Page.open(browser, URL_FREE, view);
    await page.ready();
    page.forced = exactly(`A long line: ${'x'.repeat(90)}\n\n\`\`\`\n${'code '.repeat(40)}\n\`\`\`\n\n|${'column|'.repeat(9)}\n|${'-|'.repeat(9)}\n|${'value|'.repeat(9)}\n`);
    await page.ask(`A word of ${'y'.repeat(80)}`, 1);
    assert.deepEqual(await axeFaults(page), [], name);
    const [page_width, column, width] = await page.page.evaluate(() => [document.documentElement.scrollWidth, document.querySelector('.messages').scrollWidth, innerWidth]);
    assert.ok(page_width <= width && column <= width, `${name}: ${page_width} and ${column} of ${width}`);
    const [red] = (await page.page.evaluate(() => getComputedStyle(document.body).backgroundColor)).match(/\d+/g).map(Number);
    assert.equal(red < 80, Boolean(view.dark), `${name}: ${red}`);
    await page.shot(name);
    if (view.width) {
      await page.click('Show conversations');
      await page.wait(() => document.querySelector('.sidebar').getBoundingClientRect().left === 0);
      await page.shot(`${name}-list`);
    }
    await page.click(view.width ? 'Close' : 'System message and sampling');
    await page.close();
  }
});

test('the keyboard reaches everything that it needs', async () => {
  const page = await Page.open(browser, URL_FREE);
  await page.ready();
  await page.page.evaluate(() => document.activeElement.blur());
  await page.page.keyboard.press('/');
  await page.page.keyboard.type('one');
  await page.page.keyboard.down('Shift');
  await page.page.keyboard.press('Enter');
  await page.page.keyboard.up('Shift');
  await page.page.keyboard.type('two');
  page.forced = { max_tokens: 4 };
  await page.page.keyboard.press('Enter');
  await page.ended(1);
  assert.deepEqual(await page.texts('.bubble'), ['one\ntwo']);
  const names = new Set();
  await page.page.evaluate(() => document.activeElement.blur());
  for (let i = 0; i < 30; ++i) {
    await page.page.keyboard.press('Tab');
    names.add(await page.page.evaluate(() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText.trim()));
  }
  for (const name of ['New chat', 'Rename', 'Delete', 'Export all chats', 'Import chats', 'System message and sampling', 'Copy', 'Edit', 'Retry', 'Question']) {
    assert.ok(names.has(name), `${name} is not in ${[...names]}`);
  }
  await page.close();
});
