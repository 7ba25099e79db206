// The server's API as the page uses it. No DOM; fetch is a parameter, so that tests need no server.
import { events } from './sse.js';

// An answer that is not a success, or no answer: `status` is 0 where the server was not reached.
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function errorOf(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    const body = JSON.parse(await response.text());
    if (typeof body.error?.message === 'string') message = body.error.message;
  } catch {
    // not JSON: the status has to do
  }
  return new ApiError(message, response.status);
}

const of = (model) => (model ? `?model=${encodeURIComponent(model)}` : '');

export class Api {
  // `key` gives the API key of now, or ''.
  constructor({ key = () => '', fetch = globalThis.fetch.bind(globalThis) } = {}) {
    this.key = key;
    this.fetch = fetch;
  }

  async request(path, { body, signal } = {}) {
    const headers = {};
    if (this.key()) headers.Authorization = `Bearer ${this.key()}`;
    if (body) headers['Content-Type'] = 'application/json';
    try {
      return await this.fetch(path, { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal, cache: 'no-store' });
    } catch (problem) {
      if (problem.name === 'AbortError') throw problem;
      throw new ApiError('The server does not answer. Is it running?', 0);
    }
  }

  async json(path) {
    const response = await this.request(path);
    if (!response.ok) throw await errorOf(response);
    return response.json();
  }

  // [{id, context, state, progress, error}]; state: "loaded", "unloaded", "loading", ... of a server of several models, else "".
  async models() {
    const list = await this.json('/v1/models');
    return list.data.map(({ id, max_model_len, status }) => ({
      id, context: max_model_len ?? 0, state: status?.value === 'unloaded' && status.failed ? 'failed' : (status?.value ?? ''), progress: status?.progress ?? 0, error: status?.error ?? '' }));
  }

  // What the model takes beside text, and the voices that it has.
  async abilities(model) {
    const info = await this.json(`/model_info${of(model)}`);
    return { pictures: info.has_image_understanding === true, sounds: info.has_audio_understanding === true, voices: info.voices ?? [] };
  }

  // Of a server of several models; returns when it is so.
  load(model) { return this.#post('/models/load', { model }); }
  unload(model) { return this.#post('/models/unload', { model }); }

  async #post(path, body) {
    const response = await this.request(path, { body });
    if (!response.ok) throw await errorOf(response);
    return response.json();
  }

  // {ready, reason}; not an error while the model loads.
  async ready() {
    const response = await this.request('/ready');
    const body = await response.json();
    return { ready: body.ready === true, reason: String(body.reason ?? '') };
  }

  // What the engine does, as objects, twice a second. `model`: of a server of several.
  async *live(signal, model = '') {
    const response = await this.request(`/live/events${of(model)}`, { signal });
    if (!response.ok) throw await errorOf(response);
    for await (const data of events(response.body)) yield JSON.parse(data);
  }

  // How many choices were still running.
  async abort(rid, model = '') {
    return (await this.#post(`/abort_request${of(model)}`, { rid })).aborted;
  }

  // The chunks of a chat completion, as objects. An error inside the stream is an ApiError.
  async *chat(body, signal) {
    const response = await this.request('/v1/chat/completions', {
      body: { ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } },
      signal,
    });
    if (!response.ok) throw await errorOf(response);
    for await (const data of events(response.body)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(String(chunk.error.message ?? 'the server broke the answer off'), chunk.error.code ?? 500);
      yield chunk;
    }
    throw new ApiError('The connection ended before the answer was complete.', 0);
  }
}
