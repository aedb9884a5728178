/* The clock's steps: a row of bars per run, as high as a step decided tokens, under one slider. */

import { hue } from "./canvas_view.js";
import { $, node } from "./dom.js";

/* `at`: the step of the clock. */
export function drawTimeline(runs, at) {
  const total = Math.max(0, ...runs.map(({ lastStep }) => lastStep));
  const isOver = runs.every(({ state }) => state !== "running");
  const most = Math.max(1, ...runs.flatMap(({ frames }) => frames.map(({ decided }) => decided)));
  const rows = $("bars");
  while (rows.childElementCount > runs.length) rows.lastChild.remove();
  runs.forEach((run, i) => drawBars(rows.children[i] ?? rows.appendChild(node("div", { className: "bars" })), run, at, most));
  $("track").style.setProperty("--steps", total || "none");
  const slider = $("clock");
  slider.max = Math.max(1, total);
  slider.value = at;
  slider.disabled = !total;
  const where = !total ? "" : at ? `step ${at}${isOver ? ` of ${total}` : ""}` : "before step 1";
  $("at").textContent = where;
  slider.setAttribute("aria-valuetext", where);
}

function drawBars(row, run, at, most) {
  row.dataset.side = run.side;
  while (row.childElementCount > run.frames.length) row.lastChild.remove();
  run.frames.forEach(({ step, decided }, i) => {
    const bar = row.children[i] ?? row.appendChild(node("i"));
    const look = [step, decided / most, step > at ? "later" : ""].join();
    if (bar.look === look) return;
    bar.look = look;
    bar.style.setProperty("--hue", hue(step));
    bar.style.setProperty("--share", decided / most);
    bar.className = step > at ? "later" : "";
    bar.title = `step ${step}: ${decided} ${decided === 1 ? "token" : "tokens"}`;
  });
}
