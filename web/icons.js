// Small drawings for buttons, 24 units wide, in the color of the text.
import { html } from './vendor/htm-preact.js';

const PATHS = {
  menu: 'M4 7h16M4 12h16M4 17h16',
  plus: 'M12 5v14M5 12h14',
  settings: 'M4 7h10M18 7h2M4 17h2M10 17h10M16 5a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM8 15a2 2 0 1 0 0 4 2 2 0 0 0 0-4z',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M7 7h10v10H7z',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  check: 'M5 13l4 4L19 7',
  retry: 'M20 11a8 8 0 1 0-2.300 6.500M20 5v6h-6',
  edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
  picture: 'M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.500 8.500h.01',
  record: 'M12 4a3 3 0 0 0-3 3v5a3 3 0 0 0 6 0V7a3 3 0 0 0-3-3zM6 11.500a6 6 0 0 0 12 0M12 17.500V21',
  speak: 'M4 9.500v5h3.500L12 18.500v-13L7.500 9.500zM15.500 9a4 4 0 0 1 0 6M18 6.500a8 8 0 0 1 0 11',
  play: 'M8 5l11 7-11 7z',
  live: 'M3 12h4l3-8 4 16 3-8h4',
  close: 'M6 6l12 12M18 6L6 18',
  down: 'M12 5v14M6 13l6 6 6-6',
  export: 'M12 15V4M7 9l5-5 5 5M5 15v5h14v-5',
  import: 'M12 4v11M7 10l5 5 5-5M5 15v5h14v-5',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.400 1.400M17.600 17.600L19 19M19 5l-1.400 1.400M6.400 17.600L5 19',
  moon: 'M20 14A8.500 8.500 0 0 1 10 4a8.500 8.500 0 1 0 10 10z',
  auto: 'M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18',
};

export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

export const IconButton = ({ icon, label, ...more }) =>
  html`<button type="button" class="icon-button" aria-label=${label} title=${label} ...${more}><${Icon} name=${icon} /></button>`;
