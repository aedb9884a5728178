/* The table of finished runs, the newest first. */

import { $, node } from "./dom.js";
import { fixed, oneLine, rate, words } from "./format.js";

const TITLES = { TPF: "tokens per step", Branches: "branches scored" };
const COLUMNS = [
  "Prompt", "Decoder", "Settings", "Tokens", "Steps", "TPF", "Tokens/s", "Branches", "Finish", "Seconds",
];

export class RunsTable {
  /* `onChoose` is called with the run of a row that is clicked. */
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.runs = []; // The newest first.
    const heads = COLUMNS.map((name) => (
      node("th", { scope: "col", role: "columnheader", textContent: name, title: TITLES[name] ?? "" })
    ));
    $("runs").tHead.rows[0].append(...heads);
  }

  add(run) {
    this.runs.unshift(run);
    const { tokens, steps, tpf, seconds, forwards } = run.cost;
    const title = oneLine(run.prompt) || "(empty)";
    const button = node("button", { type: "button", textContent: title.slice(0, 60), title: "Show this run again" });
    const settings = [run.side, run.label || "defaults"].filter(Boolean).join(" · ");
    const values = [
      button, words(run.decoder), settings, tokens, steps, fixed(tpf, 2), rate({ tokens, seconds }), forwards,
      run.finish, fixed(seconds, 2),
    ];
    const row = $("runs").tBodies[0].insertRow(0);
    row.run = run;
    row.addEventListener("click", () => this.onChoose(run)); // The button in it is for keyboards.
    row.setAttribute("role", "row");
    values.forEach((value, i) => {
      const cell = row.insertCell();
      cell.setAttribute("role", "cell");
      cell.dataset.name = COLUMNS[i];
      cell.append(value ?? "–");
    });
    $("history").hidden = false;
  }

  /* `runs`: what this browser keeps now, the newest first. */
  update(runs) {
    if (!runs.length) this.clear();
    const known = this.runs.map(({ id }) => id);
    for (const run of runs.toReversed()) if (!known.includes(run.id)) this.add(run);
  }

  clear() {
    this.runs = [];
    $("runs").tBodies[0].replaceChildren();
    $("history").hidden = true;
  }

  mark(shown) {
    for (const row of $("runs").tBodies[0].rows) row.setAttribute("aria-current", String(shown.includes(row.run)));
  }
}
