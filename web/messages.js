// A conversation as it is read: questions, answers, what they cost, and what can be done with them.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from './vendor/htm-preact.js';
import { endNote, statsOf } from './answer.js';
import { Icon, IconButton } from './icons.js';
import { safeHtml } from './markdown.js';
import { Picture } from './pictures.js';
import { Recorded, Spoken } from './sounds.js';

const NEAR_END_PX = 80; // closer to the end than this, the page follows what streams
const SHOW_COPIED_MS = 1500;

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Over plain http from another host there is no clipboard: the old way.
    const area = document.createElement('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
}

function CopyButton({ text }) {
  const [done, setDone] = useState(false);
  const go = async () => {
    await copy(text);
    setDone(true);
    setTimeout(() => setDone(false), SHOW_COPIED_MS);
  };
  return html`<${IconButton} icon=${done ? 'check' : 'copy'} label=${done ? 'Copied' : 'Copy'} onClick=${go} />`;
}

// The one component that shows HTML, which safeHtml() made.
function Markdown({ text }) {
  const made = useMemo(() => safeHtml(text), [text]);
  const click = async (event) => {
    const button = event.target.closest('.copy-code');
    if (!button) return;
    await copy(button.closest('.code').querySelector('code').textContent);
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, SHOW_COPIED_MS);
  };
  return html`<div class="markdown" onClick=${click} dangerouslySetInnerHTML=${{ __html: made }}></div>`;
}

function Question({ message, index, session, streams }) {
  const [editing, setEditing] = useState(false);
  const area = useRef();
  useEffect(() => { if (editing) { area.current.focus(); area.current.setSelectionRange(1e9, 1e9); } }, [editing]);
  const keep = () => { if (area.current.value.trim()) { setEditing(false); session.edit(index, area.current.value); } };
  if (editing) {
    return html`<article class="question editing" aria-label="Your question">
      <textarea ref=${area} aria-label="Edit the question" rows=${Math.min(12, message.content.split('\n').length + 1)} onKeyDown=${(event) => {
        if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); keep(); }
        if (event.key === 'Escape') { event.preventDefault(); setEditing(false); }
      }}>${message.content}</textarea>
      <div class="edit-buttons"><span>What follows is answered anew.</span>
        <button type="button" onClick=${() => setEditing(false)}>Cancel</button>
        <button type="button" class="primary" onClick=${keep}>Send</button></div>
    </article>`;
  }
  return html`<article class="question" aria-label="Your question">
    ${message.pictures && html`<div class="pictures">${message.pictures.map((picture, i) => html`<${Picture} key=${i} picture=${picture} label=${`Picture ${i + 1} of your question`} />`)}</div>`}
    ${message.sounds && html`<div class="sounds">${message.sounds.map((sound, i) => html`<${Recorded} key=${i} sound=${sound} speaker=${session.speaker} label=${`sound ${i + 1} of your question`} />`)}</div>`}
    ${message.content && html`<div class="bubble">${message.content}</div>`}
    <div class="actions"><${CopyButton} text=${message.content} />
      ${!streams && html`<${IconButton} icon="edit" label="Edit" onClick=${() => setEditing(true)} />`}</div>
  </article>`;
}

const pretty = (text) => { try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; } };

// Before the first token: for it, or for the model.
function Waiting({ model }) {
  const loads = model && !['', 'loaded'].includes(model.state);
  return html`<div class="waiting-for"><i class="wave"></i>${loads
    ? html`<span class="note">${model.id} is loaded first${model.progress > 0 ? `: ${Math.round(100 * model.progress)} %` : ''}</span>`
    : html`<span class="unseen">Waiting for the first token</span>`}</div>`;
}

function Answer({ message, session, streams, last }) {
  const live = last && streams;
  const note = endNote(message);
  const stats = statsOf(message, session.context);
  return html`<article class=${`answer ${live ? 'live' : ''}`} aria-label="Answer" aria-busy=${live ? 'true' : 'false'}>
    ${message.reasoning && html`<details class="thinking"><summary>${live && !message.content ? 'Thinking' : 'Thoughts'}${live && !message.content && html`<i class="wave"></i>`}</summary><${Markdown} text=${message.reasoning} /></details>`}
    ${message.content && html`<${Markdown} text=${message.content} />`}
    ${message.tool_calls.map((call, i) => html`<details class="tool" key=${i} open><summary>Call of <code>${call.name}</code></summary><pre tabindex="0">${pretty(call.arguments)}</pre></details>`)}
    ${(message.sound || message.spoken) && html`<${Spoken} message=${message} session=${session} />`}
    ${live && !message.content && !message.reasoning && html`<${Waiting} model=${session.chosen} />`}
    ${note && html`<p class=${message.error ? 'problem' : 'note'} role=${message.error ? 'alert' : undefined}>${note}</p>`}
    <div class="actions">
      ${!live && message.content && html`<${CopyButton} text=${message.content} />`}
      ${!live && last && html`<${IconButton} icon="retry" label="Retry" onClick=${() => session.retry()} />`}
      ${stats.length > 0 && html`<dl class="stats">${stats.map((one) => html`<div key=${one.label} title=${one.title}><dt>${one.label}</dt><dd>${one.value}</dd></div>`)}</dl>`}
    </div>
  </article>`;
}

const IDEAS = ['Tell me a short story about a dog and a red ball.', 'Write a story with the words: dragon, cake, brave.', 'What can you do?'];

function Welcome({ session }) {
  const { takes } = session;
  return html`<div class="welcome"><img src="/web/logo.svg" alt="" width="72" height="72" />
    <h2>${session.model ? html`Chat with <b>${session.model}</b>` : 'Millrace'}</h2>
    <p>Answers are computed by this server. Conversations stay in this browser.</p>
    ${(takes.pictures || takes.sounds) && html`<p>It takes ${[takes.pictures && 'pictures', takes.sounds && 'sounds'].filter(Boolean).join(' and ')} too: attach, paste or drop one, and ask about it.</p>`}
    ${takes.voices.length > 0 && html`<p>It can speak its answers.</p>`}
    <div class="ideas">${IDEAS.map((idea) => html`<button type="button" key=${idea} onClick=${() => session.send(idea)}>${idea}</button>`)}</div></div>`;
}

export function Messages({ session, conversation }) {
  const box = useRef();
  const follow = useRef(true);
  const [far, setFar] = useState(false);
  const { messages, id } = conversation;
  const streams = session.streams(id);
  const toEnd = () => { box.current.scrollTop = box.current.scrollHeight; };
  useLayoutEffect(() => { if (follow.current) toEnd(); }, [messages]);
  useEffect(() => { if (streams) { follow.current = true; toEnd(); } }, [streams]);
  const scrolled = () => {
    const { scrollHeight, scrollTop, clientHeight } = box.current;
    follow.current = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    setFar(!follow.current);
  };
  const of = (message, index) =>
    message.role === 'user'
      ? html`<${Question} key=${index} message=${message} index=${index} session=${session} streams=${streams} />`
      : html`<${Answer} key=${index} message=${message} session=${session} streams=${streams} last=${index === messages.length - 1} />`;
  return html`<div class="messages" ref=${box} onScroll=${scrolled} tabindex="-1">
    <div class="column">${messages.length === 0 ? html`<${Welcome} session=${session} />` : messages.map(of)}</div>
    ${far && html`<button type="button" class="to-end" aria-label="To the end" title="To the end" onClick=${() => { follow.current = true; toEnd(); }}><${Icon} name="down" /></button>`}
  </div>`;
}
