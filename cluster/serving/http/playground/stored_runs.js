/* The last runs, in the browser's localStorage: they are there after a reload, and never leave this browser. */

import { packRun, unpackRun } from "./packed_run.js";

const NAME = "lopa-runs-1";
const MAX_RUNS = 20;
const MAX_RUN_CHARS = 300_000; // Of a run with all its steps.
const MAX_CHARS = 2_000_000; // Of all runs; browsers allow 5 million.
/* Add runs, the newest first, to those that this and other tabs have kept. Older ones are left out where there is no
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
  const whole = packRun(run);
  return whole.length > MAX_RUN_CHARS ? packRun(run, run.frames.slice(-1)) : whole;
}

/* Undefined for what is not a run, as another version of the page may have written it. */
function unpacked(entry) {
  try {
    return unpackRun(entry);
  } catch (error) {
    console.warn(`A kept run cannot be read: ${error.message}`);
    return undefined;
  }
}
