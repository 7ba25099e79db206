// Each panel of the Live view with something in it, and a picture of each. MILLRACE_SPLIT_URL serves a model in two ranges of layers,
// MILLRACE_APART_URL one whose prompts are computed by a process of its own.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Page, launch } from './page.mjs';

const { MILLRACE_SPLIT_URL: URL_SPLIT, MILLRACE_APART_URL: URL_APART } = process.env;
const LIVE = { path: '/#live', shows: '.live-view', height: 1400 };
const LONG = 'Once upon a time there was a brave little dog. '.repeat(12);

let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

const post = (url, path, body) => fetch(url + path, { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } });
const generate = async (url, rid, more = {}) => {
  const answer = await post(url, '/generate', { text: LONG + rid, rid, sampling_params: { max_new_tokens: 60, ignore_eos: true }, ...more });
  assert.equal(answer.status, 200);
  return answer.text();
};
const panel = (page, label) => page.page.waitForSelector(`[aria-label="${label}"].panel`);

test('ranges of layers, with how busy and idle each is', async () => {
  const page = await Page.open(browser, URL_SPLIT, LIVE);
  await page.page.waitForSelector('.tile');
  await generate(URL_SPLIT, 'split', { stream: true });
  await panel(page, 'Layer ranges');
  await page.wait(() => document.querySelectorAll('.ranges li').length === 2);
  for (const text of await page.texts('.ranges b')) {
    const [busy, idle] = text.match(/^(\d+) % busy, (\d+) % idle$/).slice(1).map(Number);
    assert.equal(busy + idle, 100);
  }
  await page.close();
});

test('transfers of pages between prefill and decode', async () => {
  const page = await Page.open(browser, URL_APART, LIVE);
  await page.page.waitForSelector('.tile');
  await generate(URL_APART, 'apart');
  await panel(page, 'Transfers');
  await page.wait(() => [...document.querySelectorAll('.numbers dt')].some((node) => node.innerText.startsWith('transfers') && Number(node.nextElementSibling.innerText) > 0));
  await page.close();
});

test('how prompts begin, and the lines of the log as they come', async () => {
  const page = await Page.open(browser, URL_SPLIT, LIVE);
  await page.page.waitForSelector('.log');
  assert.equal((await post(URL_SPLIT, '/pause_generation', { mode: 'in_place' })).status, 200);
  let answer;
  try {
    answer = generate(URL_SPLIT, 'with-a-prompt', { text: 'A <b>bold</b> tale' });
    await page.page.waitForSelector('[data-request="with-a-prompt"] q');
    assert.equal(await page.page.$eval('[data-request="with-a-prompt"] q', (node) => node.innerText), 'A <b>bold</b> tale');
  } finally {
    await post(URL_SPLIT, '/continue_generation', {});
  }
  await answer;
  await page.wait(() => [...document.querySelectorAll('.log li')].some((node) => node.innerText.includes('POST /generate')));
  const [end, height] = await page.page.$eval('.log', (node) => [node.scrollHeight - node.scrollTop, node.clientHeight]);
  assert.ok(Math.abs(end - height) <= 1, 'the newest line is in view');
  assert.equal(await page.page.evaluate(() => document.querySelectorAll('.live-view [style], .live-view b b').length), 0);
  await page.close();
});

test('every panel has something in it, and its picture', async () => {
  for (const [name, url] of [['split', URL_SPLIT], ['apart', URL_APART]]) {
    const page = await Page.open(browser, url, LIVE);
    await page.page.waitForSelector('.tile');
    for (let n = 0; n < 3; ++n) await generate(url, `${name}-${n}`, { stream: true });
    let next = 0, ends = false;
    const more = () => ({ sampling_params: { max_new_tokens: 300, ignore_eos: true } });
    const clients = [1, 2, 3].map(async () => { while (!ends) await generate(url, `${name}-running-${next++}`, more()); });
    try {
      await panel(page, name === 'split' ? 'Layer ranges' : 'Transfers');
      await page.wait(() => document.querySelectorAll('.log li').length >= 6 && document.querySelectorAll('.request').length >= 2 && document.querySelectorAll('.empty').length === 0);
      for (const found of await page.page.$$('.panel, .tiles')) {
        const label = await found.evaluate((node) => node.getAttribute('aria-label') ?? 'Tiles');
        const box = await found.boundingBox();
        assert.ok(box.width > 100 && box.height > 50, label);
        assert.deepEqual(await found.evaluate((node) => [...node.querySelectorAll('svg')].filter((one) => one.getBoundingClientRect().right > node.getBoundingClientRect().right + 1 && !one.closest('.scroll')).length), 0, `${label} is cut`);
        await page.shot(`panel-${name}-${label.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-')}`, found);
      }
    } finally {
      ends = true;
      await Promise.all(clients);
    }
    await page.close();
  }
});
