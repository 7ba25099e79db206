// Server-sent events: the text of a response to the data of its events. No DOM.

export const MAX_EVENT_CHARS = 8 << 20; // a longer event ends the stream with an error

// Takes text as it arrives, cut anywhere.
export class SseParser {
  #rest = '';
  #data = [];

  // The data of the events that the text completes.
  push(text) {
    this.#rest += text;
    const found = [];
    for (let end; (end = this.#rest.search(/\r\n|\n|\r(?!$)/)) >= 0; ) {
      const line = this.#rest.slice(0, end);
      this.#rest = this.#rest.slice(end + (this.#rest.startsWith('\r\n', end) ? 2 : 1));
      if (line === '') {
        if (this.#data.length > 0) found.push(this.#data.join('\n'));
        this.#data = [];
      } else if (line.startsWith('data:')) {
        this.#data.push(line.slice(line[5] === ' ' ? 6 : 5));
      } // comments, names and ids of events: no endpoint of this server needs them
    }
    if (this.#rest.length > MAX_EVENT_CHARS) throw new Error(`an event of the stream is over ${MAX_EVENT_CHARS} characters`);
    return found;
  }
}

// The data of each event of a fetch() body, a ReadableStream of bytes.
export async function* events(body) {
  const parser = new SseParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {}); // the consumer left early
  }
}
