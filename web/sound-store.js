// SoundStore: spoken answers, kept in the browser's IndexedDB, since a minute is three million bytes and localStorage has room for
// one or two. MAX_KEPT_BYTES of them are kept, the newest. Where the browser keeps nothing, a sound lasts as long as the page.
//
// Two tables of one database: `about` has {key, conversation, size} with keys that grow with time, `bytes` the samples.
import { newId } from './store.js';

export const MAX_KEPT_BYTES = 64 << 20; // about 23 minutes
const NAME = 'millrace.sounds';

const done = (request) => new Promise((resolve, reject) => { request.onsuccess = () => resolve(request.result); request.onerror = () => reject(request.error); });
const ended = (change) => new Promise((resolve, reject) => { change.oncomplete = resolve; change.onabort = change.onerror = () => reject(change.error); });

export class SoundStore {
  #opened = null; // a promise of the database

  constructor({ factory = globalThis.indexedDB, most = MAX_KEPT_BYTES, now = Date.now } = {}) {
    Object.assign(this, { factory, most, now });
  }

  // The name under which `pcm` of an answer of this conversation is kept from now on; it is written aside.
  keep(conversation, pcm) {
    const key = `${this.now().toString().padStart(15, '0')}-${newId()}`;
    this.written = this.#write({ key, conversation, size: pcm.length }, pcm).catch(() => {});
    return key;
  }

  // undefined: it is not there any more.
  async get(key) {
    try {
      const base = await this.#open();
      return await done(base.transaction('bytes').objectStore('bytes').get(key));
    } catch {
      return undefined;
    }
  }

  // All that is kept of a conversation goes.
  async forget(conversation) {
    try {
      await this.#remove((all) => all.filter((one) => one.conversation === conversation));
    } catch {
      // Nothing is kept.
    }
  }

  async #write(about, pcm) {
    const base = await this.#open();
    const change = base.transaction(['about', 'bytes'], 'readwrite');
    change.objectStore('about').put(about);
    change.objectStore('bytes').put(pcm, about.key);
    await ended(change);
    await this.#remove((all) => {
      let left = this.most;
      return all.reverse().filter(({ size }) => { left -= size; return left < 0; });
    });
  }

  // Those that `choose` takes of all, the oldest first.
  async #remove(choose) {
    const base = await this.#open();
    const change = base.transaction(['about', 'bytes'], 'readwrite');
    const gone = choose(await done(change.objectStore('about').getAll()));
    for (const { key } of gone) for (const table of ['about', 'bytes']) change.objectStore(table).delete(key);
    await ended(change);
  }

  #open() {
    this.#opened ??= new Promise((resolve, reject) => {
      const request = this.factory.open(NAME, 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore('about', { keyPath: 'key' });
        request.result.createObjectStore('bytes');
      };
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    return this.#opened;
  }
}
