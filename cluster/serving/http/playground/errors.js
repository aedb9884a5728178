/* Errors that the page shows: next to the field that they are about, else above the result. */

import { $, node } from "./dom.js";
import { setFieldNote } from "./field_notes.js";
import { sentence } from "./format.js";

const TITLES = {
  400: "The server refused the request.",
  404: "The server has no such model or page.",
  413: "The request is too large.",
  429: "The server is busy.",
  503: "The server cannot decode just now.",
  504: "The deadline passed before the answer was complete.",
};
const NO_KEY = [
  "This server asks for an API key.",
  "Type yours here; who runs the server can give you one. The page keeps it until you close this tab.",
];
const WRONG_KEY = [
  "The server does not know this key.", "Check that it is complete, or ask who runs the server for one.",
];

/* `field`: the name of the request's field that it is about, or null. `side`: A or B, or "" where it is of neither. */
export class UserError extends Error {
  constructor(title, message, field = null, side = "") {
    super(message);
    Object.assign(this, { title, field, side });
  }
}

export async function responseError(response, sentKey) {
  const body = await response.text();
  if (response.status === 401) return new UserError(...(sentKey ? WRONG_KEY : NO_KEY), "key");
  let error = null;
  try {
    error = JSON.parse(body).error;
  } catch {
    // Not an error object of the server: the page of a proxy, for example. The message shows its beginning.
  }
  const wait = response.headers.get("Retry-After");
  const message = sentence(error?.message || body.slice(0, 300) || response.statusText);
  const title = TITLES[response.status] ?? `The server answered ${response.status}.`;
  return new UserError(title, wait ? `${message} Wait ${wait} s.` : message, fieldToChange(response.status, error));
}

/* The field that a user can change so that the server accepts the request; null or undefined if it names none. */
function fieldToChange(status, error) {
  if (status === 413) return "prompt";
  const isTooLong = error?.code === "context_length_exceeded" && error.message.includes("max_tokens");
  return isTooLong ? "max_tokens" : error?.param;
}

/* `side`: A or B, or "" where the error is of neither. `controlOf`: from the parts of a field's path (lopa.block_size,
 * messages[0].content) to its control, or undefined. Returns whether the error is at a field. */
export function showError(failure, side, controlOf) {
  const path = failure.field ?? /^[\w.]+(?=:)/.exec(failure.message)?.[0] ?? "";
  const control = controlOf(path.split(/[.[\]]+/).filter(Boolean));
  if (control) {
    for (let part = control.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
    setFieldNote(control, "error", `${failure.title} ${failure.message}`);
    control.setAttribute("aria-invalid", "true");
    return true;
  }
  const title = failure.title ?? "Something went wrong in this page.";
  const heading = node("strong", { textContent: side ? `${side}: ${title}` : title });
  $("error").append(node("p", {}, heading, " ", node("span", { textContent: failure.message })));
  $("error").hidden = false;
  return false;
}

/* The field is edited, so its error says nothing about it any more. */
export function clearFieldError(control) {
  if (!control.hasAttribute("aria-invalid")) return;
  control.removeAttribute("aria-invalid");
  setFieldNote(control, "error", "");
}

export function clearErrors() {
  $("error").hidden = true;
  $("error").replaceChildren();
  document.querySelectorAll("[aria-invalid]").forEach(clearFieldError);
}
