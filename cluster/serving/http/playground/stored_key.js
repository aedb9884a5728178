/* The API key, in the browser's sessionStorage: until the tab is closed. */

const NAME = "lopa-key";

export function storeKey(key) {
  try {
    sessionStorage.setItem(NAME, key);
  } catch (error) {
    console.warn(`The key is not kept over a reload: ${error.message}`); // The browser allows the page no storage.
  }
}

export function loadKey() {
  try {
    return sessionStorage.getItem(NAME) ?? "";
  } catch (error) {
    console.warn(`A kept key cannot be read: ${error.message}`);
    return "";
  }
}
