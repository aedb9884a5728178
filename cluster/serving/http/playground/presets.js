/* The presets: settings of one side or of two, as far as the model has the decoders for them. */

const NAMES = ["decoder", "num_branches", "lookahead", "acceptance"]; // The settings that a preset decides.

/* {a, b} of a preset: the texts of both sides' fields; `b` is null for one side. `defaults`: of the model. */
export function presetOf(name, defaults) {
  const decoder = drafting(defaults);
  if (!decoder) return { a: {}, b: null };
  const { acceptance, lookahead } = defaults.settings[decoder];
  const guesses = { lookahead: "verified", acceptance: name === "fast" ? "0.5" : acceptance === "exact" ? "" : "exact" };
  const verified = { decoder, num_branches: "8", ...(lookahead && guesses) };
  return name === "compare" ? { a: oneBranch(decoder, defaults), b: verified } : { a: verified, b: null };
}

/* The name of the preset that both sides have; "" for other settings. */
export function presetWith({ a, b }, defaults) {
  const key = (sides) => JSON.stringify(sides.map((side) => side && NAMES.map((name) => side[name] ?? "")));
  return ["compare", "fast", "exact"].find((name) => {
    const preset = presetOf(name, defaults);
    return key([preset.a, preset.b]) === key([a, b]);
  }) ?? "";
}

/* `values` with the settings of a preset's side in place of their own. */
export function withPreset(values, side) {
  const others = Object.entries(values).filter(([name]) => !NAMES.includes(name));
  return Object.fromEntries([...others, ...Object.entries(side).filter(([, text]) => text)]);
}

const isAvailable = (decoder, { settings, refused }) => Boolean(settings[decoder]) && !refused[decoder];

/* The decoder for lookahead: the model's own, or the first that has it. Not all have verified lookahead. */
function drafting(defaults) {
  const names = [defaults.decoder, "lopa", ...Object.keys(defaults.settings)];
  return names.find((name) => isAvailable(name, defaults) && "num_branches" in defaults.settings[name]);
}

/* The same rule without lookahead. */
function oneBranch(decoder, defaults) {
  const name = decoder === "lopa" ? ["d2f", "vanilla"].find((known) => isAvailable(known, defaults)) : decoder;
  if (name && name !== decoder) return { decoder: name };
  return { decoder, num_branches: "1", ...(defaults.settings[decoder].lookahead && { lookahead: "lopa" }) };
}
