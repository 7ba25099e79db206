// A server of several models in headless Chromium. MILLRACE_MODELS_URL has "tiny" and "org/other", and "broken", which does not load.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { Page, launch } from './page.mjs';

const URL_MODELS = process.env.MILLRACE_MODELS_URL;
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

const state = (page, wanted) => page.page.waitForSelector(`.status[data-state="${wanted}"]`);
const choices = (page) => page.texts('select.model option');
const button = (page, text) => page.page.click(`::-p-xpath(//header/button[text()="${text}"])`);

test('models are picked, loaded when they are asked or by hand, and their states are shown', async () => {
  const page = await Page.open(browser, URL_MODELS);
  await page.page.waitForSelector('select.model');
  assert.deepEqual(await choices(page), ['broken (not loaded)', 'org/other (not loaded)', 'tiny (not loaded)']);
  await page.page.select('select.model', 'tiny');
  await state(page, 'unloaded');
  await page.shot('models-unloaded');
  page.forced = { max_tokens: 8 };
  const [request] = await Promise.all([page.page.waitForRequest((one) => one.url().endsWith('/chat/completions')), page.write('A story, please.')]);
  assert.equal(JSON.parse(request.postData()).model, 'tiny');
  await page.ended(1);
  assert.equal(await page.page.$('.answer .problem'), null);
  await state(page, 'loaded');
  assert.deepEqual(await choices(page), ['broken (not loaded)', 'org/other (not loaded)', 'tiny']);

  await page.page.select('select.model', 'org/other');
  await state(page, 'unloaded');
  await button(page, 'Load');
  await state(page, 'loaded');
  await page.ask('Another one.', 2);
  assert.equal(await page.page.$('.answer .problem'), null);
  await button(page, 'Unload');
  await state(page, 'unloaded');

  await page.page.select('select.model', 'broken');
  await button(page, 'Load');
  await state(page, 'failed');
  assert.match(await page.page.$eval('.notice', (node) => node.innerText), /model\.safetensors/);
  await page.shot('models-failed');
  await page.page.evaluate(AXE);
  const found = await page.page.evaluate(() => globalThis.axe.run());
  assert.deepEqual(found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' ')}`), []);
  await page.close([/503/]);
});

test('the Live view is of the chosen model', async () => {
  const page = await Page.open(browser, URL_MODELS);
  await page.page.waitForSelector('select.model');
  await page.page.select('select.model', 'tiny');
  if (await page.page.$('.status[data-state="unloaded"]')) await button(page, 'Load');
  await state(page, 'loaded');
  await page.page.click('.sidebar .nav');
  await page.page.waitForSelector('.tile');
  assert.deepEqual(await page.page.$$eval('.stage', (nodes) => nodes.map((node) => node.dataset.stage)), ['server', 'scheduler', 'detokenizer']);
  await page.page.select('select.model', 'broken');
  await page.wait(() => document.querySelector('.live-view .notice')?.innerText.includes("'broken' is"));
  await page.page.select('select.model', 'tiny');
  await page.wait(() => document.querySelector('.tile') && !document.querySelector('.live-view .notice'));
  await page.close([/409/]);
});

test('a narrow window has space for it', async () => {
  const page = await Page.open(browser, URL_MODELS, { width: 360, height: 720 });
  await page.page.waitForSelector('select.model');
  await page.page.waitForSelector('header .load');
  const [wide, width, header] = await page.page.evaluate(() => [document.documentElement.scrollWidth, innerWidth, Math.max(...[...document.querySelectorAll('header > *')].map((node) => node.getBoundingClientRect().right))]);
  assert.ok(wide <= width && header <= width, `${wide} and ${header} of ${width}`);
  await page.shot('models-narrow');
  await page.close();
});
