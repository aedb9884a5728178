/* The branches of a step: what each tried, its confidence, and which branches won or were accepted. */

import { node } from "./dom.js";
import { fixed } from "./format.js";
import { END } from "./run.js";

const MAX_SHOWN_BRANCHES = 12;

/* `part`: from a class to the lane's element. */
export function drawBranches(part, frame) {
  part("branch-table").hidden = !frame;
  part("branch-marks").hidden = !frame;
  part("branch-hint").hidden = Boolean(frame);
  if (!frame) {
    part("unshown").hidden = part("accepted-note").hidden = true;
    return;
  }
  const { accepted } = frame;
  const first = frame.branches.findIndex(({ name }) => name === "anchor");
  const rank = (branch) => (branch === first ? 2 : accepted.includes(branch) ? 1 : 0);
  const order = [...frame.branches.keys()].sort((a, b) => rank(b) - rank(a));
  const shownBranches = order.slice(0, MAX_SHOWN_BRANCHES);
  if (!shownBranches.includes(frame.winner)) shownBranches[shownBranches.length - 1] = frame.winner;
  const body = part("branch-table").tBodies[0];
  while (body.rows.length > shownBranches.length) body.lastChild.remove();
  shownBranches.forEach((branch, i) => {
    const { name, tried, confidence } = frame.branches[branch];
    const row = body.rows[i] ?? body.appendChild(branchRow());
    const [who, what, bar, value] = row.cells;
    const won = branch === frame.winner;
    row.className = won ? "won" : accepted.includes(branch) ? "accepted" : "";
    who.firstChild.data = name;
    who.lastChild.textContent = accepted.includes(branch) ? ", accepted" : won ? ", won" : "";
    what.title = tried;
    what.textContent = shortenTried(tried);
    // Negative entropies are at most 0; probabilities and margins at least.
    const share = confidence < 0 ? Math.exp(confidence) : Math.min(1, confidence);
    bar.firstChild.style.setProperty("--share", share);
    value.textContent = fixed(confidence, 3);
  });
  part("unshown").hidden = order.length <= shownBranches.length;
  part("unshown").textContent = `and ${order.length - shownBranches.length} more`;
  part("accepted-note").hidden = !accepted.length;
  const drafts = accepted.length === 1 ? "1 draft" : `${accepted.length} drafts`;
  const depth = frame.rule_steps.length;
  part("accepted-note").textContent = `Accepted ${drafts}: one forward pass did ${depth} steps of the rule.`;
}

/* What a branch tried, "token@position" once or more, short enough for its column: the first, and how many more. */
function shortenTried(tried) {
  const [[, token, position] = [], ...others] = tried.matchAll(/(.*?)@(\d+)(?: |$)/gs);
  if (position === undefined) return tried || "–";
  const text = END.test(token) ? "∎" : token.trim().replaceAll("\n", "⏎") || "␣";
  return `${text.length > 5 ? `${text.slice(0, 4)}…` : text}@${position}${others.length ? ` +${others.length}` : ""}`;
}

function branchRow() {
  const who = node("th", { scope: "row" }, document.createTextNode(""), node("span", { className: "unseen" }));
  return node("tr", {}, who, node("td"), node("td", {}, node("div", { className: "bar" }, node("i"))), node("td"));
}
