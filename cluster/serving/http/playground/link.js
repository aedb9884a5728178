/* A link with prompt and settings after the #, in the part that browsers send to no server. It never has a key. */

import { UserError } from "./errors.js";
import { SETTING_NAMES } from "./settings_form.js";

const TEXTS = ["prompt", "model", "mode", "system", "tools"];
const ROLES = ["user", "assistant", "tool"];

/* `state`: the texts, `turns`, and the texts of set fields of `a` and of `b`, which is null with one side. */
export function linkFragment(state) {
  const parameters = new URLSearchParams();
  const isRaw = state.mode === "raw"; // Raw text has no chat.
  const sent = isRaw ? { ...state, system: "", tools: "", turns: [] } : state;
  for (const name of TEXTS) if (sent[name].trim()) parameters.set(name, sent[name]);
  if (sent.turns.length) parameters.set("turns", JSON.stringify(sent.turns));
  for (const [name, text] of Object.entries(sent.a)) parameters.set(name, text);
  if (sent.b) parameters.set("race", "1");
  for (const [name, text] of Object.entries(sent.b ?? {})) parameters.set(`b.${name}`, text);
  return `#${parameters}`;
}

/* The state that a fragment carries, or null without one. Names that the page does not have are left out. `prompt` is
 * null in a link with settings alone: it leaves the prompt as it is. */
export function readFragment(fragment) {
  const parameters = new URLSearchParams(fragment.replace(/^#/, ""));
  const known = [...TEXTS, ...SETTING_NAMES, "race", "turns"];
  if (![...parameters.keys()].some((name) => known.includes(name))) return null;
  const values = (prefix) => Object.fromEntries(
    SETTING_NAMES.filter((name) => parameters.has(prefix + name)).map((name) => [name, parameters.get(prefix + name)]),
  );
  const texts = Object.fromEntries(TEXTS.map((name) => [name, parameters.get(name) ?? ""]));
  const turns = readTurns(parameters.get("turns"));
  // Results of tools are sent without a prompt.
  const prompt = parameters.get("prompt") ?? (turns.length ? "" : null);
  const b = parameters.get("race") === "1" ? values("b.") : null;
  return { ...texts, prompt, turns, preset: "", a: values(""), b };
}

function readTurns(text) {
  if (!text) return [];
  const wrong = new UserError("The link is damaged.", "Its chat cannot be read. Ask for the link again.");
  let turns;
  try {
    turns = JSON.parse(text);
  } catch {
    throw wrong;
  }
  const isText = (value) => typeof value === "string";
  const isCall = (call) => isText(call?.id) && isText(call?.function?.name) && isText(call?.function?.arguments);
  const isTurn = (turn) => ROLES.includes(turn?.role) && (isText(turn.content) || turn.content === null) &&
    (turn.tool_calls === undefined || (Array.isArray(turn.tool_calls) && turn.tool_calls.every(isCall)));
  if (!Array.isArray(turns) || !turns.every(isTurn)) throw wrong;
  return turns;
}
