/* The canvas after a step: a cell per position, coloured by the step that decided it. */

import { node } from "./dom.js";
import { END } from "./run.js";

const BLANK = Array.from({ length: 32 }, () => ({ t: "", s: 0 })); // What a canvas looks like before the first step.

export const hue = (step) => (215 + 41 * step) % 360;

/* `frame` is undefined before the first step, and where a run has none. */
export function drawCanvas(canvas, frame, run) {
  const cells = frame?.cells ?? (run?.stats ? [] : BLANK);
  while (canvas.childElementCount > cells.length) canvas.lastChild.remove();
  cells.forEach((cell, i) => {
    const span = canvas.children[i] ?? canvas.appendChild(node("span"));
    if (span.cell !== cell) paint(span, cell, i);
    span.classList.toggle("new", cell.s > 0 && cell.s === frame?.step);
  });
}

function paint(span, cell, position) {
  span.cell = cell;
  const ends = cell.s && END.test(cell.t);
  span.className = !cell.s ? "mask" : ends ? "end" : "token";
  span.style.setProperty("--hue", hue(cell.s));
  const depth = cell.depth ? `, step ${cell.depth} of the rule in it` : "";
  const decided = `${ends ? "end, " : ""}position ${position}, step ${cell.s}${depth}`;
  span.title = cell.s ? decided : `position ${position}, masked`;
  span.replaceChildren();
  if (span.className !== "token") return;
  cell.t.split("\n").forEach((line, i) => {
    if (i) span.append(node("b", { className: "newline" }), "\n");
    span.append(line);
  });
}
