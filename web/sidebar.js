// The conversations: new, open, rename, delete, export, import; and the colors.
import { html, useRef, useState } from './vendor/htm-preact.js';
import { Icon, IconButton } from './icons.js';
import { titleOf, toFile } from './store.js';

const THEMES = [['', 'auto', 'Colors: as the system'], ['light', 'sun', 'Colors: light'], ['dark', 'moon', 'Colors: dark']];
const MAX_FILE_BYTES = 64 << 20;

function download(name, text) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function Row({ session, conversation, live, close }) {
  const [mode, setMode] = useState(''); // "", "rename", "delete"
  const { id } = conversation;
  const shown = id === session.current && !live;
  if (mode === 'rename') {
    const keep = (event) => { session.change(id, { title: event.target.value.trim() }); setMode(''); };
    return html`<li class="row renaming"><input aria-label="Title" maxlength="200" autofocus ref=${(node) => node?.focus()} value=${titleOf(conversation)} onBlur=${keep}
      onKeyDown=${(event) => {
        if (event.key === 'Enter') keep(event);
        if (event.key === 'Escape') { event.preventDefault(); setMode(''); }
      }} /></li>`;
  }
  if (mode === 'delete') {
    return html`<li class="row asking"><span>Delete this chat?</span>
      <button type="button" class="danger" ref=${(node) => node?.focus()} onClick=${() => session.remove(id)}>Delete</button>
      <button type="button" onClick=${() => setMode('')}>Keep</button></li>`;
  }
  return html`<li class=${`row ${shown ? 'shown' : ''}`}>
    <button type="button" class="title" aria-current=${shown ? 'true' : undefined} onClick=${() => { session.open(id); close(); }}>
      ${session.streams(id) && html`<i class="dot" title="an answer is streaming"></i>`}${titleOf(conversation)}</button>
    <span class="row-buttons">
      <${IconButton} icon="edit" label="Rename" onClick=${() => setMode('rename')} />
      <${IconButton} icon="trash" label="Delete" onClick=${() => setMode('delete')} />
    </span></li>`;
}

export function Sidebar({ session, live, theme, onTheme, close }) {
  const file = useRef();
  const take = async (event) => {
    const [given] = event.target.files;
    event.target.value = '';
    if (!given) return;
    try {
      if (given.size > MAX_FILE_BYTES) throw new Error(`The file has ${given.size} bytes; wanted ${MAX_FILE_BYTES} at most.`);
      session.import(await given.text());
    } catch (problem) {
      session.notify(`Nothing was imported. ${problem.message}`);
    }
  };
  const next = THEMES[(THEMES.findIndex(([name]) => name === theme) + 1) % THEMES.length][0];
  const [, icon, label] = THEMES.find(([name]) => name === theme) ?? THEMES[0];
  return html`<nav class="sidebar" aria-label="Conversations">
    <div class="brand"><img src="/web/logo.svg" alt="" width="28" height="28" /><b>Millrace</b><span class="gap"></span>
      <span class="narrow-only"><${IconButton} icon="close" label="Close" onClick=${close} /></span></div>
    <button type="button" class="new" onClick=${() => { session.create(); close(); document.getElementById('question')?.focus(); }}><${Icon} name="plus" />New chat</button>
    <a class="nav" href="#live" aria-current=${live ? 'page' : undefined} onClick=${close}><${Icon} name="live" />Live</a>
    <ul class="list">${session.conversations.map((one) => html`<${Row} key=${one.id} session=${session} conversation=${one} live=${live} close=${close} />`)}</ul>
    <div class="foot">
      <${IconButton} icon="export" label="Export all chats" onClick=${() => download('millrace-chats.json', toFile(session.conversations.filter((one) => one.messages.length > 0)))} />
      <${IconButton} icon="import" label="Import chats" onClick=${() => file.current.click()} />
      <input type="file" accept="application/json,.json" hidden ref=${file} onChange=${take} />
      <span class="gap"></span>
      <${IconButton} icon=${icon} label=${label} onClick=${() => onTheme(next)} />
    </div>
  </nav>`;
}
