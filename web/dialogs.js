// The two dialogs: settings of a conversation, and the API key.
import { html, useEffect, useRef, useState } from './vendor/htm-preact.js';
import { IconButton } from './icons.js';

// A modal <dialog>: the browser keeps the focus inside, and Escape closes it, unless it `must` be answered.
function Modal({ open, close, label, className, must = false, children }) {
  const node = useRef();
  useEffect(() => {
    if (open && !node.current.open) node.current.showModal();
    if (!open && node.current.open) node.current.close();
  }, [open]);
  return html`<dialog ref=${node} class=${className} aria-label=${label} onClose=${close}
    onCancel=${(event) => { if (must) event.preventDefault(); }} onClick=${(event) => { if (!must && event.target === node.current) close(); }}>
    <div class="inside">${open && children}</div></dialog>`;
}

// name of the request's field, label, step, range, what it does
const FIELDS = [
  ['temperature', 'Temperature', 0.1, 0, 2, '0: always the likeliest token'],
  ['top_p', 'Top p', 0.05, 0.05, 1, 'the likeliest tokens that together have this probability'],
  ['top_k', 'Top k', 1, 1, 1000, 'this many of the likeliest tokens'],
  ['min_p', 'Min p', 0.01, 0, 1, 'tokens at least this probable, as a part of the likeliest'],
  ['repetition_penalty', 'Repetition penalty', 0.05, 0.05, 2, 'over 1: fewer repetitions'],
  ['max_tokens', 'Longest answer', 1, 1, 1000000, 'in tokens'],
  ['seed', 'Seed', 1, 0, 2147483647, 'the same seed and settings give the same answer'],
];

function Field({ field, sampling, onChange }) {
  const [name, label, step, min, max, hint] = field;
  const [text, setText] = useState(`${sampling[name] ?? ''}`);
  // At each key, since Escape closes the dialog without a change event. What is typed stays as it is; what is kept is in range.
  const change = (event) => {
    setText(event.target.value);
    const value = event.target.valueAsNumber;
    onChange(name, Number.isNaN(value) ? undefined : Math.min(max, Math.max(min, value)));
  };
  return html`<label class="setting"><span>${label}<small>${hint}</small></span>
    <input type="number" inputmode="decimal" step=${step} min=${min} max=${max} placeholder="default" value=${text} onInput=${change} /></label>`;
}

export function SettingsDialog({ open, close, session, conversation }) {
  const { id, system, sampling } = conversation;
  const [resets, setResets] = useState(0);
  return html`<${Modal} open=${open} close=${close} label="System message and sampling" className="drawer">
    <div class="dialog-head"><h2>Settings of this chat</h2><${IconButton} icon="close" label="Close" onClick=${close} /></div>
    <label class="system"><span>System message</span>
      <textarea rows="3" placeholder="How the model should answer" value=${system} onInput=${(event) => session.change(id, { system: event.target.value })}></textarea></label>
    <h3>Sampling</h3><p class="note">An empty field is the server's default.</p>
    ${FIELDS.map((field) => html`<${Field} key=${`${field[0]} ${resets}`} field=${field} sampling=${sampling} onChange=${(name, value) => session.setSampling(id, name, value)} />`)}
    <div class="dialog-foot">
      <button type="button" onClick=${() => { session.change(id, { sampling: {}, system: '' }); setResets(resets + 1); }}>Reset</button>
      ${session.store.key && html`<button type="button" onClick=${() => { session.store.key = ''; close(); session.changed(); }}>Forget the API key</button>`}
    </div>
  <//>`;
}

export function KeyDialog({ open, session }) {
  const [key, setKey] = useState('');
  const [wrong, setWrong] = useState(false);
  const send = async (event) => {
    event.preventDefault();
    await session.useKey(key.trim());
    setWrong(session.needKey);
    if (!session.needKey) setKey('');
  };
  return html`<${Modal} open=${open} close=${() => {}} label="API key" className="key" must=${true}>
    <form onSubmit=${send}>
      <h2>API key</h2>
      <p>This server answers only with a key: the value of its option <code>--api-key</code>. It stays in this browser.</p>
      <input type="password" autocomplete="current-password" aria-label="API key" autofocus value=${key} onInput=${(event) => setKey(event.target.value)} />
      ${wrong && html`<p class="problem" role="alert">The server does not accept this key.</p>`}
      <div class="dialog-foot"><button type="submit" class="primary" disabled=${!key.trim()}>Use the key</button></div>
    </form>
  <//>`;
}
