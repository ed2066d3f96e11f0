import { LabIcon } from '@jupyterlab/ui-components';

const SVG = `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">
  <g class="jp-icon3" fill="#616161">
    <path fill-rule="evenodd" d="M2 3h5v10H2zM3.2 4.2v7.6h2.6V4.2z"/>
    <path fill-rule="evenodd" d="M9 3h5v4.4H9zM10.2 4.2v2h2.6v-2z"/>
    <path d="M9 8.6h5V13H9z"/>
  </g>
</svg>`;

export const devicesIcon = new LabIcon({ name: 'selfsched:devices', svgstr: SVG });
