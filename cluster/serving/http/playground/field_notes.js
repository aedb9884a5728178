/* Words below a field: a note, and an error. */

import { node } from "./dom.js";

/* `kind`: note or error. An empty text removes what is there. */
export function setFieldNote(control, kind, text) {
  const field = control.closest(".field");
  field.querySelector(`.field-${kind}`)?.remove();
  if (text) {
    const note = node("p", { className: `field-${kind}`, id: `${control.id}-${kind}`, textContent: text });
    if (kind === "error") note.setAttribute("role", "alert");
    field.append(note);
  }
  const notes = [...field.querySelectorAll(".field-note, .field-error")].map(({ id }) => id);
  if (notes.length) control.setAttribute("aria-describedby", notes.join(" "));
  else control.removeAttribute("aria-describedby");
}
