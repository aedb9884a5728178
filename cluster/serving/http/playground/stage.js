/* The stage: one run, or two side by side, drawn by one clock. */

import { flicker } from "./canvas_view.js";
import { Clock, still } from "./clock.js";
import { comparisonOf } from "./comparison.js";
import { $ } from "./dom.js";
import { drawAsked } from "./asked_view.js";
import { Lane } from "./lane.js";
import { drawTimeline } from "./timeline_view.js";
import { TokenView } from "./token_view.js";

const NOISE_MS = 90;
const SPEEDS = [0.25, 0.5, 1, 2, 4];
const PLAY = "M3 1l11 7-11 7z";
const PAUSE = "M3 1h4v14H3zM9 1h4v14H9z";

export class Stage {
  runs = []; // Those on show.
  drawing = 0; // The animation frame in which the next drawing happens; 0 if there is none.

  constructor(onContinue, onUseAgain) {
    this.newLane = () => {
      const lane = new Lane(onContinue);
      this.token.follow(lane);
      return lane;
    };
    this.clock = new Clock(() => this.draw());
    this.token = new TokenView();
    this.lanes = [this.newLane()];
    $("lanes").append(this.lanes[0].root);
    $("use-again").addEventListener("click", () => onUseAgain(this.runs[0]));
    $("play").addEventListener("click", () => this.clock.toggle());
    $("clock").addEventListener("input", ({ target }) => this.clock.set(Number(target.value)));
    $("speed").addEventListener("input", ({ target }) => this.setSpeed(SPEEDS[target.value]));
    setInterval(() => this.flicker(), NOISE_MS);
  }

  /* `again`: the runs are not new, and the form need not have what they were asked. */
  show(runs, again = false) {
    this.runs = runs;
    this.token.hide();
    this.lanes.splice(runs.length);
    while (this.lanes.length < runs.length) this.lanes.push(this.newLane());
    $("lanes").replaceChildren(...this.lanes.map(({ root }) => root));
    $("details").replaceChildren(...this.lanes.map(({ details }) => details));
    $("stage").classList.toggle("compared", runs.length > 1);
    runs.forEach((run, i) => this.lanes[i].show(run));
    if (again) this.clock.show(this.lastStep);
    else this.clock.start();
    drawAsked(again ? runs[0] : null);
    $("idle").hidden = true;
    $("transport").hidden = false;
    this.draw();
  }

  get lastStep() {
    return Math.max(0, ...this.runs.map(({ lastStep }) => lastStep));
  }

  /* A run has another frame, more of its answer, or has ended. */
  update() {
    this.drawing ||= requestAnimationFrame(() => {
      this.drawing = 0;
      const running = this.runs.filter(({ state }) => state === "running");
      // Until all have ended, the clock goes no further than the slowest one.
      const end = running.length ? Math.min(...running.map(({ lastStep }) => lastStep)) : this.lastStep;
      this.clock.reach(end, running.length > 0);
      this.draw();
    });
  }

  draw() {
    const { at, playing, end } = this.clock;
    this.lanes.forEach((lane) => lane.draw(at));
    drawTimeline(this.runs, at);
    const isOver = !this.clock.live && at >= this.lastStep;
    const comparison = isOver ? comparisonOf(this.runs) : null;
    $("headline").hidden = this.runs.length < 2;
    $("headline").classList.toggle("over", Boolean(comparison));
    $("factor").textContent = comparison?.factor ?? (at ? `Step ${at}` : "Step 0");
    $("factor-detail").textContent = comparison?.detail ?? "Both sides have one clock: a step is one forward pass of the model.";
    this.lanes.forEach(({ root, run }) => root.classList.toggle("fewer", comparison?.fewer === run));
    $("play").disabled = end < 1;
    $("play").setAttribute("aria-label", playing ? "Pause" : "Play the steps");
    $("play").querySelector("path").setAttribute("d", playing ? PAUSE : PLAY);
    $("save").hidden = this.clock.live || !this.lastStep;
    this.token.draw();
  }

  setSpeed(speed) {
    this.clock.speed = speed;
    $("speed").setAttribute("aria-valuetext", `${speed} ×`);
    $("speed-value").textContent = `${speed} ×`;
  }

  /* Noise moves while the clock does. */
  flicker() {
    const { playing, live, following } = this.clock;
    if (still.matches || !(playing || (live && following))) return;
    for (const { canvas } of this.lanes) flicker(canvas);
  }
}
