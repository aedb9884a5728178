/* The canvas after a step: its tokens in the colour of the step that decided them, and noise where it is masked. */

import { still } from "./clock.js";
import { node } from "./dom.js";

const GLYPHS = [..."abcdefghijklmnopqrstuvwxyz0123456789+=*#%&?/<>"];
const BLANK = 48; // Positions of a canvas before the first step.

export const hue = (step) => (258 + 23 * step) % 360;

/* `at`: the index of the frame that is shown; -1 before the first step. */
export function drawCanvas(canvas, run, at) {
  const frame = run?.frames[at];
  const length = run ? run.shownLength || (run.frames.length ? 0 : run.stats ? 0 : BLANK) : BLANK;
  while (canvas.childElementCount > length) canvas.lastChild.remove();
  for (let position = 0; position < length; position++) {
    const span = canvas.children[position] ?? canvas.appendChild(node("span"));
    const cell = frame?.cells[position];
    const isMask = !cell || cell.isMask;
    if (isMask) paintMask(span, frame?.scores[position], position);
    else if (span.cell !== cell) paintToken(span, cell);
    span.cell = isMask ? null : cell;
    span.classList.toggle("new", !isMask && cell.s > 0 && cell.s === frame.step);
    span.classList.toggle("moved", !isMask && frame.moved.has(position));
    span.classList.toggle("inserted", isMask && Boolean(frame?.inserted.has(position)));
    span.classList.toggle("deletion", Boolean(frame?.deletions.has(position)));
  }
}

function paintToken(span, { t, s }) {
  span.className = "token";
  span.removeAttribute("aria-hidden");
  span.style.setProperty("--hue", hue(s));
  span.replaceChildren();
  t.split("\n").forEach((line, i) => {
    if (i) span.append("\n");
    span.append(line);
  });
}

/* `score`: the candidates of the position in this step; undefined if it was not scored. */
function paintMask(span, score, position) {
  const text = score?.tokens[0] ?? "";
  if (span.className !== "mask") {
    span.className = "mask";
    span.replaceChildren();
    span.setAttribute("aria-hidden", "true");
  }
  span.best = text.replaceAll("\n", "⏎") || " ".padEnd(2 + ((position * 7) % 4), "x");
  span.confidence = score?.probabilities[0] ?? 0;
  span.style.setProperty("--confidence", span.confidence);
  span.dataset.noise = noise(span);
}

/* The best candidate, each of its characters replaced by noise unless the model is confident. */
function noise({ best, confidence }) {
  if (still.matches) return best.replace(/\S/g, "▒");
  const shown = confidence ** 1.5 * 0.8;
  return [...best].map((sign) => (sign === " " || Math.random() < shown ? sign : pick(GLYPHS))).join("");
}

const pick = (list) => list[Math.floor(Math.random() * list.length)];

/* Other noise at the masked positions. */
export function flicker(canvas) {
  for (const span of canvas.getElementsByClassName("mask")) {
    if (Math.random() < 0.5) span.dataset.noise = noise(span);
  }
}
