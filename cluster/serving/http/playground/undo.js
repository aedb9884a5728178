/* A way back to a prompt of one's own that a button replaced before it was sent. */

import { $ } from "./dom.js";

export class Undo {
  /* `restore` is called with the state that was replaced. */
  constructor(restore) {
    this.lossless = new Set(["", $("prompt").defaultValue]); // Prompts that are not lost when they are replaced.
    $("undo").addEventListener("click", () => {
      $("undo").hidden = true;
      restore(this.replaced);
      $("prompt").focus();
    });
  }

  /* The prompt was sent, or is an example. */
  noteLossless(prompt) {
    this.lossless.add(prompt.trim());
  }

  /* Call it before a change; `replaced`: the parts of the form's state that it replaces. */
  offer(replaced) {
    if (this.lossless.has($("prompt").value.trim())) return;
    this.replaced = replaced;
    $("undo").hidden = false;
  }
}
