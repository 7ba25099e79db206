// Sound as bytes: base64, 16-bit samples, WAV files. Pure functions, no DOM.

export const RECORD_RATE = 16000; // Hz, of what is sent: encoders of speech take no more
export const SPEECH_RATE = 24000; // Hz, of `pcm16` of the API

const HEADER_BYTES = 44;
const CHARS_AT_ONCE = 0x8000; // arguments of one call

export function toBase64(bytes) {
  let text = '';
  for (let at = 0; at < bytes.length; at += CHARS_AT_ONCE) text += String.fromCharCode(...bytes.subarray(at, at + CHARS_AT_ONCE));
  return btoa(text);
}
export const fromBase64 = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

// 16-bit little-endian bytes to numbers of -1 to 1.
export function samplesOf(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Float32Array.from({ length: bytes.length >> 1 }, (_, i) => view.getInt16(2 * i, true) / 32768);
}

export function pcmOf(samples) {
  const bytes = new Uint8Array(2 * samples.length);
  const view = new DataView(bytes.buffer);
  samples.forEach((value, i) => view.setInt16(2 * i, Math.max(-32768, Math.min(32767, Math.round(value * 32768))), true));
  return bytes;
}

// Mono samples of 16 bits as a file.
export function wavOf(pcm, rate) {
  const file = new Uint8Array(HEADER_BYTES + pcm.length);
  const view = new DataView(file.buffer);
  const mark = (at, text) => file.set([...text].map((char) => char.charCodeAt(0)), at);
  mark(0, 'RIFF');
  view.setUint32(4, file.length - 8, true);
  mark(8, 'WAVEfmt ');
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  mark(36, 'data');
  view.setUint32(40, pcm.length, true);
  file.set(pcm, HEADER_BYTES);
  return file;
}

// The samples of a file that wavOf() made.
export const wavSamples = (file) => samplesOf(file.subarray(HEADER_BYTES));

// 0:07
// The samples of a sound as it came: {chunks: [base64], bytes}.
export function joined({ chunks, bytes }) {
  const all = new Uint8Array(bytes);
  chunks.reduce((at, chunk) => { const part = fromBase64(chunk); all.set(part, at); return at + part.length; }, 0);
  return all;
}
export const clock = (seconds) => `${Math.floor(seconds / 60)}:${`${Math.floor(seconds % 60)}`.padStart(2, '0')}`;
