/* The chat before the prompt: its turns, the system prompt and the tools. */

import { $, node } from "./dom.js";
import { UserError } from "./errors.js";

export class Conversation {
  constructor() {
    this.turns = []; // Messages of the API.
    $("new-chat").addEventListener("click", () => {
      this.set([]);
      $("prompt").focus();
    });
  }

  set(turns) {
    this.turns = turns;
    $("turns").replaceChildren(...turns.map((turn) => this.item(turn)));
    $("turns").hidden = $("turns-head").hidden = !turns.length;
    $("turns").scrollTop = $("turns").scrollHeight;
  }

  /* What to send: the system prompt, the turns and the prompt, which may be empty after results of tools. */
  messages(prompt) {
    const system = $("system").value.trim();
    const answersCalls = this.turns.at(-1)?.role === "tool" && !prompt.trim();
    return [
      ...(system ? [{ role: "system", content: system }] : []),
      ...this.turns,
      ...(answersCalls ? [] : [{ role: "user", content: prompt }]),
    ];
  }

  /* The functions that the model may call; undefined if there are none. */
  tools() {
    const text = $("tools").value.trim();
    if (!text) return undefined;
    let tools;
    try {
      tools = JSON.parse(text);
    } catch (error) {
      throw new UserError("Not sent.", `This is not JSON: ${error.message}.`, "tools");
    }
    if (!Array.isArray(tools)) throw new UserError("Not sent.", "Allowed: a list of tools, in brackets.", "tools");
    return tools.length ? tools : undefined;
  }

  /* The answer of a run becomes a turn, and the next prompt follows it. */
  continueAfter(run) {
    const isSystem = ({ role }) => role === "system";
    const asked = run.messages.filter((message) => !isSystem(message));
    $("system").value ||= run.messages.find(isSystem)?.content ?? "";
    const calls = run.calls.map(({ id, name, arguments: given }) => (
      { id, type: "function", function: { name, arguments: given } }
    ));
    const answer = { role: "assistant", content: run.text || null, ...(calls.length && { tool_calls: calls }) };
    this.set([...asked, answer, ...calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: "" }))]);
    $("prompt").value = "";
    (calls.length ? [...$("turns").querySelectorAll("textarea")].at(-calls.length) : $("prompt")).focus();
  }

  item(turn) {
    const said = turn.content ? [node("p", { className: "text", textContent: turn.content })] : [];
    const calls = (turn.tool_calls ?? []).map(({ function: called }) => callNode(called));
    if (turn.role !== "tool") return node("li", {}, node("b", { textContent: turn.role }), ...said, ...calls);
    const name = this.turns.flatMap(({ tool_calls }) => tool_calls ?? []).find(({ id }) => id === turn.tool_call_id);
    const result = node("textarea", { className: "short", value: turn.content, spellcheck: false });
    result.addEventListener("input", () => (turn.content = result.value));
    return node("li", {}, node("label", {}, `Result of ${name?.function.name ?? "the call"}`, result));
  }
}

/* A call of a function, its arguments indented where they are JSON. */
export function callNode({ name, arguments: given }) {
  let text = given;
  try {
    text = JSON.stringify(JSON.parse(given), null, 2);
  } catch {
    // Arguments that the end of the answer cut off are shown as they are.
  }
  return node("div", { className: "call" }, node("b", { textContent: name }), node("pre", { textContent: text }));
}
