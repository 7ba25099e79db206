// Where a question is written: grows with its text; Enter sends, Shift+Enter is a new line.
import { html, useEffect, useLayoutEffect, useRef, useState } from './vendor/htm-preact.js';
import { Icon } from './icons.js';

export function Composer({ session, conversation }) {
  const [text, setText] = useState('');
  const area = useRef();
  const streams = session.streams();
  useLayoutEffect(() => {
    area.current.style.height = 'auto';
    area.current.style.height = `${area.current.scrollHeight}px`;
  }, [text]);
  useEffect(() => { if (matchMedia('(pointer: fine)').matches) area.current.focus(); }, [conversation.id]);
  const send = () => {
    if (streams || !text.trim()) return;
    session.send(text);
    setText('');
  };
  const key = (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    <div class="field">
      <textarea id="question" ref=${area} rows="1" value=${text} placeholder="Ask something" aria-label="Question" autocomplete="off"
        onInput=${(event) => setText(event.target.value)} onKeyDown=${key}></textarea>
      ${streams
        ? html`<button type="button" class="round stop" aria-label="Stop" title="Stop (Esc)" onClick=${() => session.stop()}><${Icon} name="stop" /></button>`
        : html`<button type="submit" class="round" aria-label="Send" title="Send (Enter)" disabled=${!text.trim()}><${Icon} name="send" /></button>`}
    </div>
    <p class="hint"><kbd>Enter</kbd> sends · <kbd>Shift</kbd>+<kbd>Enter</kbd> new line · <kbd>Esc</kbd> stops · <kbd>/</kbd> to write</p>
  </form>`;
}
