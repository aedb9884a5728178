/* Errors that the page shows: next to the field that they are about, else above the result. */

import { $, node } from "./dom.js";
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
  return new UserError(title, wait ? `${message} Wait ${wait} s.` : message, error?.param);
}

/* `fieldOf`: from the parts of a field's path (lopa.block_size, messages[0].content) to its control, or undefined. */
export function showError(failure, fieldOf) {
  const path = failure.field ?? /^[\w.]+(?=:)/.exec(failure.message)?.[0] ?? "";
  const control = fieldOf(path.split(/[.[\]]+/).filter(Boolean));
  if (control) {
    markInvalid(control, `${failure.title} ${failure.message}`);
    return control;
  }
  const [title, message] = $("error").children;
  title.textContent = failure.title ?? "Something went wrong in this page.";
  message.textContent = failure.message;
  $("error").hidden = false;
  return null;
}

function markInvalid(control, message) {
  for (let part = control.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
  const field = control.closest(".field");
  field.querySelector(".field-error")?.remove();
  const note = node("p", { className: "field-error", id: `${control.id}-error`, textContent: message });
  note.setAttribute("role", "alert");
  control.setAttribute("aria-invalid", "true");
  control.setAttribute("aria-describedby", note.id);
  field.append(note);
}

export function clearErrors() {
  $("error").hidden = true;
  for (const note of document.querySelectorAll(".field-error")) note.remove();
  for (const control of document.querySelectorAll("[aria-invalid]")) {
    control.removeAttribute("aria-invalid");
    control.removeAttribute("aria-describedby");
  }
}
