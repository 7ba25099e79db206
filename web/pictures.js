// Pictures that go with a question. They are made small, kept as data: URLs, and drawn on a canvas: the page's policy permits no
// image from a data: URL, so that nothing that a model writes can be one.
import { html, useEffect, useRef } from './vendor/htm-preact.js';
import { IconButton } from './icons.js';
import { MAX_PICTURES } from './store.js';

export const MAX_EDGE = 1024; // px; larger ones are made smaller, since models do the same and the browser's storage is small
const MAX_FILE_BYTES = 32 << 20;
const QUALITY = 0.9; // of the JPEG

// A file to {url, width, height}. An Error names the file and what is wrong with it.
export async function pictureOf(file) {
  if (file.size > MAX_FILE_BYTES) throw new Error(`${file.name} has ${file.size} bytes; wanted ${MAX_FILE_BYTES} at most.`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no picture that this browser reads. Wanted: JPEG, PNG, WebP or GIF.`);
  }
  const scale = Math.min(1, MAX_EDGE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const to = canvas.getContext('2d');
  to.fillStyle = '#ffffff'; // a JPEG has no transparency
  to.fillRect(0, 0, canvas.width, canvas.height);
  to.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return { url: canvas.toDataURL('image/jpeg', QUALITY), width: canvas.width, height: canvas.height };
}

// Those of `files` that are pictures, as many as there is still room for. `report` gets what is wrong with others.
export async function picturesOf(files, already, report) {
  const found = [];
  for (const file of files) {
    if (already + found.length >= MAX_PICTURES) {
      report(`A question has ${MAX_PICTURES} pictures at most.`);
      break;
    }
    try {
      found.push(await pictureOf(file));
    } catch (problem) {
      report(problem.message);
    }
  }
  return found;
}

async function draw(canvas, url) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(',') + 1)), (char) => char.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: url.slice(5, url.indexOf(';')) }));
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  canvas.getContext('2d').drawImage(bitmap, 0, 0);
  bitmap.close();
}

export function Picture({ picture, label }) {
  const canvas = useRef();
  useEffect(() => { draw(canvas.current, picture.url).catch(() => {}); }, [picture.url]); // one that was cut off stays empty
  return html`<canvas class="picture" ref=${canvas} width=${picture.width} height=${picture.height} role="img" aria-label=${label}></canvas>`;
}

// The pictures of a question that is being written.
export function Attached({ pictures, remove }) {
  return html`<ul class="attached">${pictures.map((picture, i) => html`<li key=${i}><${Picture} picture=${picture} label=${`Picture ${i + 1}`} />
    <${IconButton} icon="close" label=${`Remove picture ${i + 1}`} onClick=${() => remove(i)} /></li>`)}</ul>`;
}

export const isPicture = (file) => file.type.startsWith('image/');
