// The Live view in headless Chromium against a started server. MILLRACE_URL serves without a key, MILLRACE_KEY_URL wants the key "secret".
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, afterEach, before, test } from 'node:test';
import { Page, WAIT_MS, launch } from './page.mjs';

const URL_FREE = process.env.MILLRACE_URL;
const URL_KEY = process.env.MILLRACE_KEY_URL;
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const LIVE = { path: '/#live', shows: '.live-view' };

let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

// What a test that failed leaves open would be a client of the next one's server.
const opened = [];
afterEach(() => Promise.all(opened.splice(0).map((page) => page.context.close().catch(() => {}))));
const open = async (...given) => {
  const page = await Page.open(browser, ...given);
  opened.push(page);
  return page;
};

const post = async (path, body) => fetch(URL_FREE + path, { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } });
const generate = async (rid, more = {}) => (await post('/generate', { text: 'Once upon a time', rid, sampling_params: { max_new_tokens: 20, ignore_eos: true, ...more } })).json();
const clients = async () => Number((await (await fetch(`${URL_FREE}/metrics`)).text()).match(/live_view_clients\{[^}]*\} (\d+)/)[1]);
async function until(condition, what) {
  for (const end = Date.now() + WAIT_MS; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 20))) {
    if (await condition()) return;
  }
  assert.fail(`no ${what} within ${WAIT_MS} ms`);
}
const shown = (page) => page.page.waitForSelector('.tile');
const row = (name) => `[data-request="${name}"]`;

test('a click shows the engine, and another one the chat again', async () => {
  const page = await open(URL_FREE);
  await page.ready();
  await until(async () => (await clients()) === 0, 'leaving of earlier clients');
  await page.page.click('.sidebar .nav');
  await shown(page);
  assert.equal(await page.page.evaluate(() => location.hash), '#live');
  assert.equal(await page.page.title(), 'Live · Millrace');
  assert.deepEqual(await page.page.$$eval('.stage', (nodes) => nodes.map((node) => [node.dataset.stage, node.dataset.state])), [['server', 'ready'], ['scheduler', 'ready'], ['detokenizer', 'ready']]);
  assert.deepEqual(await page.texts('.panel > h2').then((titles) => titles.map((title) => title.split('\n')[0].replace(/ (\d|none|since|step|of the).*/, ''))),
    ['Pipeline', 'Requests', 'Latencies', 'Batches', 'KV pages', 'Cached prefixes', 'Log']);
  assert.equal(await clients(), 1);
  await page.page.click('header .nav');
  await page.page.waitForSelector('#question');
  await until(async () => (await clients()) === 0, 'end of the stream');
  // A conversation of the list leaves the view too.
  await page.page.click('.sidebar .nav');
  await shown(page);
  await page.page.click('.row .title');
  await page.page.waitForSelector('#question');
  assert.equal(await page.page.evaluate(() => location.hash), '');
  await page.close();
});

test('a request appears, and a click ends it', async () => {
  const page = await open(URL_FREE, LIVE);
  await shown(page);
  assert.equal((await post('/pause_generation', { mode: 'in_place' })).status, 200);
  let answers;
  try {
    answers = [generate('to-be-ended'), generate('to-be-kept')];
    for (const name of ['to-be-ended', 'to-be-kept']) await page.page.waitForSelector(row(name));
    await page.wait(() => document.querySelector('[data-tile=weights]').innerText.includes('paused'));
    await page.click('Abort to-be-ended');
    await page.wait((selector) => !document.querySelector(selector), row('to-be-ended'));
    assert.equal((await answers[0]).meta_info.finish_reason.type, 'abort');
    assert.ok(await page.page.$(row('to-be-kept')));
  } finally {
    await post('/continue_generation', {});
  }
  assert.equal((await answers[1]).meta_info.completion_tokens, 20);
  await page.wait((selector) => !document.querySelector(selector), row('to-be-kept'));
  await page.close();
});

test('what is drawn is what the engine has', async () => {
  for (const rid of ['drawn-1', 'drawn-2']) await generate(rid);
  const page = await open(URL_FREE, LIVE);
  await shown(page);
  const state = JSON.parse(await page.page.evaluate(async () => {
    const reader = (await fetch('/live/events')).body.getReader();
    const decoder = new TextDecoder();
    let text = '';
    while (!text.includes('\n\n')) text += decoder.decode((await reader.read()).value, { stream: true });
    await reader.cancel();
    return text.slice('data: '.length, text.indexOf('\n\n'));
  })).schedulers[0].state;
  const pages = await page.page.$$eval('[data-pages]', (nodes) => Object.fromEntries(nodes.map((node) => [node.dataset.pages, Number(node.innerText)])));
  assert.equal(pages.running + pages.cached + pages.free, pages.total);
  assert.deepEqual(pages, { running: state.pages.running, cached: state.pages.cached, free: state.pages.free, total: state.pages.total });
  const cells = await page.page.$$eval('.cell', (nodes) => Object.fromEntries(nodes.map((node) => [node.classList[1], (node.getAttribute('d').match(/M/g) ?? []).length])));
  assert.deepEqual(cells, { running: pages.running, cached: pages.cached, importing: 0, free: pages.free });
  assert.equal((await page.page.$$('.prefix')).length, state.cache.nodes.filter((node) => node.parent >= 0).length);
  assert.ok((await page.page.$$('.steps .touch')).length > 8);
  assert.ok((await page.texts('.latency dd')).every((text) => /\d/.test(text) || text === '–'));
  await page.close();
});

test('a hidden page asks for nothing, and goes on when it is seen again', async () => {
  await until(async () => (await clients()) === 0, 'leaving of earlier clients');
  const page = await open(URL_FREE, LIVE);
  await shown(page);
  assert.equal(await clients(), 1);
  const hide = (hidden) => page.page.evaluate((to) => {
    Object.defineProperty(document, 'hidden', { value: to, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
  await hide(true);
  await until(async () => (await clients()) === 0, 'end of the stream');
  await hide(false);
  await until(async () => (await clients()) === 1, 'new stream');
  await page.close();
});

test('a server that is full says so, and the view comes when a client has left', async () => {
  await until(async () => (await clients()) === 0, 'leaving of earlier clients');
  const streams = await Promise.all(Array.from({ length: 8 }, () => fetch(`${URL_FREE}/live/events`)));
  const page = await open(URL_FREE, LIVE);
  await page.wait(() => document.querySelector('.live-view .notice')?.innerText.includes('8 clients look at /live/events'));
  await Promise.all(streams.map((stream) => stream.body.cancel()));
  await shown(page);
  await page.wait(() => !document.querySelector('.live-view .notice'));
  await page.close([/429/]);
});

test('the view asks for the key', async () => {
  const page = await open(URL_KEY, { ...LIVE, shows: 'dialog.key[open]' });
  await page.page.type('.key input', 'secret');
  await page.page.keyboard.press('Enter');
  await page.wait(() => !document.querySelector('dialog[open]'));
  await shown(page);
  await page.close([/401/]);
});

test('narrow and dark windows show everything, and nothing fails the accessibility rules', async () => {
  for (const [name, view] of [['live', { height: 1500 }], ['live-dark', { dark: true, height: 1500 }], ['live-narrow', { width: 360, height: 720 }], ['live-narrow-dark', { width: 360, height: 720, dark: true }]]) {
    const page = await open(URL_FREE, { ...view, ...LIVE });
    const answers = [generate(`${name}-${'long-name-'.repeat(8)}`, { max_new_tokens: 200 }), generate(`${name}-short`, { max_new_tokens: 200 })];
    await shown(page);
    await Promise.all(answers);
    await page.page.evaluate(AXE);
    const found = await page.page.evaluate(() => globalThis.axe.run());
    assert.deepEqual(found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' ')}`), [], name);
    const [page_width, inner, width] = await page.page.evaluate(() => [document.documentElement.scrollWidth, document.querySelector('.live-view').scrollWidth - document.querySelector('.live-view').clientWidth, innerWidth]);
    assert.ok(page_width <= width && inner <= 0, `${name}: ${page_width} of ${width}, ${inner}`);
    assert.equal(await page.page.evaluate(() => document.querySelectorAll('.live-view [style]').length), 0);
    await page.shot(name);
    await page.close();
  }
});
