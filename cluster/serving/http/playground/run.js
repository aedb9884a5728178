/* A run: what was sent, the canvas after each step, and the answer. */

import { UserError } from "./errors.js";
import { sentence } from "./format.js";

const END = /^(<\|(endoftext|end_of_text|im_end|eot_id|eot|end)\|>|<\/s>)?$/;

export class Run {
  frames = []; // The canvas after each step.
  stats = null; // The server's statistics, with the end of the answer.
  finish = null;
  promptTokens = null;
  text = "";
  reasoning = "";
  calls = []; // Of tools: {id, name, arguments}.
  state = "running"; // running, done, stopped or failed
  outcome = "";

  /* `messages`: what was sent of a chat; null for raw text. `side`: A or B in a comparison, else "". `settings`: the
   * texts of the fields that were set. `lookahead`: lopa, verified, guesses, none with one branch, or "". `request`: path and body. `id`: of a
   * kept run. */
  constructor({
    id = `${Date.now()}-${Math.random()}`, prompt, messages, decoder, label, side, model, tools, settings,
    lookahead = "", request = null,
  }) {
    Object.assign(this, { id, prompt, messages, decoder, label, side, model, tools, settings, lookahead, request });
  }

  get lastStep() {
    return this.frames.at(-1)?.step ?? 0;
  }

  /* The index of the frame that a clock at step `at` shows; -1 before the first step. */
  indexAt(at) {
    let index = Math.min(at, this.frames.length) - 1;
    while (index >= 0 && this.frames[index].step > at) index--;
    return this.state !== "running" && at >= this.lastStep ? this.frames.length - 1 : index;
  }

  /* Positions in front of the end of the answer, as far as it is known: what is behind it is padding. */
  get shownLength() {
    return endOf(this.frames.at(-1)?.cells ?? []);
  }

  /* Whether branches are guesses of the steps to come, which count only if they are right. */
  get isVerified() {
    return this.lookahead === "verified" || this.frames.some(({ accepted }) => accepted.length);
  }

  /* A branch's confidence from 0 to 1, as all others on the page: of an entropy its exponential. */
  confidenceOf({ confidence }) {
    if (confidence === null) return null;
    const isEntropy = this.frames.some(({ branches }) => branches.some((branch) => branch.confidence < 0));
    return Math.min(1, isEntropy ? Math.exp(confidence) : confidence);
  }

  /* The state of the form that asks the same again; of a comparison, what this side asked. */
  get asked() {
    const { model, tools, settings: a } = this;
    const system = this.messages?.[0].role === "system" ? this.messages[0].content : "";
    const turns = (this.messages ?? []).slice(system ? 1 : 0);
    const prompt = this.messages && turns.at(-1).role !== "user" ? "" : (turns.pop()?.content ?? this.prompt);
    return { prompt, system, turns, tools, model, mode: this.messages ? "chat" : "raw", preset: "", a, b: null };
  }

  addChunk(chunk) {
    if (chunk.error) {
      const { message, param } = chunk.error;
      throw new UserError("The server ended the request with an error.", sentence(message), param);
    }
    if (chunk.usage) this.promptTokens = chunk.usage.prompt_tokens;
    for (const choice of chunk.choices) {
      this.finish = choice.finish_reason ?? this.finish;
      this.stats = choice.lopa ?? this.stats;
      this.text += choice.text ?? choice.delta?.content ?? "";
      this.reasoning += choice.delta?.reasoning_content ?? "";
      for (const call of choice.delta?.tool_calls ?? []) this.addCall(call);
    }
    if (chunk.lopa?.canvas?.choice === 0) this.addFrame(chunk.lopa.canvas);
  }

  addCall({ index, id, function: called }) {
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "" });
    call.id = id ?? call.id;
    call.name = called?.name ?? call.name;
    call.arguments += called?.arguments ?? "";
  }

  addFrame(canvas) {
    // A cell that stayed as it was is kept once, however many steps show it.
    const before = this.frames.at(-1)?.cells ?? [];
    canvas.cells.forEach((cell, i, cells) => {
      if (before[i]?.s === cell.s && before[i].t === cell.t) cells[i] = before[i];
    });
    for (const cell of canvas.cells) cell.isMask ??= !cell.s && !cell.t;
    canvas.scores = []; // By position: its candidates, {tokens, probabilities}.
    for (const score of canvas.candidates ?? []) canvas.scores[score.position] = score;
    // By deletions and insertions: where content has come to, new masks in between, and before what tokens have gone.
    const all = (of) => new Set(canvas.rule_steps.flatMap(of));
    canvas.moved = all(({ moves = [] }) => moves.map(([, to]) => to));
    canvas.inserted = all(({ inserted = [] }) => inserted);
    canvas.deletions = all(({ deletions = [] }) => deletions);
    // The drafts whose reports the rule took, in this order.
    const taken = canvas.rule_steps.map(({ branch }) => branch).filter((branch) => branch !== null);
    canvas.accepted = [...new Set(taken)].slice(1);
    const shown = canvas.cells.slice(0, endOf(canvas.cells));
    canvas.decided = shown.filter((cell) => cell.s === canvas.step).length;
    this.frames.push(canvas);
  }

  /* What the run cost up to a frame; for the last frame, the server's own statistics. */
  statsAt(index) {
    if (this.stats && index >= this.frames.length - 1) return this.stats;
    const { cells, step, seconds } = this.frames[index] ?? { cells: [], step: 0, seconds: 0 };
    const tokens = cells.slice(0, endOf(cells) + 1).filter((cell) => cell.s).length;
    const total = (count) => this.frames.slice(0, index + 1).reduce((sum, frame) => sum + count(frame), 0);
    const forwards = total(({ branches }) => branches.length);
    const rule_steps = total((frame) => frame.rule_steps.length);
    return { tokens, steps: step, forwards, rule_steps, seconds, tpf: step ? tokens / step : 0 };
  }

  get cost() {
    return this.statsAt(this.frames.length - 1);
  }

  end(state, finish, outcome) {
    this.finish = finish;
    Object.assign(this, { state, outcome });
  }
}

/* How many cells are in front of the end of the answer. */
function endOf(cells) {
  const end = cells.findIndex((cell) => cell.s && END.test(cell.t));
  return end < 0 ? cells.length : end;
}
