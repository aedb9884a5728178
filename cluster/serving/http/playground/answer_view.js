/* The answer of a run, below a canvas that shows its text: what the canvas does not show, and what can be done with it. */

import { callNode } from "./conversation.js";
import { node } from "./dom.js";

/* `part`: from a class to the lane's element. `isOver`: the run has ended, and the canvas shows its last step. */
export function drawAnswer(part, run, isOver) {
  const { text, reasoning, calls, messages, state } = run;
  part("answer-card").hidden = state === "running" || !(text || reasoning || calls.length);
  const onCanvas = part("canvas").textContent.trim() === text.trim();
  part("answer").hidden = onCanvas || !isOver || !text;
  part("answer").textContent = text.trimEnd();
  part("copy-answer").hidden = !text;
  part("reasoning").hidden = !reasoning;
  part("reasoning").querySelector(".text").textContent = reasoning.trim();
  part("calls").hidden = !calls.length;
  part("calls").replaceChildren(...calls.map((call) => node("li", {}, callNode(call))));
  part("continue").hidden = !messages || state !== "done";
}
