/* Numbers and short texts, as the page shows them. */

export const count = (steps) => `${steps} ${steps === 1 ? "step" : "steps"}`;
export const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
export const rate = ({ tokens, seconds }) => fixed(tokens / seconds, tokens / seconds < 100 ? 1 : 0);
export const sentence = (text) => (/[.!?]\)?$/.test(text) ? text : `${text}.`);
export const words = (name) => name.replaceAll("_", " ");
export const oneLine = (text) => text.trim().replace(/\s+/g, " ");
