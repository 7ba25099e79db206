// What the tests of the page share: a browser, a page that notes what goes wrong in it, and a gate in the stream of answers.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import puppeteer from 'puppeteer-core';

export const WAIT_MS = 600_000; // for any event, and for any answer of the browser; a wait that runs out is a failure
const POLL_MS = 50;
const SHOTS = process.env.MILLRACE_SCREENSHOTS; // a folder for pictures to look at; unset: none are taken

// A headless browser has no mouse, and the page then shows what else a pointer shows. These give it one.
export const MOUSE = ['--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4'];

export const launch = (more = []) =>
  puppeteer.launch({
    executablePath: process.env.MILLRACE_CHROMIUM,
    // As root and inside another sandbox (tests/isolated) Chromium's has no rights; the page is ours.
    // The microphone is Chromium's own: it beeps, and nobody is asked.
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--use-fake-device-for-media-stream', '--use-fake-ui-for-media-stream', ...more],
    timeout: WAIT_MS,
    protocolTimeout: WAIT_MS,
  });

// Runs in the page before its modules: answers stop after window.gate.bytes bytes, or behind the first event that matches
// window.gate.behind, until window.gate.open() is called, each time anew.
function installGate() {
  const gate = { bytes: Infinity, behind: null };
  let opened;
  const shut = () => { opened = new Promise((resolve) => { gate.open = () => { gate.bytes = Infinity; gate.behind = null; resolve(); shut(); }; }); };
  shut();
  const fetchNow = window.fetch;
  window.gate = gate;
  window.fetch = async (url, options) => {
    const response = await fetchNow(url, options);
    if (!String(url).includes('/chat/completions') || !response.ok) return response;
    const stopped = new Promise((_, reject) => options.signal.addEventListener('abort', () => reject(options.signal.reason)));
    stopped.catch(() => {}); // also where nothing waits at the gate
    const reader = response.body.getReader();
    let passed = 0;
    let rest = new Uint8Array();
    let text = ''; // what has arrived, a character for a byte
    const findEvent = () => {
      text += Array.from(rest, (byte) => String.fromCharCode(byte)).join('');
      const end = text.indexOf('\n\n', text.search(gate.behind));
      if (gate.behind.test(text) && end >= 0) gate.bytes = end + 2;
    };
    const body = new ReadableStream({
      async pull(to) {
        if (rest.length === 0) {
          const { done, value } = await reader.read();
          if (done) return to.close();
          rest = value;
          if (gate.behind) findEvent();
        }
        if (passed >= gate.bytes) await Promise.race([opened, stopped]);
        const part = rest.slice(0, Math.max(1, Math.min(rest.length, gate.bytes - passed)));
        rest = rest.slice(part.length);
        passed += part.length;
        to.enqueue(part);
      },
      cancel: (reason) => reader.cancel(reason),
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
}

export class Page {
  // `prepare`: a function that runs in the page before its modules.
  static async open(browser, url, { width = 1200, height = 800, dark = false, path = '/', shows = '#question', prepare } = {}) {
    const made = new Page();
    made.context = await browser.createBrowserContext(); // a storage of its own
    made.page = await made.context.newPage();
    made.url = url;
    made.faults = [];
    made.requested = [];
    made.forced = null; // fields added to the body of chat requests
    const { page } = made;
    page.setDefaultTimeout(WAIT_MS);
    page.on('pageerror', (error) => made.faults.push(`error: ${error.message}`));
    page.on('console', (message) => { if (message.type() === 'error') made.faults.push(`console: ${message.text()}`); });
    await page.evaluateOnNewDocument(installGate);
    if (prepare) await page.evaluateOnNewDocument(prepare);
    await page.setRequestInterception(true);
    page.on('request', (request) => {
      made.requested.push(request.url());
      const forced = made.forced && request.url().endsWith('/chat/completions');
      request.continue(forced ? { postData: JSON.stringify({ ...JSON.parse(request.postData()), ...made.forced }) } : {});
    });
    await page.setViewport({ width, height });
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' }, { name: 'prefers-reduced-motion', value: 'reduce' }]);
    await page.goto(url + path, { waitUntil: 'load' });
    await page.waitForSelector(shows);
    return made;
  }

  ready() { return this.page.waitForSelector('.status.ready'); }
  click(label) { return this.page.click(`[aria-label="${label}"]`); }
  // Not at every frame, which is the default: a browser without a GPU draws them with the processor.
  wait(condition, ...values) { return this.page.waitForFunction(condition, { polling: POLL_MS }, ...values); }
  texts(selector) { return this.page.$$eval(selector, (nodes) => nodes.map((node) => node.innerText.trim())); }
  storage() { return this.page.evaluate(() => Object.keys(localStorage).filter((name) => name.startsWith('millrace.chat.')).length); }
  // Of the page, or of one element.
  async shot(name, element = this.page) {
    if (!SHOTS) return;
    mkdirSync(SHOTS, { recursive: true });
    await element.screenshot({ path: `${SHOTS}/${name}.png` });
  }

  async write(text) {
    await this.page.type('#question', text);
    await this.page.keyboard.press('Enter');
  }
  // Until `count` answers have ended.
  ended(count) {
    return this.wait((n) => document.querySelectorAll('.answer').length === n && !document.querySelector('.answer.live'), count);
  }
  async ask(text, count) {
    await this.write(text);
    await this.ended(count);
    return (await this.texts('.answer:last-child .markdown')).at(-1);
  }

  // No error of the page, no request to elsewhere.
  async close(allowed = []) {
    const outside = this.requested.filter((url) => !url.startsWith(this.url) && !url.startsWith('blob:') && !url.startsWith('data:'));
    assert.deepEqual(outside, []);
    assert.deepEqual(this.faults.filter((fault) => !allowed.some((pattern) => pattern.test(fault))), []);
    await this.context.close();
  }
}
