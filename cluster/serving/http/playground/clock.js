/* The clock that every lane is drawn by. It counts steps: it follows runs that decode, and replays finished ones. */

const STEP_MS = 450; // How long a step stays at most, ...
const PLAY_MS = 9000; // ... and about how long all steps take together, both at speed 1.

/* Whether the browser is asked for less motion. */
export const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Clock {
  at = 0; // The step on show; 0: the canvas before the first step.
  end = 0; // The last step that can be shown.
  live = false; // Whether more steps will come.
  speed = 1;
  following = false; // Whether it goes on by itself when another step comes.
  timer = 0; // Of the next step; 0 if there is none.

  /* `onTick` is called after each change. */
  constructor(onTick) {
    this.onTick = onTick;
  }

  get playing() {
    return Boolean(this.timer);
  }

  /* Runs begin. */
  start() {
    this.pause();
    Object.assign(this, { at: 0, end: 0, live: true, following: true });
  }

  /* Finished runs are on show, their last step first. */
  show(end) {
    this.pause();
    Object.assign(this, { at: end, end, live: false });
  }

  /* Runs have come to step `end`. */
  reach(end, live) {
    Object.assign(this, { end, live });
    if (this.following && still.matches) this.at = end;
    else if (this.following && !this.timer && this.at < end) this.move();
  }

  set(at) {
    this.pause();
    this.at = Math.min(at, this.end);
    this.onTick();
  }

  toggle() {
    if (this.timer) this.pause();
    else {
      this.following = this.live;
      if (this.at >= this.end) this.at = 0;
      this.plan();
    }
    this.onTick();
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.following = false;
  }

  plan() {
    const pause = Math.min(STEP_MS, PLAY_MS / Math.max(1, this.end)) / this.speed;
    this.timer = setTimeout(() => this.move(), pause);
  }

  move() {
    this.timer = 0;
    this.at = Math.min(this.end, this.at + 1);
    if (this.at < this.end) this.plan();
    this.onTick();
  }
}
