/* Texts in the browser's sessionStorage: they are there after a reload, until the tab is closed. */

export const KEY = "lopa-key"; // The API key.
export const DRAFTS = "lopa-drafts";

export function keep(name, text) {
  try {
    sessionStorage.setItem(name, text);
  } catch (error) {
    console.warn(`${name} is not kept over a reload: ${error.message}`); // No storage is allowed, or it is full.
  }
}

/* "" if there is none. */
export function kept(name) {
  try {
    return sessionStorage.getItem(name) ?? "";
  } catch (error) {
    console.warn(`${name} cannot be read: ${error.message}`);
    return "";
  }
}
