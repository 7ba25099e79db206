// Sound in the chat, in headless Chromium. MILLRACE_SPEECH_URL serves a model that hears and speaks, MILLRACE_URL one that does neither.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { Page, WAIT_MS, launch } from './page.mjs';

const { MILLRACE_SPEECH_URL: URL_SPEECH, MILLRACE_URL: URL_TEXT } = process.env;
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const CHAT = '/v1/chat/completions';
const GREEDY = { temperature: 0, max_tokens: 12, ignore_eos: true };
const SPOKEN = { ...GREEDY, talker_do_sample: false, talker_max_new_tokens: 30 };

let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

// Runs in the page before its modules: what is played, as [begin, rate, samples of 16 bits]. While window.still is set, time stands
// still for what is played, so that it does not end before a test stops it; the page itself lets it go on at the next sound.
function noteWhatIsPlayed() {
  window.played = [];
  const { start } = AudioBufferSourceNode.prototype;
  AudioBufferSourceNode.prototype.start = function noted(when) {
    if (this.context instanceof AudioContext) window.played.push([when, this.buffer.sampleRate, Array.from(this.buffer.getChannelData(0), (value) => value * 32768)]);
    start.call(this, when);
    if (window.still) this.context.suspend();
  };
}
const open = async (view = {}) => {
  const page = await Page.open(browser, URL_SPEECH, { prepare: noteWhatIsPlayed, ...view });
  await page.ready();
  await page.page.waitForSelector('[aria-label="Speak answers"]');
  page.forced = GREEDY;
  return page;
};
const asked = async (page, run) => JSON.parse((await Promise.all([page.page.waitForRequest((one) => one.url().endsWith(CHAT)), run()]))[0].postData());
const failed = (page) => page.texts('.answer .problem');

// A file of `seconds` at 44.1 kHz with a tone of 500 Hz left and silence right, given to the page by its button.
const attach = (page, { seconds = 1, broken = false } = {}) => page.page.evaluate((long, bad) => {
  const rate = 44100, count = Math.round(long * rate), bytes = new DataView(new ArrayBuffer(44 + 4 * count));
  const mark = (at, text) => [...text].forEach((char, i) => bytes.setUint8(at + i, char.charCodeAt(0)));
  mark(0, 'RIFF'); mark(8, 'WAVEfmt '); mark(36, 'data');
  for (const [at, value] of [[4, 36 + 4 * count], [16, 16], [24, rate], [28, 4 * rate], [40, 4 * count]]) bytes.setUint32(at, value, true);
  for (const [at, value] of [[20, 1], [22, 2], [32, 4], [34, 16]]) bytes.setUint16(at, value, true);
  for (let i = 0; i < count; ++i) bytes.setInt16(44 + 4 * i, 20000 * Math.sin((2 * Math.PI * 500 * i) / rate), true);
  const files = new DataTransfer();
  files.items.add(new File([bad ? 'no sound' : bytes.buffer], 'tone.wav', { type: 'audio/wav' }));
  const input = document.querySelector('.picture-file');
  input.files = files.files;
  input.dispatchEvent(new Event('change', { bubbles: true }));
}, seconds, broken);
const attached = (page, count) => page.wait((n) => document.querySelectorAll('.attached-sounds li').length === n, count);
const samplesOf = (part) => {
  assert.equal(part.type, 'input_audio');
  assert.equal(part.input_audio.format, 'wav');
  const file = Buffer.from(part.input_audio.data, 'base64');
  assert.deepEqual([file.toString('latin1', 0, 4), file.readUInt16LE(22), file.readUInt32LE(24), file.readUInt16LE(34)], ['RIFF', 1, 16000, 16]);
  return new Int16Array(file.buffer.slice(file.byteOffset + 44, file.byteOffset + file.length));
};

test('a file of sound goes with the question as mono at 16 kHz, and stays', async () => {
  const page = await open();
  await attach(page, { broken: true });
  await page.wait(() => document.querySelector('.notice')?.innerText.includes('tone.wav is no sound'));
  await attach(page, { seconds: 61 });
  await page.wait(() => document.querySelector('.notice')?.innerText.includes('61 seconds; wanted 60 at most'));
  await page.page.click('.notice button');
  await attach(page);
  await attached(page, 1);
  await page.click('Play sound 1');
  await page.wait(() => window.played.length === 1);
  await page.shot('sound-attached');
  const body = await asked(page, () => page.write('What do you hear?'));
  const [part, text] = body.messages[0].content;
  assert.deepEqual(text, { type: 'text', text: 'What do you hear?' });
  const samples = samplesOf(part);
  assert.ok(Math.abs(samples.length - 16000) <= 1, `${samples.length} samples of a second`);
  let crossings = 0;
  for (let i = 1; i < samples.length; ++i) crossings += samples[i - 1] < 0 !== samples[i] < 0 ? 1 : 0;
  assert.ok(Math.abs(crossings - 1000) <= 4, `${crossings} crossings of 500 periods`);
  const loudest = Math.max(...samples.slice(2000, 14000));
  assert.ok(Math.abs(loudest - 10000) < 300, `${loudest}: half of the left channel's 20000`);
  await page.ended(1);
  assert.deepEqual(await failed(page), []);
  assert.equal((await page.page.$$('.attached-sounds')).length, 0);
  await page.page.reload();
  await page.ready();
  const again = await asked(page, () => page.write('And now?'));
  assert.deepEqual(again.messages[0], body.messages[0]);
  await page.ended(2);
  assert.deepEqual(await failed(page), []);
  await page.close();
});

test('a question that is recorded is one', async () => {
  const page = await open();
  await page.click('Record a question');
  await page.page.waitForSelector('.recording');
  await page.shot('sound-recording');
  await page.wait(() => document.querySelector('.recording').innerText.trim() === '0:02'); // Chromium's microphone beeps each second
  await page.click('End the recording');
  await attached(page, 1);
  const samples = samplesOf((await asked(page, () => page.click('Send'))).messages[0].content[0]);
  assert.ok(samples.length > 16000 && samples.some((value) => Math.abs(value) > 1000), `${samples.length} samples, up to ${Math.max(...samples)}`);
  await page.ended(1);
  assert.deepEqual(await failed(page), []);
  await page.wait(() => document.querySelector('.row .title')?.innerText.trim() === 'A sound');
  await page.close();
});

test('an answer is played while it streams: the samples of the server, one behind the other', async () => {
  const page = await open();
  page.forced = SPOKEN;
  await page.click('Speak answers');
  await page.page.waitForSelector('.voice');
  await page.page.select('.voice', 'ethan');
  const body = await asked(page, () => page.write('Tell me a story.'));
  assert.deepEqual([body.modalities, body.audio], [['text', 'audio'], { voice: 'ethan', format: 'pcm16' }]);
  await page.ended(1);
  assert.deepEqual(await failed(page), []);
  const given = await (await fetch(URL_SPEECH + CHAT, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ ...body, ...SPOKEN, stream: false, stream_options: undefined }) })).json();
  const pcm = Buffer.from(given.choices[0].message.audio.data, 'base64');
  const wanted = Array.from(new Int16Array(pcm.buffer.slice(pcm.byteOffset, pcm.byteOffset + pcm.length)));
  assert.ok(wanted.length > 20000 && wanted.some((value) => value !== 0));
  const played = () => page.page.evaluate(() => window.played);
  const heard = await played();
  assert.deepEqual(heard.flatMap(([, , samples]) => samples), wanted);
  assert.ok(heard.length > 1 && heard.every(([, rate]) => rate === 24000));
  heard.reduce((end, [begin, rate, samples]) => { assert.ok(begin >= end - 1e-6, 'no sound above another'); return begin + samples.length / rate; }, 0);
  assert.equal(await page.page.$eval('.answer .sound', (node) => node.dataset.seconds), (wanted.length / 24000).toFixed(2));
  assert.ok((await page.texts('.stats dt')).includes('first sound'));

  // Again, stopped behind its first samples: they are played before the answer is complete.
  await page.page.waitForSelector('[aria-label="Play the answer"]'); // it has ended
  const again = async () => {
    await page.page.evaluate(() => { window.played = []; window.gate.behind = /"data":"[A-Za-z0-9+]/; });
    await page.click('Retry');
    await page.wait(() => window.played.length > 0 && document.querySelector('.answer.live .sound'));
  };
  await again();
  assert.ok((await played()).flatMap(([, , samples]) => samples).length < wanted.length);
  await page.shot('sound-spoken');
  await page.page.evaluate(() => window.gate.open());
  await page.ended(1);
  assert.deepEqual((await played()).flatMap(([, , samples]) => samples), wanted);

  // By the button, and quiet at another click.
  await page.page.waitForSelector('[aria-label="Play the answer"]');
  await page.page.evaluate(() => { window.played = []; window.still = true; });
  await page.click('Play the answer');
  await page.page.waitForSelector('[aria-label="Stop the answer"]');
  assert.deepEqual((await played()).flatMap(([, , samples]) => samples), wanted);
  await page.click('Stop the answer');
  await page.page.waitForSelector('[aria-label="Play the answer"]');
  await page.page.evaluate(() => { window.still = false; });

  // An answer that is stopped is quiet, and keeps what came.
  await again();
  await page.click('Stop');
  await page.ended(1);
  assert.deepEqual(await page.texts('.answer .note'), ['Stopped.']);
  await page.page.waitForSelector('[aria-label="Play the answer"]');

  // A reload finds the text in the storage, which has no sound, and the sound in the browser's database.
  await page.page.evaluate(() => window.gate.open());
  await page.click('Retry');
  await page.page.waitForSelector('.answer:not(.live) [aria-label="Stop the answer"], .answer:not(.live) [aria-label="Play the answer"]');
  await page.ended(1);
  const text = (await page.texts('.answer .markdown')).at(-1);
  await page.wait(() => new Promise((resolve) => {
    const opened = indexedDB.open('millrace.sounds');
    opened.onsuccess = () => { opened.result.transaction('about').objectStore('about').getAll().onsuccess = ({ target }) => { opened.result.close(); resolve(target.result.length >= 2); }; };
  }));
  assert.ok(await page.page.evaluate(() => Object.values(localStorage).every((value) => value.length < 20_000)));
  await page.page.reload();
  await page.ready();
  assert.deepEqual(await page.texts('.answer .markdown'), [text]);
  assert.equal(await page.page.$eval('.answer .sound', (node) => node.dataset.seconds), (wanted.length / 24000).toFixed(2));
  await page.page.evaluate(() => { window.still = true; });
  await page.click('Play the answer');
  await page.wait(() => window.played.length > 0);
  assert.deepEqual((await played()).flatMap(([, , samples]) => samples), wanted);

  // What is kept no more says so; a conversation that is deleted takes its sounds along.
  const kept = (change) => page.page.evaluate((clear) => new Promise((resolve) => {
    const opened = indexedDB.open('millrace.sounds');
    opened.onsuccess = () => {
      const tables = opened.result.transaction(['about', 'bytes'], 'readwrite');
      if (clear) tables.objectStore('bytes').clear();
      const count = tables.objectStore('about').count();
      tables.oncomplete = () => { opened.result.close(); resolve(count.result); };
    };
  }), change);
  assert.ok((await kept(true)) >= 2);
  await page.click('Stop the answer');
  await page.page.waitForSelector('[aria-label="Play the answer"]');
  await page.click('Play the answer');
  await page.wait(() => document.querySelector('.answer .note')?.innerText.includes('keeps 64 MiB'));
  await page.page.hover('.row.shown');
  await page.page.click('.row.shown [aria-label="Delete"]');
  await page.page.waitForSelector('.row.asking .danger');
  await page.page.click('.row.asking .danger');
  for (const end = Date.now() + WAIT_MS; (await kept(false)) > 0; await new Promise((resolve) => setTimeout(resolve, 20))) assert.ok(Date.now() < end, 'the sounds go');
  await page.close();
});

test('the newest sounds are kept, within the limit', async () => {
  const page = await open();
  const found = await page.page.evaluate(async () => {
    const { SoundStore } = await import('/web/sound-store.js');
    let now = 1e12;
    const store = new SoundStore({ most: 250, now: () => now++ });
    const keys = [];
    for (const [conversation, size] of [['a', 100], ['b', 100], ['a', 100], ['c', 40]]) {
      keys.push(store.keep(conversation, new Uint8Array(size).fill(keys.length + 1)));
      await store.written;
    }
    const sizes = async () => Promise.all(keys.map(async (key) => (await store.get(key))?.[0]));
    const kept = await sizes();
    await store.forget('a');
    const without = new SoundStore({ factory: { open() { throw new Error('this browser keeps nothing'); } } });
    const nothing = await without.get(without.keep('a', new Uint8Array(1)));
    await without.forget('a');
    return [kept, await sizes(), nothing];
  });
  assert.deepEqual(found, [[null, 2, 3, 4], [null, 2, null, 4], null]); // of 100, 100, 100 and 40 bytes
  await page.close();
});

test('narrow and dark windows show it all, and nothing fails the accessibility rules', async () => {
  for (const [name, view] of [['sound-narrow', { width: 360, height: 720 }], ['sound-dark', { dark: true }]]) {
    const page = await open(view);
    page.forced = SPOKEN;
    await page.click('Speak answers');
    await attach(page);
    await attached(page, 1);
    await page.write('What do you hear?');
    await page.ended(1);
    await attach(page);
    await attached(page, 1);
    await page.page.waitForSelector('[aria-label="Play the answer"]');
    await page.page.evaluate(AXE);
    const found = await page.page.evaluate(() => globalThis.axe.run());
    assert.deepEqual(found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' ')}`), [], name);
    const [wide, width] = await page.page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(wide <= width, `${name}: ${wide} of ${width}`);
    await page.shot(name);
    await page.close();
  }
});

test('a model that neither hears nor speaks has no such buttons', async () => {
  const page = await Page.open(browser, URL_TEXT);
  await page.ready();
  for (const label of ['Record a question', 'Speak answers', 'Attach sounds']) assert.equal(await page.page.$(`[aria-label="${label}"]`), null);
  await page.close();
});
