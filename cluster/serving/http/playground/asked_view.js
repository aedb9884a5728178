/* What a run was asked: its prompt as a whole, and its system prompt. */

/* `part`: from a class to the lane's element. `run`: null hides it, since the form still has what a new run was asked. */
export function drawAsked(part, run) {
  part("asked-card").hidden = !run;
  if (!run) return;
  const { prompt, system, turns } = run.asked;
  part("asked-system").hidden = part("asked-system-title").hidden = !system;
  part("asked-system").textContent = system;
  part("asked-prompt").textContent = prompt || run.prompt;
  part("asked-turns").hidden = !turns.length;
  part("asked-turns").textContent = `It followed ${turns.length} messages of a chat, which Use again brings back.`;
}
