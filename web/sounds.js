// Sounds that go with a question, from files or the microphone: as mono WAV files of 16 kHz. And what shows and plays them.
import { html, useEffect, useRef, useState } from './vendor/htm-preact.js';
import { IconButton } from './icons.js';
import { MAX_KEPT_BYTES } from './sound-store.js';
import { MAX_SOUND_SECONDS, MAX_SOUNDS } from './store.js';
import { RECORD_RATE, SPEECH_RATE, clock, fromBase64, joined, pcmOf, samplesOf, toBase64, wavOf, wavSamples } from './wav.js';

const MAX_FILE_BYTES = 64 << 20;
const TICK_MS = 250; // of the clock while it records

// A file of a form that the browser reads to {data, seconds}; an Error names it and what is wrong with it.
export async function soundOf(file, name = file.name) {
  if (file.size > MAX_FILE_BYTES) throw new Error(`${name} has ${file.size} bytes; wanted ${MAX_FILE_BYTES} at most.`);
  let given;
  try {
    given = await new OfflineAudioContext(1, 1, RECORD_RATE).decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error(`${name} is no sound that this browser reads. Wanted: WAV, MP3, FLAC, Ogg or WebM.`);
  }
  if (given.duration > MAX_SOUND_SECONDS) throw new Error(`${name} has ${Math.ceil(given.duration)} seconds; wanted ${MAX_SOUND_SECONDS} at most.`);
  // Decoding has resampled it; playing it into one channel mixes the others down.
  const context = new OfflineAudioContext(1, Math.max(1, given.length), RECORD_RATE);
  const source = context.createBufferSource();
  source.buffer = given;
  source.connect(context.destination);
  source.start();
  const samples = (await context.startRendering()).getChannelData(0);
  return { data: toBase64(wavOf(pcmOf(samples), RECORD_RATE)), seconds: samples.length / RECORD_RATE };
}

// Those of `files` that are sounds, as many as there is still room for. `report` gets what is wrong with others.
export async function soundsOf(files, already, report) {
  const found = [];
  for (const file of files) {
    if (already + found.length >= MAX_SOUNDS) {
      report(`A question has ${MAX_SOUNDS} sounds at most.`);
      break;
    }
    try {
      found.push(await soundOf(file));
    } catch (problem) {
      report(problem.message);
    }
  }
  return found;
}

// Where a page may use the microphone: over https, or on the machine itself.
export const canRecord = () => Boolean(globalThis.navigator?.mediaDevices?.getUserMedia && globalThis.MediaRecorder);

// The button of the microphone: a click begins, another one ends. `take` gets the sound.
export function RecordButton({ take, report, disabled }) {
  const recorder = useRef(null);
  const [since, setSince] = useState(0); // ms; 0: it does not record
  const [, tick] = useState(0);
  useEffect(() => {
    if (!since) return;
    const timer = setInterval(() => {
      tick(Date.now());
      if (Date.now() - since > MAX_SOUND_SECONDS * 1000 - TICK_MS * 4) recorder.current?.stop();
    }, TICK_MS);
    return () => clearInterval(timer);
  }, [since]);
  useEffect(() => () => recorder.current?.stop(), []);
  const start = async () => {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    } catch (problem) {
      return report(`The microphone is not to be had: ${problem.message}`);
    }
    const parts = [];
    const made = new MediaRecorder(stream);
    made.ondataavailable = (event) => parts.push(event.data);
    made.onstop = async () => {
      for (const track of stream.getTracks()) track.stop();
      recorder.current = null;
      setSince(0);
      try {
        take(await soundOf(new Blob(parts, { type: made.mimeType }), 'The recording'));
      } catch (problem) {
        report(problem.message);
      }
    };
    recorder.current = made;
    made.start();
    setSince(Date.now());
  };
  if (!since) return html`<${IconButton} icon="record" label="Record a question" disabled=${disabled} onClick=${start} />`;
  return html`<button type="button" class="recording" aria-label="End the recording" onClick=${() => recorder.current?.stop()}><i class="dot"></i>${clock((Date.now() - since) / 1000)}</button>`;
}

// A sound with a button that plays it; another click stops it. `samples` is called when it is played; what it gives, or promises, is
// undefined where it is gone.
export function Sound({ speaker, owner, seconds, rate, samples, label, children }) {
  const plays = speaker.owner === owner;
  const play = async () => {
    const all = await samples();
    if (all) speaker.play(owner, rate, all);
  };
  return html`<span class=${`sound ${plays ? 'plays' : ''}`} data-seconds=${seconds.toFixed(2)}>
    <${IconButton} icon=${plays ? 'stop' : 'play'} label=${plays ? `Stop ${label}` : `Play ${label}`} onClick=${() => (plays ? speaker.stop() : play())} />
    <span class="bars" aria-hidden="true"></span><span class="clock">${clock(seconds)}</span>${children}</span>`;
}

// Of a question.
export const Recorded = ({ sound, speaker, label, children }) =>
  html`<${Sound} speaker=${speaker} owner=${sound.data} seconds=${sound.seconds} rate=${RECORD_RATE} samples=${() => wavSamples(fromBase64(sound.data))} label=${label}>${children}<//>`;

export function AttachedSounds({ sounds, speaker, remove }) {
  return html`<ul class="attached-sounds">${sounds.map((sound, i) => html`<li key=${i}><${Recorded} sound=${sound} speaker=${speaker} label=${`sound ${i + 1}`}>
    <${IconButton} icon="close" label=${`Remove sound ${i + 1}`} onClick=${() => remove(i)} /><//></li>`)}</ul>`;
}

// Of an answer: as it came, or from where the browser keeps it.
export function Spoken({ message, session }) {
  const { sound, spoken } = message;
  const [gone, setGone] = useState(false);
  const pcm = async () => {
    const all = sound ? joined(sound) : await session.sounds?.get(spoken.key);
    if (!all) setGone(true);
    return all;
  };
  const keep = async () => {
    const all = await pcm();
    if (!all) return;
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([wavOf(all, SPEECH_RATE)], { type: 'audio/wav' }));
    link.download = 'answer.wav';
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  if (gone) return html`<p class="note">The sound is gone: the browser keeps ${MAX_KEPT_BYTES >> 20} MiB of spoken answers.</p>`;
  const owner = `answer ${message.started_ms ?? spoken.key}`;
  return html`<${Sound} speaker=${session.speaker} owner=${owner} seconds=${(sound ?? spoken).bytes / 2 / SPEECH_RATE} rate=${SPEECH_RATE} samples=${async () => { const all = await pcm(); return all && samplesOf(all); }} label="the answer">
    <${IconButton} icon="export" label="Save the sound" onClick=${keep} /><//>`;
}

export const isSound = (file) => file.type.startsWith('audio/');
