// Conversations and settings, kept in the browser. No DOM: the storage is a parameter (localStorage, or a Map's double in tests).
//
// A conversation: {id, title, created, updated, system, sampling, voice, messages}. Each is one entry of the storage, so that two
// tabs with different conversations do not overwrite each other.

const PREFIX = 'millrace.chat.';
const KEY = 'millrace.key';
const THEME = 'millrace.theme';
const FORMAT = 'millrace-chats';
export const MAX_TITLE = 60;
export const MAX_IMPORTED = 1000; // conversations of one file
export const MAX_PICTURES = 4; // of one question
export const MAX_PICTURE_CHARS = 4 << 20; // of one as a data: URL
export const MAX_SOUNDS = 2; // of one question
export const MAX_SOUND_SECONDS = 60;
export const MAX_SOUND_CHARS = 3 << 20; // of one as base64

const MAX_VOICE_CHARS = 64;

const string = (value) => (typeof value === 'string' ? value : '');
const number = (value) => (Number.isFinite(value) ? value : 0);

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(16).padStart(2, '0')).join('');

export function newConversation(nowMs, defaults = {}) {
  return { id: newId(), title: '', created: nowMs, updated: nowMs, system: defaults.system ?? '', sampling: { ...defaults.sampling }, voice: defaults.voice ?? '', messages: [] };
}

// What is shown in the list: the given title, else how the first question begins.
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = conversation.messages.find((message) => message.role === 'user')?.content.trim().replace(/\s+/g, ' ') ?? '';
  if (!first) return conversation.messages.some((message) => message.pictures) ? 'A picture' : conversation.messages.some((message) => message.sounds) ? 'A sound' : 'New chat';
  return first.length > MAX_TITLE ? `${first.slice(0, MAX_TITLE - 1)}…` : first;
}

const PICTURE = /^data:image\/(jpeg|png|webp|gif);base64,[A-Za-z0-9+/]+=*$/;
const isPicture = (given) => string(given?.url).length <= MAX_PICTURE_CHARS && PICTURE.test(string(given?.url));

// What begins as the base64 of a RIFF file does.
const SOUND = /^UklGR[A-Za-z0-9+/]+=*$/;
const isSound = (given) => string(given?.data).length <= MAX_SOUND_CHARS && SOUND.test(string(given?.data));
const some = (given, is, most) => (Array.isArray(given) ? given : []).filter(is).slice(0, most);

function checkedQuestion(given) {
  const pictures = some(given?.pictures, isPicture, MAX_PICTURES).map(({ url, width, height }) => ({ url, width: number(width), height: number(height) }));
  const sounds = some(given?.sounds, isSound, MAX_SOUNDS).map(({ data, seconds }) => ({ data, seconds: number(seconds) }));
  return { role: 'user', content: string(given?.content), ...(pictures.length > 0 && { pictures }), ...(sounds.length > 0 && { sounds }) };
}

const KEPT = /^[0-9]{15}-[0-9a-f]{18}$/; // of a sound, as sound-store.js names it

function checkedMessage(given) {
  if (given?.role !== 'assistant') return checkedQuestion(given);
  const stats = {};
  for (const name of ['prompt', 'cached', 'output', 'first_output', 'first_ms', 'last_ms', 'first_sound_ms']) {
    if (Number.isFinite(given.stats?.[name])) stats[name] = given.stats[name];
  }
  const calls = Array.isArray(given.tool_calls) ? given.tool_calls : [];
  return {
    role: 'assistant',
    content: string(given.content),
    reasoning: string(given.reasoning),
    tool_calls: calls.map((call) => ({ name: string(call?.name), arguments: string(call?.arguments) })),
    finish: string(given.finish) || 'interrupted',
    error: string(given.error),
    stats,
    ...(KEPT.test(given.spoken?.key) && number(given.spoken.bytes) > 0 && { spoken: { key: given.spoken.key, bytes: given.spoken.bytes } }),
  };
}

const SAMPLING = ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'max_tokens', 'seed'];

// Anything to a conversation, or null: files and the storage are not to be trusted.
export function checkedConversation(given) {
  if (given === null || typeof given !== 'object' || !Array.isArray(given.messages)) return null;
  const sampling = {};
  for (const name of SAMPLING) {
    if (Number.isFinite(given.sampling?.[name])) sampling[name] = given.sampling[name];
  }
  return {
    id: /^[0-9a-f]{1,64}$/.test(given.id) ? given.id : newId(),
    title: string(given.title).slice(0, 200),
    created: number(given.created),
    updated: number(given.updated),
    system: string(given.system),
    sampling,
    voice: string(given.voice).slice(0, MAX_VOICE_CHARS),
    messages: given.messages.map(checkedMessage),
  };
}

// Spoken answers are too large for the storage: a minute is four million characters.
const withoutSound = (name, value) => (name === 'sound' ? undefined : value);

export class Store {
  constructor(storage) {
    this.storage = storage;
  }

  // Newest first.
  load() {
    const found = [];
    for (let i = 0; i < this.storage.length; i++) {
      const name = this.storage.key(i);
      if (!name.startsWith(PREFIX)) continue;
      try {
        const conversation = checkedConversation(JSON.parse(this.storage.getItem(name)));
        if (conversation) found.push({ ...conversation, id: name.slice(PREFIX.length) });
      } catch {
        // not ours, or cut off: left as it is
      }
    }
    return found.sort((a, b) => b.updated - a.updated);
  }

  // False where the browser has no more space for it, or keeps nothing.
  save(conversation) {
    return this.#set(PREFIX + conversation.id, JSON.stringify(conversation, withoutSound));
  }

  remove(id) {
    this.storage.removeItem(PREFIX + id);
  }

  get key() {
    return this.storage.getItem(KEY) ?? '';
  }
  set key(value) {
    if (value) this.#set(KEY, value);
    else this.storage.removeItem(KEY);
  }

  // "light", "dark" or "": as the system has it.
  get theme() {
    return this.storage.getItem(THEME) ?? '';
  }
  set theme(value) {
    this.#set(THEME, value);
  }

  #set(name, value) {
    try {
      this.storage.setItem(name, value);
      return true;
    } catch {
      return false;
    }
  }
}

// Where a sound is kept means nothing in another browser.
const withoutSounds = (name, value) => (name === 'spoken' ? undefined : withoutSound(name, value));
export const toFile = (conversations) => JSON.stringify({ format: FORMAT, version: 1, conversations }, withoutSounds, 1);

// The conversations of an exported file. An Error names what is wrong with it. Ids that `taken` has are replaced.
export function fromFile(text, taken = new Set()) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error('The file is not JSON. Wanted: a file that this page exported.');
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error(`The file has no "format": "${FORMAT}". Wanted: a file that this page exported.`);
  if (file.version !== 1) throw new Error(`The file has version ${JSON.stringify(file.version)}; wanted 1.`);
  if (file.conversations.length > MAX_IMPORTED) throw new Error(`The file has ${file.conversations.length} conversations; wanted ${MAX_IMPORTED} at most.`);
  return file.conversations.map((given, i) => {
    const conversation = checkedConversation(given);
    if (!conversation) throw new Error(`Conversation ${i + 1} of the file has no messages.`);
    return taken.has(conversation.id) ? { ...conversation, id: newId() } : conversation;
  });
}
