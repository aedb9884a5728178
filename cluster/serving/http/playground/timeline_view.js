/* The steps of a run: a bar each, as high as the step decided tokens, and a slider over them. */

import { hue } from "./canvas_view.js";
import { node } from "./dom.js";

/* `part`: from a class to the lane's element. `at`: the index of the step that the lane shows. */
export function drawTimeline(part, run, at) {
  const { frames } = run;
  const most = frames.reduce((most, { decided }) => Math.max(most, decided), 1);
  const bars = part("bars");
  while (bars.childElementCount > frames.length) bars.lastChild.remove();
  frames.forEach(({ step, decided, filled }, i) => {
    const bar = bars.children[i] ?? bars.appendChild(node("i"));
    const parts = filled.length > 1 ? filled.filter(Boolean) : [];
    const look = [step, decided / most, i > at ? "later" : "", parts.join()];
    if (look.every((value, k) => value === bar.look?.[k])) return;
    bar.look = look;
    bar.style.setProperty("--hue", hue(step));
    bar.style.setProperty("--share", look[1]);
    bar.className = look[2];
    bar.replaceChildren(...(parts.length ? parts : [1]).map(barPart));
  });
  const slider = part("slider");
  slider.parentNode.style.setProperty("--steps", frames.length || "none");
  slider.max = Math.max(1, frames.length);
  slider.value = at + 1;
  slider.disabled = !frames.length;
  const of = run.state === "running" ? "" : ` of ${frames.at(-1)?.step}`;
  const where = frames.length ? `step ${frames[at].step}${of}` : "";
  part("at").textContent = where;
  slider.setAttribute("aria-valuetext", where);
}

function barPart(tokens) {
  const part = node("b");
  part.style.setProperty("--tokens", tokens);
  return part;
}
