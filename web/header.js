// The line above a conversation: the model, what it does, the server's state, the settings.
import { html } from './vendor/htm-preact.js';
import { IconButton } from './icons.js';

const STATES = { unloaded: 'not loaded', failed: 'did not load' };

// What a model of a server of several does, for people.
export function stateText({ state, progress }) {
  if (state === 'loading' && progress > 0) return `loading ${Math.round(100 * progress)} %`;
  return STATES[state] ?? state;
}

function Model({ session }) {
  if (session.models.length < 2) return html`<h1 class="model">${session.model || 'Millrace'}</h1>`;
  return html`<h1 class="unseen">Chat</h1><select class="model" aria-label="Model" value=${session.model} onChange=${(event) => session.choose(event.target.value)}>
    ${session.models.map((model) => html`<option key=${model.id} value=${model.id}>${model.id}${['', 'loaded'].includes(model.state) ? '' : ` (${stateText(model)})`}</option>`)}
  </select>`;
}

// Of a server that loads models: whether the chosen one is there, and the button that changes it.
function Loaded({ session }) {
  const model = session.chosen;
  const moves = ['loading', 'unloading'].includes(model.state);
  return html`<span class=${`status ${model.state === 'loaded' ? 'ready' : 'waiting'}`} role="status" data-state=${model.state} title=${model.error || undefined}><i></i>${stateText(model)}</span>
    ${moves && html`<progress class="load" aria-label=${`${model.id}: ${stateText(model)}`} max="1" value=${model.progress > 0 ? model.progress : undefined}></progress>`}
    ${!moves && html`<button type="button" class="quiet load" onClick=${() => (model.state === 'loaded' ? session.unload() : session.load())}>${model.state === 'loaded' ? 'Unload' : 'Load'}</button>`}`;
}

export function Header({ session, live, onList, onSettings }) {
  const { ready, text } = session.status;
  return html`<header>
    <span class="narrow-only"><${IconButton} icon="menu" label="Show conversations" onClick=${onList} /></span>
    <${Model} session=${session} />
    ${ready && session.loadsModels ? html`<${Loaded} session=${session} />` : html`<span class=${`status ${ready ? 'ready' : 'waiting'}`} role="status"><i></i>${text}</span>`}
    <span class="gap"></span>
    ${live ? html`<a class="nav" href="#">Back to chat</a>` : html`<${IconButton} icon="settings" label="System message and sampling" onClick=${onSettings} />`}
  </header>`;
}
