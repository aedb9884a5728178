/* What the form has, for each entry of the tab's history: it is there after a reload and after the browser's Back. */

import { DRAFTS, keep, kept } from "./tab_storage.js";

const MAX_DRAFTS = 20;

/* Give the present entry of the history a name, if it is a new one. */
export function nameEntry() {
  if (!history.state) history.replaceState({ entry: `${Date.now()}-${Math.random()}` }, "");
}

/* `state`: of the form, for the present entry of the history. One without a name is a link that the form does not show yet:
 * the browser reports it after it has made the entry. */
export function saveDraft(state) {
  const entry = history.state?.entry;
  if (!entry) return;
  const others = drafts().filter(([name]) => name !== entry);
  keep(DRAFTS, JSON.stringify([...others, [entry, state]].slice(-MAX_DRAFTS)));
}

/* The draft of the present entry; undefined for a new entry, such as a link that was just opened. */
export function loadDraft() {
  const entry = history.state?.entry;
  return entry && drafts().find(([name]) => name === entry)?.[1];
}

const drafts = () => JSON.parse(kept(DRAFTS) || "[]");
