/* A run: what was sent, the canvas after each step, and the answer. */

import { UserError } from "./errors.js";
import { sentence } from "./format.js";

export const END = /^(<\|(endoftext|end_of_text|im_end|eot_id|eot|end)\|>|<\/s>)?$/;

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

  /* `messages`: what was sent of a chat; null for raw text. `side`: A or B in a race, else "". `settings`: the texts
   * of the fields that were set. `id`: of a kept run. */
  constructor({ id = `${Date.now()}-${Math.random()}`, prompt, messages, decoder, label, side, model, tools, settings }) {
    Object.assign(this, { id, prompt, messages, decoder, label, side, model, tools, settings });
  }

  /* The state of the form that asks the same again; of a race, what this side asked. */
  get asked() {
    const { model, tools, settings: a } = this;
    const system = this.messages?.[0].role === "system" ? this.messages[0].content : "";
    const turns = (this.messages ?? []).slice(system ? 1 : 0);
    const prompt = this.messages && turns.at(-1).role !== "user" ? "" : (turns.pop()?.content ?? this.prompt);
    return { prompt, system, turns, tools, model, mode: this.messages ? "chat" : "raw", a, b: null };
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
    // What each denoising step filled, in order, and the drafts whose reports the rule took.
    canvas.filled = canvas.rule_steps.map(({ positions }) => positions.length);
    canvas.rule_steps.forEach(({ positions }, i, { length }) => {
      for (const position of positions) canvas.cells[position].depth = length > 1 ? i + 1 : 0;
    });
    const taken = canvas.rule_steps.map(({ branch }) => branch).filter((branch) => branch !== null);
    canvas.accepted = [...new Set(taken)].slice(1);
    canvas.decided = canvas.cells.filter((cell) => cell.s === canvas.step).length;
    this.frames.push(canvas);
  }

  /* What the run cost up to a frame; for the last frame, the server's own statistics. */
  statsAt(index) {
    if (this.stats && index >= this.frames.length - 1) return this.stats;
    const { cells, step, seconds } = this.frames[index] ?? { cells: [], step: 0, seconds: 0 };
    const end = cells.findIndex((cell) => cell.s && END.test(cell.t));
    const tokens = cells.filter((cell, i) => cell.s && (end < 0 || i <= end)).length;
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
