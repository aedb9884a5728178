/* The answer of a run: its text, the reasoning before it, and the calls of tools. */

import { callNode } from "./conversation.js";

/* `part`: from a class to the lane's element. */
export function drawAnswer(part, run) {
  const { text, reasoning, calls, messages, state } = run;
  part("answer-card").hidden = !(text || reasoning || calls.length);
  part("answer").textContent = text.trimEnd();
  part("copy-answer").hidden = !text;
  part("reasoning").hidden = !reasoning;
  part("reasoning").querySelector(".text").textContent = reasoning.trim();
  part("calls").hidden = !calls.length;
  part("calls").replaceChildren(...calls.map((call) => {
    const item = document.createElement("li");
    item.append(callNode(call));
    return item;
  }));
  part("continue").hidden = !messages || state !== "done";
}
