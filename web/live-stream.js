// The stream of /live/events, opened anew when it ends. No DOM; the timer is a parameter, so that tests need no clock.
import { ApiError } from './api.js';

const RETRY_MS = 2000;

export class LiveStream {
  #stop = null; // an AbortController while it is open

  // `onEvent` gets each event as an object, `onProblem` an ApiError, or null once events come again.
  // `open` gives the events as an async iterable.
  constructor({ open, onEvent, onProblem, later = (run, ms) => setTimeout(run, ms) }) {
    Object.assign(this, { events: open, onEvent, onProblem, later });
  }

  get open() {
    return this.#stop !== null;
  }

  start() {
    if (this.open) return;
    this.#stop = new AbortController();
    this.#run(this.#stop.signal);
  }
  stop() {
    this.#stop?.abort();
    this.#stop = null;
  }

  async #run(signal) {
    while (!signal.aborted) {
      let problem = new ApiError('The connection to the server has ended.', 0);
      try {
        for await (const event of this.events(signal)) {
          if (signal.aborted) return;
          this.onProblem(null);
          this.onEvent(event);
        }
      } catch (caught) {
        problem = caught instanceof ApiError ? caught : new ApiError(caught.message, 0);
      }
      if (signal.aborted) return;
      this.onProblem(problem);
      await new Promise((resolve) => this.later(resolve, RETRY_MS));
    }
  }
}
