/* Elements of the page. Text from prompts, models and servers becomes text nodes and properties, never markup. */

export const $ = (id) => document.getElementById(id);

export function node(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

/* The text is in the clipboard, if this resolves. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Over plain HTTP from another machine browsers have no navigator.clipboard.
  const holder = document.body.appendChild(node("textarea", { value: text, className: "unseen" }));
  holder.select();
  const copied = document.execCommand("copy");
  holder.remove();
  if (!copied) throw new Error("the browser did not copy it");
}

/* Copy what `text` returns, or a promise of it, when the button is pressed, and say on it for a moment how that went. */
export function copyOnClick(button, text, done = "Copied", refused = "Not copied: the browser refused") {
  const name = button.textContent;
  button.addEventListener("click", async () => {
    try {
      await copyText(await text());
      button.textContent = done;
    } catch (error) {
      button.textContent = error.title ?? refused; // The title of a UserError.
    }
    setTimeout(() => (button.textContent = name), 2000);
  });
}
