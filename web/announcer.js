// What a screen reader is given of an answer that streams: each sentence once, when it is complete. The shown answer is
// rendered anew with every token, which a live region would read out from the start each time.
import { html, useEffect, useRef } from './vendor/htm-preact.js';

// Where the last complete sentence or line of the text ends.
export function completeLength(text) {
  let end = 0;
  for (const found of text.matchAll(/[.!?:](?=\s)|[。！？]|\n/g)) end = found.index + 1;
  return end;
}

export function Announcer({ text, streams }) {
  const region = useRef();
  const read = useRef(0);
  const was = useRef(false);
  useEffect(() => {
    if (streams && !was.current) {
      region.current.replaceChildren();
      read.current = 0;
    }
    if (streams || was.current) {
      const end = streams ? completeLength(text) : text.length;
      if (end > read.current) {
        const line = document.createElement('p');
        line.textContent = text.slice(read.current, end);
        region.current.append(line);
        read.current = end;
      }
    }
    was.current = streams;
  }, [text, streams]);
  return html`<div class="unseen" ref=${region} role="log" aria-live="polite" aria-label="Answer"></div>`;
}
