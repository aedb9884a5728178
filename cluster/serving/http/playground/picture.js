/* Runs as an SVG: a column per run, and in it the canvas after each step. */

import { hue } from "./canvas_view.js";
import { words } from "./format.js";

const CHAR = 7.8; // Width of a character.
const LINE = 20;
const MARGIN = 24;
const MASK = 2; // Characters that a masked position takes up.

export function pictureOf(runs) {
  const columns = runs.length > 1 ? 46 : 84;
  const width = columns * CHAR + 2 * MARGIN;
  const parts = runs.map((run, i) => column(run, columns, i * width));
  const [wide, high] = [width * runs.length, Math.max(...parts.map(({ height }) => height)) + MARGIN];
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${wide}" height="${high}" viewBox="0 0 ${wide} ${high}"`,
    ` font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">\n`,
    `<rect width="100%" height="100%" fill="#fff"/>\n`, ...parts.map(({ text }) => text), "</svg>\n",
  ].join("");
}

function column(run, columns, x) {
  const label = [run.side, words(run.decoder), run.label].filter(Boolean).join(" · ");
  let y = MARGIN + LINE;
  const lines = [text(x + MARGIN, y, label, "#222", "bold")];
  for (const { step, cells } of run.frames) {
    y += LINE * 1.6;
    lines.push(text(x + MARGIN, y, `step ${step}`, "#777"));
    let at = 0;
    y += LINE;
    for (const cell of cells.slice(0, run.shownLength)) {
      const [first, ...others] = cell.isMask ? [" ".repeat(MASK)] : cell.t.split("\n");
      for (const [i, piece] of [first, ...others].entries()) {
        const size = piece.length;
        if (i || at + size > columns) [at, y] = [0, y + LINE];
        if (size) lines.push(box(x + MARGIN + at * CHAR, y, size * CHAR, cell, step));
        const spaces = size - piece.trimStart().length; // Viewers of SVG remove them.
        const left = x + MARGIN + (at + spaces) * CHAR;
        if (size > spaces && !cell.isMask) lines.push(text(left, y, piece.trim(), "#222", cell.s === step ? "bold" : ""));
        at += size;
      }
    }
  }
  return { text: lines.join(""), height: y };
}

function box(x, y, width, { isMask, s }) {
  const fill = isMask ? "#e3e4ea" : `hsl(${(hue(s) + 330) % 360} 75% 90%)`;
  return `<rect x="${x.toFixed(1)}" y="${y - 14}" width="${(width - 1).toFixed(1)}" height="18" rx="3" fill="${fill}"/>\n`;
}

function text(x, y, content, fill, weight = "") {
  const safe = content.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`).replace(/[\x00-\x08\x0b-\x1f]/g, "?");
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" fill="${fill}"${weight && ` font-weight="${weight}"`}>${safe}</text>\n`;
}
