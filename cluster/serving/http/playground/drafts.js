/* What the form has, for each entry of the tab's history: it is there after a reload and after the browser's Back. */

import { DRAFTS, keep, kept } from "./tab_storage.js";

const MAX_DRAFTS = 20;

/* `state`: of the form, for the present entry of the history. */
export function saveDraft(state) {
  const entry = history.state?.entry ?? `${Date.now()}-${Math.random()}`;
  if (!history.state) history.replaceState({ entry }, "");
  const others = drafts().filter(([name]) => name !== entry);
  keep(DRAFTS, JSON.stringify([...others, [entry, state]].slice(-MAX_DRAFTS)));
}

/* Of the present entry; undefined if it is a new one, as that of a link which was just opened. */
export function loadDraft() {
  const entry = history.state?.entry;
  return entry && drafts().find(([name]) => name === entry)?.[1];
}

const drafts = () => JSON.parse(kept(DRAFTS) || "[]");
