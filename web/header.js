// The line above a conversation: the model, the server's state, the settings.
import { html } from './vendor/htm-preact.js';
import { IconButton } from './icons.js';

function Model({ session }) {
  if (session.models.length < 2) return html`<h1 class="model">${session.model || 'Millrace'}</h1>`;
  return html`<h1 class="unseen">Chat</h1><select class="model" aria-label="Model" value=${session.model} onChange=${(event) => session.choose(event.target.value)}>
    ${session.models.map((model) => html`<option key=${model.id} value=${model.id}>${model.id}</option>`)}
  </select>`;
}

export function Header({ session, live, onList, onSettings }) {
  const { ready, text } = session.status;
  return html`<header>
    <span class="narrow-only"><${IconButton} icon="menu" label="Show conversations" onClick=${onList} /></span>
    <${Model} session=${session} />
    <span class=${`status ${ready ? 'ready' : 'waiting'}`} role="status"><i></i>${text}</span>
    <span class="gap"></span>
    ${live ? html`<a class="nav" href="#">Back to chat</a>` : html`<${IconButton} icon="settings" label="System message and sampling" onClick=${onSettings} />`}
  </header>`;
}
