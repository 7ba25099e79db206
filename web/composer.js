// Where a question is written: grows with its text; Enter sends, Shift+Enter is a new line. Pictures come by the button, pasted or
// dropped anywhere on the page, where the model takes them.
import { html, useEffect, useLayoutEffect, useRef, useState } from './vendor/htm-preact.js';
import { Icon, IconButton } from './icons.js';
import { Attached, filesOf, picturesOf } from './pictures.js';

// [pictures, add(files), set(pictures)]
function usePictures(session) {
  const [pictures, set] = useState([]);
  const now = useRef(pictures);
  now.current = pictures;
  const add = async (files) => {
    const made = await picturesOf(files, now.current.length, (text) => session.notify(text));
    if (made.length > 0) set([...now.current, ...made]);
  };
  useEffect(() => {
    if (!session.takesPictures) return;
    const over = (event) => { if (event.dataTransfer?.types.includes('Files')) event.preventDefault(); };
    const drop = (event) => {
      if (!event.dataTransfer?.types.includes('Files')) return;
      event.preventDefault(); // else the browser leaves the page for the file
      add(filesOf(event.dataTransfer));
    };
    const paste = (event) => {
      const files = filesOf(event.clipboardData);
      if (files.length === 0 || document.querySelector('dialog[open]')) return;
      event.preventDefault();
      add(files);
    };
    addEventListener('dragover', over);
    addEventListener('drop', drop);
    addEventListener('paste', paste);
    return () => {
      removeEventListener('dragover', over);
      removeEventListener('drop', drop);
      removeEventListener('paste', paste);
    };
  }, [session.takesPictures]);
  return [pictures, add, set];
}

export function Composer({ session, conversation }) {
  const [text, setText] = useState('');
  const [pictures, addPictures, setPictures] = usePictures(session);
  const area = useRef();
  const file = useRef();
  const streams = session.streams();
  useLayoutEffect(() => {
    area.current.style.height = 'auto';
    area.current.style.height = `${area.current.scrollHeight}px`;
  }, [text]);
  useEffect(() => { if (matchMedia('(pointer: fine)').matches) area.current.focus(); }, [conversation.id]);
  const empty = !text.trim() && pictures.length === 0;
  const send = () => {
    if (streams || empty) return;
    session.send(text, pictures);
    setText('');
    setPictures([]);
  };
  const key = (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  const take = (event) => {
    addPictures([...event.target.files]);
    event.target.value = '';
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    ${pictures.length > 0 && html`<${Attached} pictures=${pictures} remove=${(at) => setPictures(pictures.filter((_, i) => i !== at))} />`}
    <div class="field">
      ${session.takesPictures && html`<${IconButton} icon="picture" label="Attach pictures" onClick=${() => file.current.click()} />
        <input type="file" class="picture-file" accept="image/*" multiple hidden ref=${file} onChange=${take} />`}
      <textarea id="question" ref=${area} rows="1" value=${text} placeholder="Ask something" aria-label="Question" autocomplete="off"
        onInput=${(event) => setText(event.target.value)} onKeyDown=${key}></textarea>
      ${streams
        ? html`<button type="button" class="round stop" aria-label="Stop" title="Stop (Esc)" onClick=${() => session.stop()}><${Icon} name="stop" /></button>`
        : html`<button type="submit" class="round" aria-label="Send" title="Send (Enter)" disabled=${empty}><${Icon} name="send" /></button>`}
    </div>
    <p class="hint"><kbd>Enter</kbd> sends · <kbd>Shift</kbd>+<kbd>Enter</kbd> new line · <kbd>Esc</kbd> stops · <kbd>/</kbd> to write</p>
  </form>`;
}
