/* The form: prompt, chat, model, key, a preset, and the settings of one side or of two. */

import { callApi } from "./api.js";
import { Conversation } from "./conversation.js";
import { $, node } from "./dom.js";
import { UserError } from "./errors.js";
import { showExamples } from "./examples.js";
import { setFieldNote } from "./field_notes.js";
import { presetOf, presetWith, withPreset } from "./presets.js";
import { SettingsForm, label } from "./settings_form.js";
import { Undo } from "./undo.js";

const CANDIDATES = 3; // How many of each position's best tokens a stream has.

export class RequestForm {
  /* `report` is called with errors of what the form asks the server. */
  constructor(report) {
    this.report = report;
    this.conversation = new Conversation();
    this.undo = new Undo((replaced) => this.fill({ ...this.state, ...replaced }));
    this.sides = [new SettingsForm("A")];
    this.defaults = {}; // By model.
    this.wantedModel = ""; // What to choose once the server's models are known.
    $("sides").append(this.sides[0].root);
    $("form").addEventListener("change", ({ target }) => {
      this.showMode();
      if (target.name === "preset") this.applyPreset();
      else this.markPreset();
    });
    $("compare").addEventListener("change", () => this.setCompared($("compare").checked));
    $("model").addEventListener("change", () => {
      setFieldNote($("model"), "note", "");
      this.loadDefaults().catch(report);
    });
  }

  get raw() {
    return $("form").mode.value === "raw";
  }

  get key() {
    return $("key").value.trim();
  }

  /* Raw text has no chat. */
  showMode() {
    $("chat").hidden = $("context").hidden = this.raw;
  }

  /* The name of the chosen preset; "" with other settings. */
  get preset() {
    return $("form").preset.value;
  }

  /* Give the sides what the chosen preset has for this model, once that is known. */
  applyPreset() {
    const { defaults } = this.sides[0];
    if (!this.preset || !defaults) return;
    const { a, b } = presetOf(this.preset, defaults);
    const { values } = this.sides[0];
    this.sides[0].fill(withPreset(values, a));
    this.setCompared(Boolean(b), b && withPreset(values, b));
  }

  /* Choose the preset that the sides have, or none. */
  markPreset() {
    const { defaults } = this.sides[0];
    const [a, b = null] = this.sides.map(({ values }) => values);
    const name = defaults ? presetWith({ a, b }, defaults) : "";
    for (const radio of $("form").preset) radio.checked = radio.value === name;
  }

  setCompared(wanted, values = this.sides[0].values) {
    $("compare").checked = wanted;
    for (const { root } of this.sides.splice(1)) root.remove();
    $("sides").classList.toggle("compared", wanted);
    if (!wanted) return;
    const side = new SettingsForm("B");
    if (this.sides[0].defaults) side.setDefaults(this.sides[0].defaults);
    side.fill(values);
    this.sides.push(side);
    $("sides").append(side.root);
  }

  /* Ask the server for its models and for the chosen one's defaults. Raises UserError. */
  async loadModels() {
    const { data } = await (await callApi("v1/models", this.key)).json();
    this.defaults = {};
    const chosen = $("model").value || this.wantedModel;
    $("model").replaceChildren(...data.map(({ id }) => node("option", { value: id, textContent: id })));
    this.chooseModel(chosen);
    await this.loadDefaults();
  }

  /* The first model of the server stands in for one that the server does not have. */
  chooseModel(model) {
    const isKnown = [...$("model").options].some(({ value }) => value === model);
    if (isKnown) $("model").value = model;
    const note = `The server has no model "${model}", so ${$("model").value} is chosen.`;
    setFieldNote($("model"), "note", model && !isKnown ? note : "");
  }

  async loadDefaults() {
    const model = $("model").value;
    const path = `models/${model.split("/").map(encodeURIComponent).join("/")}/defaults`;
    const defaults = (this.defaults[model] ??= await (await callApi(path, this.key)).json());
    if ($("model").value !== model) return; // Another one was chosen meanwhile.
    for (const side of this.sides) side.setDefaults(defaults);
    if (this.preset) this.applyPreset();
    else this.markPreset();
    await showExamples(defaults.is_demo_model, (prompt) => this.setPrompt(prompt));
  }

  setPrompt(prompt) {
    this.undo.offer({ prompt: $("prompt").value });
    this.undo.noteLossless(prompt);
    $("prompt").value = prompt;
    $("prompt").focus();
  }

  /* The chat of a run goes on, also if the form is about something else. */
  continueAfter(run) {
    const { prompt, mode, system, turns } = this.state;
    this.undo.offer({ prompt, mode, system, turns });
    $("form").mode.value = "chat";
    this.showMode();
    this.conversation.continueAfter(run);
  }

  useAgain(run) {
    this.undo.offer(this.state);
    this.undo.noteLossless(run.asked.prompt);
    this.fill(run.asked);
    $("prompt").focus();
  }

  /* Whether two sides would send the same: that is one run, and no comparison. */
  get hasEqualSides() {
    const [a, b] = this.sides;
    return Boolean(b) && a.effective === b.effective;
  }

  /* A request per side that differs: its path, its body and what its run is called. Raises UserError. */
  requests() {
    const prompt = $("prompt").value;
    const messages = this.raw ? null : this.conversation.messages(prompt);
    if (!prompt.trim() && messages?.at(-1).role !== "tool") throw new UserError("Not sent.", "Type a prompt.", "prompt");
    const tools = this.raw ? undefined : this.conversation.tools();
    const sides = this.hasEqualSides ? this.sides.slice(0, 1) : this.sides;
    const requests = sides.map((side) => {
      const settings = side.read();
      const body = {
        model: $("model").value,
        ...(this.raw ? { prompt } : { messages, ...(tools && { tools }) }),
        ...settings.standard,
        ...(this.raw ? { logprobs: CANDIDATES } : { logprobs: true, top_logprobs: CANDIDATES }),
        stream: true,
        stream_options: { include_usage: true },
        lopa: { ...settings.lopa, stream_canvas: true },
      };
      const parts = [label(settings)];
      if ($("model").options.length > 1) parts.unshift($("model").value);
      if (this.raw) parts.unshift("raw");
      const name = {
        prompt: prompt.trim() ? prompt : (messages?.at(-1).content ?? ""),
        messages,
        decoder: side.decoder,
        label: parts.filter(Boolean).join(" · "),
        side: sides.length > 1 ? side.side : "",
        model: $("model").value,
        tools: this.raw ? "" : $("tools").value,
        settings: side.values,
        lookahead: side.lookahead,
        request: { path: this.raw ? "v1/completions" : "v1/chat/completions", body },
      };
      return { ...name.request, name };
    });
    this.undo.noteLossless(prompt);
    return requests;
  }

  /* The control that the parts of a field's path name, of one side where two have it. */
  control(names, side = "") {
    const { controls } = this.sides.find((form) => form.side === side) ?? this.sides[0];
    const own = { ...controls, key: $("key"), model: $("model"), prompt: $("prompt"), tools: $("tools") };
    const name = names.findLast((name) => Object.hasOwn(own, name));
    if (name) return own[name];
    return names.includes("messages") && !this.raw ? $("prompt") : undefined;
  }

  /* All that is in the form but the key; see `linkFragment`. */
  get state() {
    const [a, b] = this.sides.map(({ values }) => values);
    const texts = { prompt: $("prompt").value, system: $("system").value, tools: $("tools").value };
    const { turns } = this.conversation;
    const mode = this.raw ? "raw" : "";
    return { ...texts, model: $("model").value || this.wantedModel, mode, turns, preset: this.preset, a, b: b ?? null };
  }

  /* `prompt`: null leaves the prompt as it is. */
  fill({ prompt, model, mode, system, tools, turns, preset, a, b }) {
    if (prompt !== null) $("prompt").value = prompt;
    $("form").mode.value = mode === "raw" ? "raw" : "chat";
    this.wantedModel = model; // The server's models may not be known yet.
    if ($("model").options.length) {
      this.chooseModel(model);
      this.loadDefaults().catch(this.report);
    }
    $("system").value = system;
    $("tools").value = tools;
    $("context").open = Boolean(system || tools);
    this.conversation.set(turns);
    this.sides[0].fill(a);
    this.setCompared(Boolean(b), b ?? {});
    this.markPreset();
    for (const radio of $("form").preset) radio.checked ||= radio.value === preset;
    if (!this.preset && (b || Object.keys(a).length)) $("settings").open = true;
    this.showMode();
  }
}
