/* What happened in a step: the guesses of verified lookahead, the branches that competed, or the one branch. */

import { fixed } from "./format.js";
import { node } from "./dom.js";

const MAX_SHOWN = 8; // Branches or guesses.
const MAX_TOKENS = 4; // Of a guess.

/* `part`: from a class to the lane's element. `frame` is undefined before the first step. */
export function drawStep(part, run, frame) {
  const isVerified = run.isVerified;
  const competing = !isVerified && frame?.branches.length > 1;
  part("step-card").hidden = !frame;
  part("branch-table").hidden = !competing;
  part("guesses").hidden = !(frame && isVerified && frame.branches.length > 1);
  if (!frame) return;
  part("step-title").textContent = `Step ${frame.step}`;
  part("happened").textContent = isVerified ? verifiedText(frame) : competing ? competedText(frame, run.lookahead === "guesses") : singleText(frame);
  if (competing) drawBranches(part("branch-table").tBodies[0], run, frame);
  else if (isVerified) drawGuesses(part("guesses"), frame);
}

const tokens = (number) => `${number} ${number === 1 ? "token" : "tokens"}`;

const singleText = ({ decided }) => `One branch, one denoising step: ${tokens(decided)}.`;

function competedText({ branches, decided, winner }, areGuesses) {
  const name = branches[winner].name === "anchor" ? "the anchor" : `branch ${branches[winner].name}`;
  if (areGuesses) return `${branches.length} guesses were verified at once, and ${name} was right for longest: ${tokens(decided)}.`;
  return `${branches.length} branches competed, and ${name} won with the highest confidence: ${tokens(decided)}.`;
}

function verifiedText({ branches, accepted, rule_steps, decided }) {
  const done = `${rule_steps.length === 1 ? "1 denoising step" : `${rule_steps.length} denoising steps`} in one forward pass`;
  const guesses = branches.length - 1;
  const right = accepted.length;
  const guessed = guesses ? ` Guessed right: ${right}, guessed wrong: ${guesses - right}.` : " It had no guesses.";
  return `${done}: ${tokens(decided)}.${guessed}`;
}

/* The right ones first, in the order in which the rule reached them, each with what it has beyond the one before. */
function drawGuesses(list, { branches, accepted }) {
  const wrong = [...branches.keys()].filter((i) => branches[i].name !== "anchor" && !accepted.includes(i));
  const item = (i, isRight, before = "") => node(
    "li", { className: isRight ? "right" : "wrong" },
    node("span", { className: "unseen", textContent: isRight ? "right: " : "wrong: " }), ...tried(branches[i].tried, before),
  );
  const right = accepted.map((i, at) => item(i, true, branches[accepted[at - 1]]?.tried));
  const all = [...right, ...wrong.map((i) => item(i, false))];
  const left = all.length - MAX_SHOWN;
  list.replaceChildren(...all.slice(0, MAX_SHOWN), ...(left > 0 ? [node("li", { textContent: `and ${left} more` })] : []));
}

function drawBranches(body, run, { branches, winner }) {
  const order = [...branches.keys()].sort((a, b) => (branches[b].name === "anchor") - (branches[a].name === "anchor"));
  const shown = order.slice(0, MAX_SHOWN);
  if (!shown.includes(winner)) shown[shown.length - 1] = winner;
  body.replaceChildren(...shown.map((i) => {
    const confidence = run.confidenceOf(branches[i]);
    const bar = node("div", { className: "bar" }, node("i"));
    bar.firstChild.style.setProperty("--share", confidence ?? 0);
    const name = node("th", { scope: "row", textContent: branches[i].name });
    if (i === winner) name.append(node("span", { className: "won-mark", textContent: " won" }));
    const cells = [node("td", {}, ...tried(branches[i].tried)), node("td", {}, bar), node("td", {}, fixed(confidence, 2))];
    return node("tr", { className: i === winner ? "won" : "" }, name, ...cells);
  }));
}

/* The texts of "token@position", once or more, without the positions and without what is in `before`. */
function tried(text, before = "") {
  const parse = (fills) => [...fills.matchAll(/(.*?)@(\d+)(?: |$)/gs)];
  const known = new Set(parse(before).map(([, , position]) => position));
  const all = parse(text).filter(([, , position]) => !known.has(position)).map(([, token]) => token);
  const shown = all.slice(0, MAX_TOKENS).map((token) => (
    node("code", { textContent: token.trim().slice(0, 12).replaceAll("\n", "⏎") || "␣" })
  ));
  if (!all.length) return ["nothing more"];
  return all.length > MAX_TOKENS ? [...shown, ` +${all.length - MAX_TOKENS}`] : shown;
}
