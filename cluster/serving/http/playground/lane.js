/* A lane shows one run at a step: its canvas, and below the clock its figures, what happened in the step, and the answer. */

import { drawAnswer } from "./answer_view.js";
import { drawCanvas } from "./canvas_view.js";
import { $, copyOnClick } from "./dom.js";
import { count, fixed, words } from "./format.js";
import { drawStep } from "./step_view.js";

const KINDS = { none: "One branch", lopa: "LoPA's lookahead", verified: "Verified lookahead", guesses: "Several guesses" };

export class Lane {
  run = null; // The one that the lane shows.
  index = -1; // Of the frame that it shows; -1 before the first step.

  /* `onContinue` is called with a run whose chat is to go on. */
  constructor(onContinue) {
    [this.root, this.details] = $("lane").content.cloneNode(true).children;
    const parts = new Map();
    this.part = (name) => {
      if (!parts.has(name)) parts.set(name, [this.root, this.details].map((half) => half.querySelector(`.${name}`)).find(Boolean));
      return parts.get(name);
    };
    this.canvas = this.part("canvas");
    this.part("continue").addEventListener("click", () => onContinue(this.run));
    copyOnClick(this.part("copy-answer"), () => this.run.text.trimEnd());
    drawCanvas(this.canvas, null, -1);
  }

  show(run) {
    this.run = run;
    this.part("side").hidden = !run.side;
    this.part("side").textContent = run.side;
    const kind = KINDS[run.lookahead] ?? "";
    // What kind it is need not be said twice.
    const settings = run.label.split(" · ").filter((setting) => setting && !(kind && setting === run.lookahead));
    this.part("kind").textContent = kind;
    this.part("lane-label").textContent = [words(run.decoder), ...settings].join(" · ");
    for (const half of [this.root, this.details]) half.setAttribute("aria-label", run.side ? `Run ${run.side}` : "Run");
    this.canvas.setAttribute("aria-label", run.side ? `Canvas of ${run.side}` : "Canvas");
  }

  /* `at`: the step of the clock, which may be behind the run's last one. */
  draw(at) {
    const { run } = this;
    this.index = run.indexAt(at);
    const frame = run.frames[this.index];
    const now = run.statsAt(this.index);
    const isOver = run.state !== "running" && at >= run.lastStep;
    this.root.classList.toggle("over", isOver);
    this.part("place").textContent = isOver && run.state === "done" ? `done in ${count(run.cost.steps)}` : "";
    const known = frame || run.stats;
    const set = (name, text) => (this.part(name).textContent = known ? text : "–");
    for (const name of ["tokens", "steps", "forwards"]) set(name, now[name]);
    set("tpf", fixed(now.tpf, 2));
    set("seconds", fixed(now.seconds, 2));
    const depth = now.rule_steps / now.steps;
    this.part("depth").parentNode.hidden = !(depth > 1);
    set("depth", fixed(depth, 2));
    drawCanvas(this.canvas, run, this.index);
    drawStep(this.part, run, frame);
    drawAnswer(this.part, run, isOver);
  }
}
