/* The settings of one side: fields that show the defaults of the chosen decoder and are empty unless set. */

import { node } from "./dom.js";
import { UserError } from "./errors.js";
import { setFieldNote } from "./field_notes.js";
import { oneLine, sentence, words } from "./format.js";

/* `setting`: the name in the defaults, where it is another one. */
const FIELDS = [
  { name: "decoder", title: "Decoder", lopa: true, choices: [] },
  { name: "num_branches", title: "Branches", lopa: true, kind: "integer", or: "auto" },
  { name: "lookahead", title: "Lookahead", lopa: true, choices: ["lopa", "verified"] },
  { name: "acceptance", title: "Acceptance", lopa: true, kind: "number", or: "exact" },
  { name: "max_tokens", title: "Max tokens", setting: "max_new_tokens", kind: "integer", inputMode: "numeric" },
  { name: "block_size", title: "Block size", lopa: true, kind: "integer", inputMode: "numeric" },
  { name: "confidence_threshold", title: "Confidence threshold", lopa: true, kind: "number", inputMode: "decimal" },
  { name: "window_attention", title: "Window attention", lopa: true, choices: ["full", "block_causal"] },
  { name: "temperature", title: "Temperature", kind: "number", inputMode: "decimal" },
  { name: "top_p", title: "Top p", kind: "number", inputMode: "decimal" },
  { name: "seed", title: "Seed", kind: "integer", inputMode: "numeric" },
];
const SHORT = {
  max_tokens: "max",
  num_branches: "branches",
  lookahead: "",
  block_size: "block",
  confidence_threshold: "threshold",
  window_attention: "window",
};

export const SETTING_NAMES = FIELDS.map(({ name }) => name);

export class SettingsForm {
  /* `side`: A or B. */
  constructor(side) {
    this.side = side;
    this.defaults = null; // Of the model, as the server describes them.
    this.unused = {}; // Texts of fields that the decoder does not have, for the next decoder that has them.
    this.unknown = {}; // Texts of a link that no option of their field has.
    this.controls = Object.fromEntries(FIELDS.map((field) => [field.name, this.control(field)]));
    const legend = node("legend", { className: "unseen", textContent: `Settings of ${side}` });
    const fields = FIELDS.map(({ name, title }) => {
      const control = this.controls[name];
      return node("div", { className: "field" }, node("label", { htmlFor: control.id, textContent: title }), control);
    });
    this.root = node("fieldset", { className: "side-settings" }, legend, node("div", { className: "grid" }, ...fields));
    this.root.addEventListener("change", ({ target }) => {
      delete this.unknown[target.name];
      this.showDefaults();
    });
    this.showDefaults();
  }

  control({ name, choices, inputMode }) {
    const common = { name, id: `${this.side.toLowerCase()}-${name}` };
    if (!choices) return node("input", { ...common, inputMode: inputMode ?? "", autocomplete: "off" });
    const select = node("select", common, node("option", { value: "" }));
    this.offer(select, choices);
    return select;
  }

  offer(select, choices) {
    const chosen = select.value;
    const title = (value) => (this.isRuledOut(value) ? `${words(value)} (not available)` : words(value));
    const options = choices.map((value) => node("option", { value, textContent: title(value) }));
    select.replaceChildren(select.options[0], ...options);
    this.choose(select, chosen);
  }

  choose(select, text) {
    select.value = text;
    if (select.value === text) return;
    select.value = "";
    this.unknown[select.name] = text;
  }

  /* Whether no request of this page can have this decoder. */
  isRuledOut(decoder) {
    return Boolean(this.defaults?.refused[decoder]) && !this.defaults.accepted_with[decoder];
  }

  setDefaults(defaults) {
    this.defaults = defaults;
    this.offer(this.controls.decoder, Object.keys({ ...defaults.settings, ...defaults.refused }));
    this.showDefaults();
  }

  /* The decoder that a request gets; "" while the defaults are not known. */
  get decoder() {
    return this.controls.decoder.value || (this.defaults?.decoder ?? "");
  }

  /* What the chosen decoder has; nothing for one that is ruled out. Undefined while the defaults are not known. */
  get settings() {
    return this.defaults && (this.defaults.settings[this.decoder] ?? {});
  }

  showDefaults() {
    const { settings } = this;
    for (const { name, setting = name } of FIELDS) {
      const control = this.controls[name];
      const known = name === "decoder" || !settings || setting in settings;
      if (control.disabled === known) [control.value, this.unused[name]] = [this.unused[name] ?? "", control.value];
      control.disabled = !known;
      const shown = known ? this.shownDefault(name, settings?.[setting]) : "not used";
      if (control.localName === "select") control.options[0].textContent = shown;
      else control.placeholder = shown;
      setFieldNote(control, "note", this.noteOf(name));
    }
  }

  /* What is to be known about a field before the request is sent. */
  noteOf(name) {
    if (name in this.unknown) return `"${this.unknown[name]}" cannot be chosen here, so the default is used.`;
    if (name !== "decoder") return "";
    if (this.isRuledOut(this.decoder)) {
      const reason = sentence(this.defaults.refused[this.decoder]);
      return `The model's configuration rules this decoder out, and nothing on this page changes that. Choose another ` +
        `one. The server's reason: ${reason}`;
    }
    const needed = Object.entries(this.needed).map(([setting, value]) => `${setting} ${value}`).join(", ");
    return needed && `Is sent with ${needed}: this decoder does not work with what the model's configuration has there.`;
  }

  /* Settings without which the server refuses the chosen decoder. */
  get needed() {
    return this.defaults?.accepted_with[this.decoder] ?? {};
  }

  shownDefault(name, value) {
    if (!this.defaults) return "default";
    if (name === "decoder") return `${words(this.defaults.decoder)} (default)`;
    const temperature = this.controls.temperature.value.trim() || this.settings.temperature;
    if (name === "seed" && Number(temperature) > 0) return "new each time";
    return `${value === null ? "none" : words(String(value))} (default)`;
  }

  /* What a request has: {standard, lopa}. Raises UserError for a text where a number belongs, and for a decoder that
   * is ruled out. */
  read() {
    if (this.isRuledOut(this.decoder)) {
      throw new UserError("Not sent.", "This decoder is not available.", "decoder", this.side);
    }
    const standard = {};
    const lopa = { ...this.needed };
    for (const field of FIELDS) {
      const control = this.controls[field.name];
      const text = control.value.trim();
      if (text && !control.disabled) (field.lopa ? lopa : standard)[field.name] = parse(field, text, this.side);
    }
    return { standard, lopa };
  }

  /* All settings that a request gets, the defaults among them, as a text to compare. */
  get effective() {
    const of = ({ name, setting = name }) => {
      const { disabled, value } = this.controls[name];
      return disabled ? "" : value.trim() || String(this.settings?.[setting] ?? "");
    };
    return JSON.stringify([this.decoder, ...FIELDS.slice(1).map(of)]);
  }

  /* lopa, verified, none with one branch, or "" where that is not known. */
  get lookahead() {
    const { num_branches, lookahead } = this.controls;
    const branches = num_branches.disabled ? "1" : num_branches.value.trim() || String(this.settings?.num_branches);
    return branches === "1" ? "none" : lookahead.disabled ? "guesses" : lookahead.value || (this.settings?.lookahead ?? "");
  }

  /* The texts of the fields that are set. */
  get values() {
    const text = (name, { disabled, value }) => (disabled ? (this.unused[name] ?? "") : value).trim();
    const given = Object.entries(this.controls).map(([name, control]) => [name, text(name, control)]);
    return Object.fromEntries(given.filter(([, text]) => text));
  }

  fill(values) {
    this.unknown = {};
    for (const [name, control] of Object.entries(this.controls)) {
      const text = oneLine(values[name] ?? "");
      if (name === "decoder" && text && !this.defaults) this.offer(control, [text]);
      if (control.disabled) this.unused[name] = text;
      else if (control.localName === "select") this.choose(control, text);
      else control.value = text;
    }
    this.showDefaults();
  }
}

function parse({ name, kind, or }, text, side) {
  if (!kind || text === or) return text;
  const [fits, number] = kind === "integer" ? [Number.isSafeInteger, "a whole number"] : [Number.isFinite, "a number"];
  const value = Number(text);
  if (fits(value)) return value;
  const allowed = or ? `${number}, or ${or}` : number;
  throw new UserError("Not sent.", `Got "${text}"; allowed: ${allowed}, or nothing for the default.`, name, side);
}

/* The settings of a run in a few words. */
export function label({ standard, lopa }) {
  const given = Object.entries({ ...lopa, ...standard }).filter(([name]) => name !== "decoder");
  return given.map(([name, value]) => [SHORT[name] ?? name, value].join(" ").trim()).join(" · ");
}
