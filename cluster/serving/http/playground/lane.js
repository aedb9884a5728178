/* A lane shows a run: while it decodes, step by step afterwards, and in a replay. */

import { drawAnswer } from "./answer_view.js";
import { drawAsked } from "./asked_view.js";
import { drawBranches } from "./branches_view.js";
import { drawCanvas } from "./canvas_view.js";
import { $, copyOnClick } from "./dom.js";
import { fixed, rate, words } from "./format.js";
import { drawTimeline } from "./timeline_view.js";

const PAUSE_MS = 90; // How long a live step stays at least, unless drawing lags behind.
const LAG_MS = 900; // About how far drawing may lag behind.
const REPLAY_MS = 4000; // A replay takes about this long, ...
const REPLAY_STEP_MS = 450; // ... and a step of it at most this.
const PLAY = "M3 1l11 7-11 7z";
const PAUSE = "M3 1h4v14H3zM9 1h4v14H9z";

export class Lane {
  shown = null; // The run that the lane shows.
  at = 0; // The index of the frame that it shows.
  timer = 0; // Of the next call of moveOn; 0 if there is none.
  movedAt = 0; // When it last moved to another frame.
  replaying = false; // Whether it replays a run, at a fixed pace.

  /* `onContinue` is called with a run whose chat is to go on, `onUseAgain` with one to ask again. */
  constructor(onContinue, onUseAgain) {
    this.root = $("lane").content.firstElementChild.cloneNode(true);
    const parts = new Map();
    this.part = (name) => {
      if (!parts.has(name)) parts.set(name, this.root.querySelector(`.${name}`));
      return parts.get(name);
    };
    this.part("play").addEventListener("click", () => this.togglePlay());
    this.part("slider").addEventListener("input", ({ target }) => {
      this.pause();
      this.at = target.value - 1;
      this.draw();
    });
    this.part("continue").addEventListener("click", () => onContinue(this.shown));
    this.part("use-again").addEventListener("click", () => onUseAgain(this.shown));
    copyOnClick(this.part("copy-answer"), () => this.shown.text.trimEnd());
    drawCanvas(this.part("canvas"));
  }

  /* `withPrompt`: the form need not have what the run was asked. */
  show(run, withPrompt) {
    this.pause();
    this.shown = run;
    this.at = Math.max(0, run.frames.length - 1);
    this.draw();
    drawAsked(this.part, withPrompt ? run : null);
    drawAnswer(this.part, run);
    const inRace = Boolean(run.side);
    this.part("lane-title").hidden = !inRace;
    this.part("side").textContent = run.side;
    this.part("lane-label").textContent = [words(run.decoder), run.label].filter(Boolean).join(" · ");
    this.part("place").textContent = run.place ?? "";
    this.root.setAttribute("aria-label", inRace ? `Run ${run.side}` : "Run");
  }

  /* The run has another frame, more of its answer, or has ended. */
  update(run, hasNewFrame = false) {
    if (this.shown !== run) return;
    drawAnswer(this.part, run);
    this.part("place").textContent = run.place ?? "";
    if (hasNewFrame && !this.timer && this.at >= run.frames.length - 2) this.move();
    else if (run.state === "running") this.drawTimeline();
    else this.draw();
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.replaying = false;
  }

  move(step = 1) {
    const { frames } = this.shown;
    this.at = Math.min(frames.length - 1, this.at + step);
    this.movedAt = performance.now();
    const behind = frames.length - 1 - this.at;
    const live = Math.min(PAUSE_MS, LAG_MS / (1 + behind));
    const replay = Math.min(REPLAY_STEP_MS, REPLAY_MS / frames.length);
    this.timer = setTimeout(() => this.moveOn(), this.replaying ? replay : live);
    this.draw();
  }

  moveOn() {
    this.timer = 0;
    const behind = this.shown.frames.length - 1 - this.at;
    // Where drawing takes longer than the pause between steps, live steps are left out.
    const skipped = this.replaying ? 0 : Math.floor((behind * (performance.now() - this.movedAt)) / LAG_MS);
    if (behind > 0) this.move(1 + skipped);
    else this.drawPlay();
  }

  togglePlay() {
    if (this.timer) {
      this.pause();
      this.drawPlay();
    } else {
      this.replaying = true;
      if (this.at >= this.shown.frames.length - 1) this.at = -1;
      this.move();
    }
  }

  draw() {
    const run = this.shown;
    const frame = run.frames[this.at];
    const now = run.statsAt(this.at);
    const known = frame || run.stats;
    const set = (name, text) => (this.part(name).textContent = known ? text : "–");
    set("tpf", fixed(now.tpf, 2));
    set("rate", rate(now));
    set("seconds", fixed(now.seconds, 2));
    const depth = now.rule_steps / now.steps;
    this.part("depth").parentNode.hidden = !(depth > 1);
    set("depth", fixed(depth, 2));
    for (const name of ["tokens", "steps", "forwards"]) set(name, now[name]);
    this.part("canvas-hint").hidden = true;
    drawCanvas(this.part("canvas"), frame, run);
    drawBranches(this.part, frame);
    this.drawTimeline();
  }

  drawTimeline() {
    drawTimeline(this.part, this.shown, this.at);
    this.drawPlay();
  }

  drawPlay() {
    const playing = Boolean(this.timer);
    const { frames, state } = this.shown;
    const button = this.part("play");
    button.disabled = frames.length < 2 || state === "running";
    button.setAttribute("aria-label", playing ? "Pause" : "Play the steps");
    button.querySelector("path").setAttribute("d", playing ? PAUSE : PLAY);
  }
}
