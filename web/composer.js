// Where a question is written: grows with its text; Enter sends, Shift+Enter is a new line. Pictures and sounds come by the button,
// pasted or dropped anywhere on the page, or from the microphone, where the model takes them.
import { html, useEffect, useLayoutEffect, useRef, useState } from './vendor/htm-preact.js';
import { Icon, IconButton } from './icons.js';
import { Attached, isPicture, picturesOf } from './pictures.js';
import { AttachedSounds, RecordButton, canRecord, isSound, soundsOf } from './sounds.js';
import { MAX_SOUNDS } from './store.js';

// [list, add(files), set(list)]; `make` makes what is kept of files (picturesOf, soundsOf).
function useAttached(session, make) {
  const [list, set] = useState([]);
  const now = useRef(list);
  now.current = list;
  const add = async (files) => {
    const made = await make(files, now.current.length, (text) => session.notify(text));
    if (made.length > 0) set([...now.current, ...made]);
  };
  return [list, add, set];
}

// Files that are dropped or pasted on the page go to `add`, if the model `takes` such ones.
function useGivenFiles(takes, add) {
  const now = useRef(add);
  now.current = add;
  useEffect(() => {
    if (!takes.pictures && !takes.sounds) return;
    const over = (event) => { if (event.dataTransfer?.types.includes('Files')) event.preventDefault(); };
    const drop = (event) => {
      if (!event.dataTransfer?.types.includes('Files')) return;
      event.preventDefault(); // else the browser leaves the page for the file
      now.current([...event.dataTransfer.files]);
    };
    const paste = (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length === 0 || document.querySelector('dialog[open]')) return;
      event.preventDefault();
      now.current(files);
    };
    addEventListener('dragover', over);
    addEventListener('drop', drop);
    addEventListener('paste', paste);
    return () => {
      removeEventListener('dragover', over);
      removeEventListener('drop', drop);
      removeEventListener('paste', paste);
    };
  }, [takes.pictures, takes.sounds]);
}

// Whether answers are spoken, and by which voice.
function Voice({ session, conversation }) {
  const { voices } = session.takes;
  const voice = session.voiceOf(conversation);
  const set = (to) => session.change(conversation.id, { voice: to });
  return html`<${IconButton} icon="speak" label="Speak answers" aria-pressed=${voice !== ''} onClick=${() => set(voice ? '' : voices[0])} />
    ${voice && voices.length > 1 && html`<select class="voice" aria-label="Voice" value=${voice} onChange=${(event) => set(event.target.value)}>
      ${voices.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select>`}`;
}

export function Composer({ session, conversation }) {
  const [text, setText] = useState('');
  const [pictures, addPictures, setPictures] = useAttached(session, picturesOf);
  const [sounds, addSounds, setSounds] = useAttached(session, soundsOf);
  const area = useRef();
  const file = useRef();
  const streams = session.streams();
  const { takes } = session;
  const add = (files) => {
    if (takes.pictures) addPictures(files.filter(isPicture));
    if (takes.sounds) addSounds(files.filter(isSound));
  };
  useGivenFiles(takes, add);
  useLayoutEffect(() => {
    area.current.style.height = 'auto';
    area.current.style.height = `${area.current.scrollHeight}px`;
  }, [text]);
  useEffect(() => { if (matchMedia('(pointer: fine)').matches) area.current.focus(); }, [conversation.id]);
  const empty = !text.trim() && pictures.length + sounds.length === 0;
  const send = () => {
    if (streams || empty) return;
    session.send(text, pictures, sounds);
    setText('');
    setPictures([]);
    setSounds([]);
  };
  const key = (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  const take = (event) => {
    const files = [...event.target.files];
    if (takes.pictures) addPictures(takes.sounds ? files.filter((one) => !isSound(one)) : files);
    if (takes.sounds) addSounds(takes.pictures ? files.filter(isSound) : files);
    event.target.value = '';
  };
  const without = (list, at) => list.filter((_, i) => i !== at);
  const kinds = [takes.pictures && 'pictures', takes.sounds && 'sounds'].filter(Boolean);
  const accept = [takes.pictures && 'image/*', takes.sounds && 'audio/*'].filter(Boolean).join(',');
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    ${pictures.length > 0 && html`<${Attached} pictures=${pictures} remove=${(at) => setPictures(without(pictures, at))} />`}
    ${sounds.length > 0 && html`<${AttachedSounds} sounds=${sounds} speaker=${session.speaker} remove=${(at) => setSounds(without(sounds, at))} />`}
    <div class="field">
      ${kinds.length > 0 && html`<${IconButton} icon=${takes.pictures ? 'picture' : 'import'} label=${`Attach ${kinds.join(' or ')}`} onClick=${() => file.current.click()} />
        <input type="file" class="picture-file" accept=${accept} multiple hidden ref=${file} onChange=${take} />`}
      ${takes.sounds && canRecord() && html`<${RecordButton} take=${(sound) => setSounds((old) => [...old, sound])} report=${(problem) => session.notify(problem)} disabled=${sounds.length >= MAX_SOUNDS} />`}
      <textarea id="question" ref=${area} rows="1" value=${text} placeholder="Ask something" aria-label="Question" autocomplete="off"
        onInput=${(event) => setText(event.target.value)} onKeyDown=${key}></textarea>
      ${takes.voices.length > 0 && html`<${Voice} session=${session} conversation=${conversation} />`}
      ${streams
        ? html`<button type="button" class="round stop" aria-label="Stop" title="Stop (Esc)" onClick=${() => session.stop()}><${Icon} name="stop" /></button>`
        : html`<button type="submit" class="round" aria-label="Send" title="Send (Enter)" disabled=${empty}><${Icon} name="send" /></button>`}
    </div>
    <p class="hint"><kbd>Enter</kbd> sends · <kbd>Shift</kbd>+<kbd>Enter</kbd> new line · <kbd>Esc</kbd> stops · <kbd>/</kbd> to write</p>
  </form>`;
}
