// Speaker: plays one sound at a time, whole or as its samples come. Of the DOM it needs an AudioContext alone, which is a parameter.
//
// Web Audio and no <audio> element: the page's policy permits no media from data: or blob: URLs.

const LEAD_S = 0.05; // from the arrival of samples to their begin, where nothing plays yet

export class Speaker {
  #context = null;
  #sources = new Set();
  #until = 0; // seconds of the context's clock: where the next samples begin
  #more = false;

  constructor({ changed = () => {}, Context = globalThis.AudioContext } = {}) {
    Object.assign(this, { changed, Context, owner: '', rate: 0 });
  }

  // A new sound, whose samples add() gets; what plays now stops. `owner`: any text that names it. To be called while a click or a key
  // is handled: else browsers keep quiet.
  begin(owner, rate) {
    this.stop();
    this.#context ??= new this.Context();
    this.#context.resume?.();
    this.#until = 0;
    this.#more = true;
    Object.assign(this, { owner, rate });
    this.changed();
  }

  add(owner, samples) {
    if (owner !== this.owner || samples.length === 0) return;
    const buffer = this.#context.createBuffer(1, samples.length, this.rate);
    buffer.copyToChannel(samples, 0);
    const source = this.#context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.#context.destination);
    source.onended = () => {
      this.#sources.delete(source);
      this.#quietOnceDone();
    };
    this.#sources.add(source);
    const at = Math.max(this.#until, this.#context.currentTime + LEAD_S);
    source.start(at);
    this.#until = at + samples.length / this.rate;
  }

  // No more samples come.
  end(owner) {
    if (owner !== this.owner) return;
    this.#more = false;
    this.#quietOnceDone();
  }

  stop() {
    for (const source of this.#sources) {
      source.onended = null;
      source.stop();
    }
    this.#sources.clear();
    this.#more = false;
    this.#quietOnceDone();
  }

  play(owner, rate, samples) {
    this.begin(owner, rate);
    this.add(owner, samples);
    this.end(owner);
  }

  #quietOnceDone() {
    if (this.#more || this.#sources.size > 0 || this.owner === '') return;
    this.owner = '';
    this.changed();
  }
}
