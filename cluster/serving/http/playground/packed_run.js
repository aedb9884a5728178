/* Runs as JSON, for the browser's storage and for links: of each step what changed. */

import { Run } from "./run.js";

const PLAIN = [
  "id", "prompt", "messages", "decoder", "label", "side", "model", "tools", "settings", "lookahead", "request", "stats",
  "finish", "promptTokens", "text", "reasoning", "calls", "state", "outcome",
];
const TEXTS = ["id", "prompt", "decoder", "label", "side", "model", "tools", "text", "reasoning", "state", "outcome"];
const STATES = ["done", "stopped", "failed"];

/* `frames`: those to pack. Candidates of positions behind the end of the answer are left out. */
export function packRun(run, frames = run.frames) {
  const plain = Object.fromEntries(PLAIN.map((name) => [name, run[name]]));
  const { shownLength } = run;
  let before = [];
  const packed = frames.map(({ step, seconds, cells, winner, rule_steps, branches, scores }) => {
    const changed = cells.flatMap(({ t, s }, i) => (before[i]?.t === t && before[i].s === s ? [] : [[i, t, s]]));
    before = cells;
    const named = branches.map(({ name, tried, confidence }) => (
      [name, tried, confidence === null ? null : Number(confidence.toPrecision(5))]
    ));
    const candidates = scores.slice(0, shownLength).flatMap((score, position) => (
      score ? [[position, score.tokens, score.probabilities.map((value) => Number(value.toFixed(3)))]] : []
    ));
    return { step, seconds, winner, rule_steps, length: cells.length, changed, branches: named, candidates };
  });
  return JSON.stringify({ ...plain, frames: packed });
}

/* The run of a parsed entry. Raises TypeError for what is no run, as other versions of the page or other people may have
 * written it. */
export function unpackRun({ frames, ...plain }) {
  const check = (isRight, what) => {
    if (!isRight) throw new TypeError(`${what} is wrong`);
  };
  for (const name of TEXTS) check(typeof plain[name] === "string", name);
  check(STATES.includes(plain.state), "state");
  const known = Object.fromEntries(PLAIN.filter((name) => name in plain).map((name) => [name, plain[name]]));
  const run = Object.assign(new Run(known), known);
  for (const { length, changed, branches, candidates = [], ...frame } of frames) {
    check(length >= 0 && length <= 100_000 && Number.isSafeInteger(frame.step), "a canvas");
    const cells = Array.from({ length }, (_, i) => run.frames.at(-1)?.cells[i] ?? { t: "", s: 0 });
    for (const [i, t, s] of changed) {
      check(i in cells && typeof t === "string" && Number.isSafeInteger(s), "a cell");
      cells[i] = { t, s };
    }
    const named = branches.map(([name, tried, confidence]) => ({ name, tried, confidence }));
    check(named.every(({ name, tried }) => typeof name === "string" && typeof tried === "string"), "a branch");
    check(named[frame.winner], "the winner");
    const scored = candidates.map(([position, tokens, probabilities]) => ({ position, tokens, probabilities }));
    check(scored.every((score) => Number.isFinite(score.probabilities[0]) && typeof score.tokens[0] === "string"), "a score");
    run.addFrame({ ...frame, cells, branches: named, candidates: scored });
  }
  const isText = (value) => typeof value === "string";
  check(Array.isArray(run.calls) && Object.values(run.asked.a ?? [0]).every(isText), "calls or settings");
  return run;
}
