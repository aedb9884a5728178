/* The form: prompt, chat, model, key, and the settings of one side or of two. */

import { callApi } from "./api.js";
import { Conversation } from "./conversation.js";
import { $, node } from "./dom.js";
import { showExamples } from "./examples.js";
import { SettingsForm, label } from "./settings_form.js";

export class RequestForm {
  constructor() {
    this.conversation = new Conversation();
    this.sides = [new SettingsForm("A")];
    this.defaults = {}; // By model.
    $("sides").append(this.sides[0].root);
    $("form").addEventListener("change", () => this.showMode());
    $("race").addEventListener("change", () => this.setRace($("race").checked));
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

  setRace(wanted, values = this.sides[0].values) {
    $("race").checked = wanted;
    for (const { root } of this.sides.splice(1)) root.remove();
    $("sides").classList.toggle("race", wanted);
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
    if (data.some(({ id }) => id === chosen)) $("model").value = chosen;
    await this.loadDefaults();
  }

  async loadDefaults() {
    const model = $("model").value;
    const path = `models/${model.split("/").map(encodeURIComponent).join("/")}/defaults`;
    const defaults = (this.defaults[model] ??= await (await callApi(path, this.key)).json());
    if ($("model").value !== model) return; // Another one was chosen meanwhile.
    for (const side of this.sides) side.setDefaults(defaults);
    await showExamples(defaults.is_demo_model, (prompt) => this.setPrompt(prompt));
  }

  setPrompt(prompt) {
    $("prompt").value = prompt;
    $("prompt").focus();
  }

  /* The chat of a run goes on, also if the form is about something else. */
  continueAfter(run) {
    $("form").mode.value = "chat";
    this.showMode();
    this.conversation.continueAfter(run);
  }

  /* A request per side: its path, its body and what its run is called. Raises UserError. */
  requests() {
    const prompt = $("prompt").value;
    const messages = this.raw ? null : this.conversation.messages(prompt);
    const tools = this.raw ? undefined : this.conversation.tools();
    return this.sides.map((side) => {
      const settings = side.read();
      const body = {
        model: $("model").value,
        ...(this.raw ? { prompt } : { messages, ...(tools && { tools }) }),
        ...settings.standard,
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
        side: this.sides.length > 1 ? side.side : "",
      };
      return { path: this.raw ? "v1/completions" : "v1/chat/completions", body, name };
    });
  }

  /* The control that the parts of a field's path name, of one side where two have it. */
  control(names, side = "") {
    const { controls } = this.sides.find((form) => form.side === side) ?? this.sides[0];
    const own = { ...controls, key: $("key"), model: $("model"), prompt: $("prompt"), tools: $("tools") };
    const name = names.findLast((name) => Object.hasOwn(own, name));
    if (name) return own[name];
    return names.includes("messages") && !this.raw ? $("prompt") : undefined;
  }

  /* What a link carries; see `linkFragment`. */
  get state() {
    const [a, b] = this.sides.map(({ values }) => values);
    const { turns } = this.conversation;
    const texts = { prompt: $("prompt").value, model: $("model").value, mode: this.raw ? "raw" : "" };
    if (this.raw) return { ...texts, system: "", tools: "", turns: [], a, b: b ?? null };
    return { ...texts, system: $("system").value.trim(), tools: $("tools").value.trim(), turns, a, b: b ?? null };
  }

  fill({ prompt, model, mode, system, tools, turns, a, b }) {
    $("prompt").value = prompt;
    $("form").mode.value = mode === "raw" ? "raw" : "chat";
    this.wantedModel = model; // The server's models may not be known yet.
    if ([...$("model").options].some(({ value }) => value === model)) $("model").value = model;
    $("system").value = system;
    $("tools").value = tools;
    $("context").open = Boolean(system || tools);
    this.conversation.set(turns);
    this.sides[0].fill(a);
    this.setRace(Boolean(b), b ?? {});
    this.showMode();
  }
}
