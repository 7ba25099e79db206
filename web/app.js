// The page: what it is made of, and the events of the window.
import './vendor/purify.js';
import { html, render, useEffect, useReducer, useRef, useState } from './vendor/htm-preact.js';
import { Api } from './api.js';
import { Announcer } from './announcer.js';
import { Composer } from './composer.js';
import { Header } from './header.js';
import { KeyDialog, SettingsDialog } from './dialogs.js';
import { Live } from './live.js';
import { Messages } from './messages.js';
import { Session } from './session.js';
import { Sidebar } from './sidebar.js';
import { SoundStore } from './sound-store.js';
import { Speaker } from './speaker.js';
import { Store } from './store.js';

const ASK_READY_MS = 2000; // while the server is not ready
const ASK_MODELS_MS = 1000; // while one is loaded or unloaded
const CHAT_ENTRY = /^millrace\.chat\.([0-9a-f]+)$/;

const store = new Store(localStorage);
const speaker = new Speaker({ changed: () => session.changed() });
const session = new Session({ api: new Api({ key: () => store.key }), store, speaker, sounds: new SoundStore() });

function useSession() {
  const [, again] = useReducer((count) => count + 1, 0);
  const frame = useRef(0);
  useEffect(() => {
    // Tokens come faster than frames: one rendering a frame is enough. A hidden page has no frames.
    session.changed = () => {
      if (document.hidden) again();
      else frame.current ||= requestAnimationFrame(() => { frame.current = 0; again(); });
    };
    again();
  }, []);
}

// Asks the server until it is ready.
function useConnection() {
  const ready = session.status.ready && session.models.length > 0, { needKey } = session;
  useEffect(() => {
    if (ready || needKey) return;
    session.connect();
    const timer = setInterval(() => session.connect(), ASK_READY_MS);
    return () => clearInterval(timer);
  }, [ready, needKey]);
}

// Follows what models of a server of several do, while something changes. The effect runs after the drawing, when the session may have
// gone on: it goes by what was drawn, as its condition does.
function useModels() {
  const move = session.modelsMove;
  useEffect(() => {
    if (!move) return;
    const timer = setInterval(() => session.refresh(), ASK_MODELS_MS);
    return () => clearInterval(timer);
  }, [move]);
}

// Whether the address is #live. What opens a conversation leaves the Live view.
function useLiveRoute() {
  const [live, setLive] = useState(location.hash === '#live');
  useEffect(() => {
    const follow = () => setLive(location.hash === '#live');
    addEventListener('hashchange', follow);
    session.opened = () => {
      if (location.hash === '#live') history.pushState(null, '', location.pathname);
      follow();
    };
    return () => removeEventListener('hashchange', follow);
  }, []);
  return live;
}

function setTheme(theme) {
  store.theme = theme;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
setTheme(store.theme);

function useWindowEvents() {
  useEffect(() => {
    const leave = () => session.leave();
    const comeBack = () => session.comeBack();
    const other = (event) => {
      const id = event.key?.match(CHAT_ENTRY)?.[1];
      if (id) session.reload(id, event.newValue);
    };
    const key = (event) => {
      if (event.defaultPrevented || document.querySelector('dialog[open]')) return;
      const typing = event.target.matches('input, textarea, select');
      if (event.key === 'Escape' && session.streams()) session.stop();
      else if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey) document.getElementById('question')?.focus();
      else return;
      event.preventDefault();
    };
    addEventListener('pagehide', leave);
    addEventListener('pageshow', comeBack);
    addEventListener('storage', other);
    addEventListener('keydown', key);
    return () => {
      removeEventListener('pagehide', leave);
      removeEventListener('pageshow', comeBack);
      removeEventListener('storage', other);
      removeEventListener('keydown', key);
    };
  }, []);
}

function App() {
  useSession();
  useConnection();
  useModels();
  useWindowEvents();
  const live = useLiveRoute();
  const [panel, setPanel] = useState(''); // "", "list" (narrow windows only) or "settings"
  const [theme, showTheme] = useState(store.theme);
  const { conversation } = session;
  const last = conversation.messages.at(-1);
  useEffect(() => { document.title = live ? 'Live · Millrace' : session.streams() ? '● Millrace' : 'Millrace'; });
  return html`
    <div class=${`page ${panel === 'list' ? 'with-list' : ''}`}>
      <${Sidebar} session=${session} live=${live} theme=${theme} onTheme=${(to) => { setTheme(to); showTheme(to); }} close=${() => setPanel('')} />
      <div class="backdrop" onClick=${() => setPanel('')}></div>
      <main>
        <${Header} session=${session} live=${live} onList=${() => setPanel('list')} onSettings=${() => setPanel('settings')} />
        ${session.notice && html`<div class="notice" role="alert">${session.notice}
          <button type="button" class="quiet" onClick=${() => { session.notice = ''; session.changed(); }}>Dismiss</button></div>`}
        ${live ? html`<${Live} session=${session} />` : html`<${Messages} key=${conversation.id} session=${session} conversation=${conversation} />
          <${Composer} session=${session} conversation=${conversation} />`}
      </main>
      <${Announcer} text=${last?.role === 'assistant' ? last.content : ''} streams=${session.streams()} />
      <${SettingsDialog} open=${panel === 'settings'} close=${() => setPanel('')} session=${session} conversation=${conversation} />
      <${KeyDialog} open=${session.needKey} session=${session} />
    </div>`;
}

const root = document.getElementById('app');
root.replaceChildren();
render(html`<${App} />`, root);
