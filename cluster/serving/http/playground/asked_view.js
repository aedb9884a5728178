/* What an earlier run was asked: its prompt as a whole, and its system prompt. */

import { $ } from "./dom.js";

/* `run`: null hides it, since the form still has what a new run was asked. */
export function drawAsked(run) {
  $("asked").hidden = !run;
  if (!run) return;
  const { prompt, system, turns } = run.asked;
  $("asked-system").hidden = !system;
  $("asked-system").textContent = system && `System prompt: ${system}`;
  $("asked-prompt").textContent = prompt || run.prompt;
  $("asked-turns").hidden = !turns.length;
  $("asked-turns").textContent = `It followed ${turns.length} messages of a chat, which Use again brings back.`;
}
