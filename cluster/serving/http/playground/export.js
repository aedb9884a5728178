/* What of a result can be saved: a link, a picture and the data. */

import { $, copyOnClick, node } from "./dom.js";
import { pictureOf } from "./picture.js";
import { resultFragment } from "./result_link.js";

/* `shown` returns the runs on show. */
export function offerExports(shown) {
  const link = async () => new URL(await resultFragment(shown()), location.href.split("#")[0]).href;
  copyOnClick($("result-link"), link, "Link copied", "Not copied: the browser refused");
  $("save-svg").addEventListener("click", () => save("decode.svg", "image/svg+xml", pictureOf(shown())));
  $("save-json").addEventListener("click", () => save("decode.json", "application/json", dataOf(shown())));
}

function save(download, type, text) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  node("a", { download, href }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

/* Each run's request, and the events of its stream: a canvas per step, then the answer as a whole. */
function dataOf(runs) {
  const eventsOf = ({ frames, text, reasoning, calls, finish, stats, promptTokens }) => [
    ...frames.map(({ step, seconds, cells, branches, winner, rule_steps, candidates = [] }) => {
      const plain = cells.map(({ t, s }) => ({ t, s }));
      const canvas = { choice: 0, step, seconds, cells: plain, branches, winner, rule_steps, candidates };
      return { choices: [], lopa: { canvas } };
    }),
    { choices: [{ index: 0, text, reasoning, tool_calls: calls, finish_reason: finish, lopa: stats }] },
    ...(promptTokens === null ? [] : [{ choices: [], usage: { prompt_tokens: promptTokens } }]),
  ];
  return JSON.stringify(runs.map((run) => ({ request: run.request, events: eventsOf(run) })), null, 1);
}
