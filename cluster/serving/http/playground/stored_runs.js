/* The last runs, in the browser's localStorage: they are there after a reload, and never leave this browser. */

import { Run } from "./run.js";

const NAME = "lopa-runs-1";
const MAX_RUNS = 20;
const MAX_RUN_CHARS = 300_000; // Of a run with all its steps.
const MAX_CHARS = 2_000_000; // Of all runs; browsers allow 5 million.
const PLAIN = [
  "id", "prompt", "messages", "decoder", "label", "side", "model", "tools", "settings", "stats", "finish",
  "promptTokens", "text", "reasoning", "calls", "state", "outcome",
];
const TEXTS = ["id", "prompt", "decoder", "label", "side", "model", "tools", "text", "reasoning", "state", "outcome"];

/* Add runs, the newest first, to those that this and other tabs have kept. Older runs are left out where there is no
 * room. */
export function keepRuns(runs) {
  const older = entries().filter((entry) => unpacked(entry)).map((entry) => JSON.stringify(entry));
  const texts = [];
  let chars = 0;
  for (const text of [...runs.map(packed), ...older].slice(0, MAX_RUNS)) {
    chars += text.length;
    if (chars > MAX_CHARS) break;
    texts.push(text);
  }
  while (!write(texts)) texts.pop();
}

export function forgetRuns() {
  write([]);
}

/* The newest first. An entry that no run can be made of is left out. */
export function loadRuns() {
  return entries().map(unpacked).filter(Boolean);
}

/* `onChange` is called with the kept runs when another tab has changed them. */
export function watchRuns(onChange) {
  window.addEventListener("storage", ({ key }) => {
    if (key === NAME || key === null) onChange(loadRuns());
  });
}

function entries() {
  try {
    const list = JSON.parse(localStorage.getItem(NAME) ?? "[]");
    return Array.isArray(list) ? list : [];
  } catch (error) {
    console.warn(`Kept runs cannot be read: ${error.message}`);
    return [];
  }
}

/* Whether there was room. */
function write(texts) {
  try {
    if (texts.length) localStorage.setItem(NAME, `[${texts.join()}]`);
    else localStorage.removeItem(NAME);
    return true;
  } catch (error) {
    if (error.name === "QuotaExceededError" && texts.length) return false;
    console.warn(`Runs are not kept: ${error.message}`); // The browser allows the page no storage.
    return true;
  }
}

/* A run that is too long keeps its last step. */
function packed(run) {
  const whole = packedWith(run, run.frames);
  return whole.length > MAX_RUN_CHARS ? packedWith(run, run.frames.slice(-1)) : whole;
}

function packedWith(run, shownFrames) {
  const plain = Object.fromEntries(PLAIN.map((name) => [name, run[name]]));
  let before = [];
  const frames = shownFrames.map((frame) => {
    const { step, seconds, cells, winner, rule_steps } = frame;
    const changed = cells.flatMap(({ t, s }, i) => (before[i]?.t === t && before[i].s === s ? [] : [[i, t, s]]));
    before = cells;
    const branches = frame.branches.map(({ name, tried, confidence }) => (
      [name, tried, confidence === null ? null : Number(confidence.toPrecision(5))]
    ));
    return { step, seconds, winner, rule_steps, length: cells.length, changed, branches };
  });
  return JSON.stringify({ ...plain, frames });
}

/* Undefined for what is not a run, as another version of the page may have written it. */
function unpacked(entry) {
  try {
    return runOf(entry);
  } catch (error) {
    console.warn(`A kept run cannot be read: ${error.message}`);
    return undefined;
  }
}

function runOf({ frames, ...plain }) {
  const wrong = TEXTS.find((name) => typeof plain[name] !== "string");
  if (wrong) throw new TypeError(`${wrong} is no text`);
  const run = Object.assign(new Run(plain), plain);
  for (const { length, changed, branches, ...frame } of frames) {
    const cells = Array.from({ length }, (_, i) => run.frames.at(-1)?.cells[i] ?? { t: "", s: 0 });
    for (const [i, t, s] of changed) cells[i] = { t, s };
    const named = branches.map(([name, tried, confidence]) => ({ name, tried, confidence }));
    run.addFrame({ ...frame, cells, branches: named });
  }
  if (!Array.isArray(run.calls) || !run.asked.a) throw new TypeError("calls or settings are missing");
  return run;
}
