/* Example prompts for the model in the package, which solves nothing but word problems. */

import { $, node } from "./dom.js";

/* Shown for that model alone; fetched when they are first needed. */
export async function showExamples(wanted, onChoose) {
  $("examples").hidden = !wanted;
  const chips = $("examples").querySelector(".chips");
  if (!wanted || chips.childElementCount) return;
  const examples = await (await fetch("playground/examples.json")).json();
  chips.replaceChildren(...examples.map(({ title, prompt }) => {
    const button = node("button", { type: "button", className: "small", textContent: title, title: prompt });
    button.addEventListener("click", () => onChoose(prompt));
    return button;
  }));
}
