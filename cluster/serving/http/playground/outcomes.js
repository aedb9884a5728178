/* What the status says of runs. */

import { count } from "./format.js";

/* Of a run that the server finished. */
export function doneText(run) {
  const { tokens, steps, tpf, seconds } = run.cost;
  const after = run.promptTokens === null ? "" : ` after a prompt of ${run.promptTokens}`;
  const speed = `in ${count(steps)} and ${shownSeconds(run)} s; ${tpf.toFixed(2)} tokens per step`;
  return `Done: ${tokens} tokens${after}, ${speed}.`;
}

/* Of a run that ended in another way; `how`: Stopped or Failed. */
export function endedText(run, how) {
  const steps = run.frames.length;
  return steps ? `${how} after ${count(steps)}.` : `${how} before the first step.`;
}

/* Of all runs that a press of Run began. */
export function outcomeOf(runs) {
  if (runs.length === 1) return runs[0].outcome;
  if (runs.some(({ state }) => state !== "done")) return runs.map((run) => `${run.side}: ${run.outcome}`).join(" ");
  const told = runs.map((run) => `${run.side} took ${count(run.cost.steps)} and ${shownSeconds(run)} s`).join(", ");
  return `Done: ${told}. Both ran at the same time on the server, so compare their steps and not their seconds.`;
}

const shownSeconds = (run) => run.cost.seconds.toFixed(2);
