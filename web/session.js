// The state of the page and what changes it: conversations, the answers that stream, the server's state. No DOM.
//
// Changes replace objects, never edit them, and call `changed`, so that a view compares by identity. One answer per
// conversation streams at a time; other conversations go on meanwhile.
import { ApiError } from './api.js';
import { addChunk, endAnswer, newAnswer, requestMessages } from './answer.js';
import { checkedConversation, fromFile, newConversation } from './store.js';
import { SPEECH_RATE, fromBase64, joined, samplesOf } from './wav.js';

const TEXT_ALONE = { pictures: false, sounds: false, voices: [] };
const SAVE_INTERVAL_MS = 1000; // between two saves of an answer that streams

export class Session {
  #running = new Map(); // id of a conversation: AbortController
  #savedMs = 0;

  // `speaker`: plays what is spoken (speaker.js). `sounds`: keeps it (sound-store.js).
  constructor({ api, store, now = Date.now, changed = () => {}, speaker = null, sounds = null }) {
    Object.assign(this, { api, store, now, changed, speaker, sounds, opened: () => {} });
    // An answer without an end was streaming when the page was closed: checkedConversation says so.
    this.conversations = store.load();
    this.current = this.conversations[0]?.id ?? '';
    this.models = [];
    this.model = '';
    this.takes = TEXT_ALONE; // of the chosen model
    this.status = { ready: false, text: 'connecting' };
    this.needKey = false;
    this.notice = '';
    if (!this.current) this.create();
  }

  get conversation() {
    return this.conversations.find((conversation) => conversation.id === this.current);
  }
  get chosen() {
    return this.models.find((model) => model.id === this.model);
  }
  get context() {
    return this.chosen?.context ?? 0;
  }
  // Whether the server loads models when they are asked for.
  get loadsModels() { return this.models.some((model) => model.state !== ''); }
  // What requests without a body name.
  get routed() { return this.loadsModels ? this.model : ''; }
  // The voice that answers of the conversation are spoken with; "": they are text alone.
  voiceOf({ voice } = this.conversation) {
    const { voices } = this.takes;
    return !voice || voices.includes(voice) ? (voice ?? '') : (voices[0] ?? '');
  }
  streams(id = this.current) { return this.#running.has(id); }

  // ---- the server

  // Whether it serves, and which models: one that came back may have others. True when it does; else the caller asks again later.
  async connect() {
    const served = this.status.ready;
    try {
      const { ready, reason } = await this.api.ready();
      this.status = { ready, text: ready ? 'ready' : reason || 'loading' };
      if ((this.models.length === 0 || (ready && !served)) && !this.needKey) {
        await this.#readModels();
      }
    } catch (problem) {
      if (problem.status === 401) this.needKey = true;
      else this.status = { ready: false, text: problem.status === 0 ? 'not reachable' : problem.message };
    }
    this.changed();
    return this.status.ready && this.models.length > 0;
  }

  async useKey(key) {
    this.store.key = key;
    this.needKey = false;
    this.models = [];
    const good = await this.connect();
    if (!this.needKey && this.#unsent) {
      const id = this.#unsent;
      this.#unsent = '';
      this.retry(id);
    }
    return good;
  }
  #unsent = ''; // a conversation whose last question waits for the key

  wantKey() {
    this.needKey = true;
    this.changed();
  }
  notify(text) {
    this.notice = text;
    this.changed();
  }

  choose(model) {
    this.model = model;
    this.takes = TEXT_ALONE;
    this.changed();
    return this.refresh();
  }

  // ---- several models

  // What each model does now, and what the chosen one takes.
  async refresh() {
    try {
      await this.#readModels();
    } catch (problem) {
      if (problem.status === 401) this.needKey = true;
    }
    this.changed();
  }
  async #readModels() {
    const turn = ++this.#reads;
    const models = await this.api.models();
    if (turn < this.#shown) return; // one that began later is shown, and knows more
    this.#shown = turn;
    // What no request has named yet: one that is loaded before one that is not.
    if (!models.some((model) => model.id === this.model)) this.model = (models.find((model) => model.state === 'loaded') ?? models[0])?.id ?? '';
    const chosen = models.find((model) => model.id === this.model);
    // A model that is not loaded has no abilities to ask for.
    if (chosen && ['', 'loaded'].includes(chosen.state)) {
      const name = this.model;
      const takes = await this.api.abilities(chosen.state && name).catch(() => TEXT_ALONE);
      if (turn < this.#shown) return;
      if (name === this.model) this.takes = takes;
    } else {
      this.takes = TEXT_ALONE;
    }
    this.models = models;
  }
  // Whether what models do changes now: it is worth to ask again.
  get modelsMove() {
    return this.#orders > 0 || this.models.some((model) => ['loading', 'unloading'].includes(model.state)) ||
      (this.loadsModels && this.chosen?.state !== 'loaded' && this.#running.size > 0);
  }
  load(model = this.model) {
    return this.#order(() => this.api.load(model));
  }
  unload(model = this.model) {
    return this.#order(() => this.api.unload(model));
  }
  async #order(run) {
    this.#orders += 1;
    this.changed();
    try {
      await run();
    } catch (problem) {
      this.notify(problem.message);
    }
    this.#orders -= 1;
    await this.refresh();
  }
  #orders = 0; // under way
  #reads = 0; // of the models, that began
  #shown = 0; // the one that is shown

  // ---- conversations

  create() {
    const empty = this.conversations.find((conversation) => conversation.messages.length === 0);
    const made = empty ?? newConversation(this.now(), this.conversation);
    if (!empty) this.conversations = [made, ...this.conversations];
    this.open(made.id);
  }
  open(id) {
    this.current = id;
    this.opened();
    this.changed();
  }
  change(id, fields) {
    this.conversations = this.conversations.map((one) => (one.id === id ? { ...one, ...fields } : one));
    this.#save(id);
    this.changed();
  }
  // undefined: the server's default. The fields of a dialog may be changed faster than they are drawn, so each change starts from the
  // settings as they are now.
  setSampling(id, name, value) {
    const { [name]: _, ...rest } = this.conversations.find((one) => one.id === id)?.sampling ?? {};
    this.change(id, { sampling: value === undefined ? rest : { ...rest, [name]: value } });
  }
  remove(id) {
    this.stop(id);
    this.store.remove(id);
    this.sounds?.forget(id);
    this.conversations = this.conversations.filter((one) => one.id !== id);
    if (this.current === id) this.current = this.conversations[0]?.id ?? '';
    if (!this.current) this.create();
    this.changed();
  }
  // Throws an Error that names what is wrong with the file.
  import(text) {
    const added = fromFile(text, new Set(this.conversations.map((one) => one.id)));
    this.conversations = [...added, ...this.conversations];
    if (added.length > 0) this.current = added[0].id;
    for (const one of added) this.#save(one.id);
    this.changed();
    return added.length;
  }
  // Another tab changed the storage.
  reload(id, text) {
    if (this.streams(id)) return;
    const given = text === null ? null : checkedConversation(JSON.parse(text));
    const others = this.conversations.filter((one) => one.id !== id);
    this.conversations = given ? [{ ...given, id }, ...others] : others;
    if (!this.conversation) this.current = this.conversations[0]?.id ?? '';
    if (!this.current) this.create();
    this.changed();
  }
  // The page is closed, or left for the browser's history. What streams fails then, before the page is gone or after it came back.
  leave() {
    this.#left = true;
    for (const id of this.#running.keys()) this.#save(id);
  }
  comeBack() {
    this.#left = false;
  }
  #left = false;
  #save(id) {
    const conversation = this.conversations.find((one) => one.id === id);
    if (!conversation || conversation.messages.length === 0) return;
    if (!this.store.save(conversation)) this.notice = 'The browser has no space left for this conversation: export it, or delete others.';
  }

  // ---- messages

  // `pictures`: [{url, width, height}], of data: URLs; `sounds`: [{data, seconds}], base64 of WAV files.
  send(text, pictures = [], sounds = [], id = this.current) {
    const one = this.conversations.find((each) => each.id === id);
    if ((!text.trim() && pictures.length + sounds.length === 0) || this.streams(id)) return;
    return this.#answer(id, [...one.messages, { role: 'user', content: text, ...(pictures.length > 0 && { pictures }), ...(sounds.length > 0 && { sounds }) }]);
  }
  // Again, from the last question.
  retry(id = this.current) {
    const { messages } = this.conversations.find((each) => each.id === id);
    const last = messages.findLastIndex((message) => message.role === 'user');
    if (last >= 0 && !this.streams(id)) return this.#answer(id, messages.slice(0, last + 1));
  }
  // The question at `index` in other words, with its pictures; what followed goes.
  edit(index, text, id = this.current) {
    const { messages } = this.conversations.find((each) => each.id === id);
    if (text.trim() && !this.streams(id)) return this.#answer(id, [...messages.slice(0, index), { ...messages[index], content: text }]);
  }
  stop(id = this.current) {
    this.#running.get(id)?.abort();
  }

  async #answer(id, messages) {
    const control = new AbortController();
    this.#running.set(id, control);
    let answer = newAnswer(this.now());
    const show = () => this.change(id, { messages: [...messages, answer], updated: this.now() });
    const one = this.conversations.find((each) => each.id === id);
    const voice = this.voiceOf(one);
    const speech = voice && { modalities: ['text', 'audio'], audio: { voice, format: 'pcm16' } };
    const body = { model: this.model || undefined, messages: requestMessages({ ...one, messages }), ...one.sampling, ...speech };
    const owner = `answer ${answer.started_ms}`;
    if (voice) this.speaker?.begin(owner, SPEECH_RATE);
    show();
    try {
      for await (const chunk of this.api.chat(body, control.signal)) {
        answer = addChunk(answer, chunk, this.now());
        const sound = chunk.choices?.[0]?.delta?.audio?.data;
        if (voice && sound) this.speaker?.add(owner, samplesOf(fromBase64(sound)));
        this.#show(id, [...messages, answer]);
      }
      answer = endAnswer(answer, 'stop');
      if (voice) this.speaker?.end(owner);
    } catch (problem) {
      if (this.speaker?.owner === owner) this.speaker.stop();
      answer = this.#left ? endAnswer(answer, 'interrupted') : this.#failed(id, answer, problem);
    }
    this.#running.delete(id);
    if (answer.sound && this.sounds) answer = { ...answer, spoken: { key: this.sounds.keep(id, joined(answer.sound)), bytes: answer.sound.bytes } };
    if (this.conversations.some((each) => each.id === id)) show();
    if (this.loadsModels) await this.refresh();
  }
  #failed(id, answer, problem) {
    if (problem.name === 'AbortError') return endAnswer(answer, 'stopped');
    if (problem.status === 401) {
      this.needKey = true;
      this.#unsent = id;
    } else if (!(problem instanceof ApiError)) {
      console.error(problem);
    } else if ([0, 404, 503].includes(problem.status)) {
      this.status = { ready: false, text: 'not ready' };
    }
    return endAnswer(answer, 'error', problem.message);
  }
  // While it streams: shown at once, saved now and then.
  #show(id, messages) {
    this.conversations = this.conversations.map((one) => (one.id === id ? { ...one, messages } : one));
    if (this.now() - this.#savedMs > SAVE_INTERVAL_MS) {
      this.#savedMs = this.now();
      this.#save(id);
    }
    this.changed();
  }
}
