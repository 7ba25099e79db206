// Markdown of a model to HTML that is safe to show. What a model writes is untrusted: it may repeat what a web page told it.
//
// Three barriers: the renderer makes no raw HTML, image or script URL of it; DOMPurify keeps a short list of elements and
// attributes; the server's Content-Security-Policy lets the page load nothing from elsewhere.
import { Marked } from './vendor/marked.js';

export const escape = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

const LINK = /^(https?:\/\/|mailto:)/i;

function link(href, text) {
  if (!LINK.test(href)) return text;
  return `<a href="${escape(href)}" target="_blank" rel="noopener noreferrer nofollow">${text}</a>`;
}

const marked = new Marked({ gfm: true, breaks: true, async: false });
marked.use({
  renderer: {
    html: ({ text, block }) => (block ? `<p>${escape(text)}</p>\n` : escape(text)),
    image: ({ href, text }) => link(href, `[image: ${escape(text || href)}]`), // never loaded: a click is the user's choice
    link({ href, tokens }) {
      return link(href, this.parser.parseInline(tokens));
    },
    checkbox: ({ checked }) => (checked ? '☑ ' : '☐ '),
    code({ text, lang }) {
      const name = (lang ?? '').match(/^[\w+#.-]{0,24}/)[0];
      return `<div class="code"><div class="code-head"><span>${escape(name)}</span><button type="button" class="copy-code">Copy</button></div><pre tabindex="0"><code>${escape(text)}\n</code></pre></div>\n`;
    },
    table(token) {
      const cell = (tag, c) => `<${tag}${c.align ? ` class="${c.align}"` : ''}>${this.parser.parseInline(c.tokens)}</${tag}>`;
      const row = (tag, cells) => `<tr>${cells.map((c) => cell(tag, c)).join('')}</tr>`;
      return `<div class="table" tabindex="0"><table><thead>${row('th', token.header)}</thead><tbody>${token.rows.map((r) => row('td', r)).join('')}</tbody></table></div>\n`;
    },
  },
});

// Before DOMPurify: for tests without a DOM. Not to be shown.
export const toHtml = (text) => marked.parse(text);

const ALLOWED = {
  ALLOWED_TAGS: ['p', 'br', 'hr', 'em', 'strong', 'del', 'code', 'pre', 'blockquote', 'ul', 'ol', 'li', 'a', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6',
    'table', 'thead', 'tbody', 'tr', 'th', 'td', 'div', 'span', 'button'],
  ALLOWED_ATTR: ['href', 'target', 'rel', 'class', 'start', 'type', 'tabindex'],
  ALLOWED_URI_REGEXP: LINK,
  ADD_URI_SAFE_ATTR: ['target', 'rel', 'class', 'start', 'type', 'tabindex'], // else they too must look like an address
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

export const safeHtml = (text) => globalThis.DOMPurify.sanitize(toHtml(text), ALLOWED);
