/* A position of a canvas in detail: its best candidates, and how confident the model was in it over the steps. */

import { $, node } from "./dom.js";
import { fixed } from "./format.js";

const WIDTH = 220; // Of the chart, in its own units.
const HEIGHT = 56;

export class TokenView {
  lane = null; // The lane of the position on show; null if there is none.
  position = 0;
  isPinned = false; // Whether it stays when the pointer leaves the token.

  constructor() {
    document.addEventListener("keydown", ({ key }) => key === "Escape" && this.hide());
    document.addEventListener("click", ({ target }) => target.closest(".canvas, #token") || this.hide());
    $("token-close").addEventListener("click", () => this.hide());
  }

  /* Show positions of a lane as the pointer or the keyboard comes to them. */
  follow(lane) {
    const { canvas } = lane;
    const at = ({ target }) => [...canvas.children].indexOf(target.closest(".canvas > span"));
    // A pointer that rests while the page moves below it points at nothing.
    canvas.addEventListener("pointermove", (event) => {
      const isNew = this.lane !== lane || this.position !== at(event);
      if (!this.isPinned && isNew && at(event) >= 0) this.show(lane, at(event), false);
    });
    canvas.addEventListener("pointerleave", () => this.isPinned || this.hide());
    canvas.addEventListener("click", (event) => {
      if (at(event) < 0) return;
      const again = this.isPinned && this.lane === lane && this.position === at(event);
      if (again) this.hide();
      else this.show(lane, at(event), true);
    });
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const from = this.lane === lane ? this.position + move : 0;
      this.show(lane, Math.max(0, Math.min(canvas.childElementCount - 1, from)), true);
    });
    canvas.addEventListener("blur", () => this.lane === lane && this.hide());
  }

  show(lane, position, isPinned) {
    if (!lane.run?.frames.length) return;
    this.unmark();
    Object.assign(this, { lane, position, isPinned });
    this.draw();
  }

  hide() {
    this.unmark();
    this.lane = null;
    this.isPinned = false;
    $("token").hidden = true;
  }

  unmark() {
    this.lane?.canvas.querySelector(".pointed")?.classList.remove("pointed");
  }

  /* Draw it as the lane's frame has it. */
  draw() {
    const span = this.lane?.canvas.children[this.position];
    if (!span) {
      if (this.lane) this.hide();
      return;
    }
    span.classList.add("pointed");
    const { run, index } = this.lane;
    const cell = run.frames[index]?.cells[this.position];
    const isDecided = cell && !cell.isMask;
    const seen = run.frames.slice(0, index + 1).findLast(({ scores }) => scores[this.position]);
    const decided = isDecided ? (cell.s ? `decided in step ${cell.s}` : "given") : "still masked";
    $("token-text").textContent = isDecided ? shown(cell.t) : "masked";
    $("token-where").textContent = `position ${this.position}, ${decided}`;
    $("token-candidates").replaceChildren(...(seen ? candidateRows(seen.scores[this.position]) : []));
    $("token-none").hidden = Boolean(seen);
    $("token-step").textContent = seen ? `Best candidates in step ${seen.step}` : "Best candidates";
    this.drawChart(seen?.step);
    $("token").hidden = false;
    this.place(span);
  }

  /* `shownStep`: the step whose candidates are listed. */
  drawChart(shownStep) {
    const { run } = this.lane;
    const total = Math.max(2, run.lastStep);
    const points = run.frames.filter(({ scores }) => scores[this.position]).map(({ step, scores }) => {
      const [x, y] = [(step - 1) / (total - 1) * WIDTH, (1 - scores[this.position].probabilities[0]) * HEIGHT];
      return { x: x.toFixed(1), y: y.toFixed(1), radius: step === shownStep ? 4.5 : 2 };
    });
    const line = svg("polyline", { points: points.map(({ x, y }) => `${x},${y}`).join(" ") });
    const dots = points.map(({ x, y, radius }) => svg("circle", { cx: x, cy: y, r: radius }));
    $("token-chart").replaceChildren(line, ...dots);
    $("token-chart").parentNode.hidden = !points.length;
    $("token-last").textContent = `step ${total}`;
  }

  /* Below its token, and within the stage; on a phone the style sheet puts it at the edge of the screen. */
  place(span) {
    const card = $("token");
    const around = card.parentNode.getBoundingClientRect();
    const [first] = span.getClientRects();
    const left = Math.min(first.left - around.left, around.width - card.offsetWidth - 8);
    card.style.setProperty("--left", `${Math.max(8, left)}px`);
    card.style.setProperty("--top", `${first.bottom - around.top + 6}px`);
  }
}

function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

const shown = (text) => `“${text.replaceAll("\n", "⏎").trim().slice(0, 40) || "␣"}”`;

function candidateRows({ tokens, probabilities }) {
  return tokens.map((text, i) => {
    const bar = node("i");
    bar.style.setProperty("--share", probabilities[i]);
    const value = node("span", { className: "value", textContent: fixed(probabilities[i], 2) });
    return node("li", {}, node("code", { textContent: shown(text) }), node("span", { className: "bar" }, bar), value);
  });
}
