/* Two runs of one prompt, compared by their steps. */

import { count } from "./format.js";

/* {factor, fewer, detail}; null unless both are done. `fewer`: the run with fewer steps, null if there is none. */
export function comparisonOf(runs) {
  if (runs.length !== 2 || runs.some(({ state }) => state !== "done")) return null;
  const [fewer, more] = runs.toSorted((a, b) => a.cost.steps - b.cost.steps);
  const same = runs[0].text.trim() === runs[1].text.trim() ? "The answers are the same." : "The answers differ.";
  const [few, many] = [fewer, more].map(({ cost }) => cost.steps);
  if (few === many) return { factor: `${count(few)} on both sides`, fewer: null, detail: same };
  const factor = `${(many / few).toFixed(1)} × fewer steps`;
  return { factor, fewer, detail: `${fewer.side} takes ${few} forward passes, ${more.side} takes ${many}. ${same}` };
}
