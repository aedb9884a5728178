/* The last runs, in the browser's localStorage: they are there after a reload, and never leave this browser. */

import { Run } from "./run.js";

const NAME = "lopa-runs-1";
const MAX_RUNS = 20;
const MAX_RUN_CHARS = 300_000; // A longer run keeps its last step alone.
const MAX_CHARS = 2_000_000; // Of all runs; browsers allow 5 million.
const PLAIN = [
  "prompt", "messages", "decoder", "label", "side", "stats", "finish", "promptTokens", "text", "reasoning", "calls",
  "state", "outcome",
];

/* `runs`: the newest first. Older ones are left out where there is no room. */
export function storeRuns(runs) {
  const texts = [];
  let chars = 0;
  for (const run of runs.slice(0, MAX_RUNS)) {
    const whole = packed(run, false);
    const text = whole.length > MAX_RUN_CHARS ? packed(run, true) : whole;
    chars += text.length;
    if (chars > MAX_CHARS) break;
    texts.push(text);
  }
  while (!write(texts)) texts.pop();
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

/* The newest first. What is no list of runs, as a future version may write it, is removed. */
export function loadRuns() {
  let text = null;
  try {
    text = localStorage.getItem(NAME);
    return JSON.parse(text ?? "[]").map(unpacked);
  } catch (error) {
    console.warn(`Kept runs cannot be read: ${error.message}`);
    if (text !== null) localStorage.removeItem(NAME);
    return [];
  }
}

function packed(run, lastFrameOnly) {
  const plain = Object.fromEntries(PLAIN.map((name) => [name, run[name]]));
  let before = [];
  const frames = (lastFrameOnly ? run.frames.slice(-1) : run.frames).map((frame) => {
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

function unpacked({ frames, ...plain }) {
  const run = Object.assign(new Run(plain), plain);
  for (const { length, changed, branches, ...frame } of frames) {
    const cells = Array.from({ length }, (_, i) => run.frames.at(-1)?.cells[i] ?? { t: "", s: 0 });
    for (const [i, t, s] of changed) cells[i] = { t, s };
    const named = branches.map(([name, tried, confidence]) => ({ name, tried, confidence }));
    run.addFrame({ ...frame, cells, branches: named });
  }
  return run;
}
