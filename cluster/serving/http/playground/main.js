/* The playground: sends requests, and shows their runs on the stage and in the table. */

import { callApi, events } from "./api.js";
import { $, copyOnClick } from "./dom.js";
import { loadDraft, nameEntry, saveDraft } from "./drafts.js";
import { clearErrors, clearFieldError, showError } from "./errors.js";
import { offerExports } from "./export.js";
import { linkFragment, readFragment } from "./link.js";
import { doneText, endedText, outcomeOf } from "./outcomes.js";
import { RequestForm } from "./request_form.js";
import { readResult } from "./result_link.js";
import { Run } from "./run.js";
import { RunsTable } from "./runs_table.js";
import { Stage } from "./stage.js";
import { forgetRuns, keepRuns, loadRuns, watchRuns } from "./stored_runs.js";
import { KEY, keep, kept } from "./tab_storage.js";

const form = new RequestForm((error) => report(error));
const table = new RunsTable((run) => showAgain([run]));
const stage = new Stage((run) => form.continueAfter(run), (run) => form.useAgain(run));
const EQUAL = "Both sides have the same settings, so this is one run and no comparison.";
let stopper = null; // Of the requests in progress; null if there are none.

function setStatus(state, text) {
  $("result").dataset.state = state;
  $("status").textContent = text;
}

function showRuns(runs, again = false) {
  stage.show(runs, again);
  table.mark(runs);
}

function showAgain(runs) {
  if (stopper) return;
  clearErrors();
  setStatus(runs[0].state, outcomeOf(runs));
  showRuns(runs, true);
  $("result").scrollIntoView();
}

/* `side`: A or B in a comparison, else "". */
function report(error, side = "") {
  const of = error.side || side;
  const isAtField = showError(error, of, (names) => form.control(names, of));
  const invalid = isAtField && document.querySelector("[aria-invalid]"); // The first one of the page.
  if (invalid) invalid.focus({ preventScroll: true });
  (invalid ? invalid.closest(".field") : $("error")).scrollIntoView({ block: "nearest" });
}

async function start() {
  if (stopper) return;
  clearErrors();
  stopper = new AbortController();
  updateButtons();
  let runs = [];
  try {
    setStatus("running", "Waiting for the server …");
    if (!$("model").value) await form.loadModels();
    const requests = form.requests();
    runs = requests.map(({ name }) => new Run(name));
    showRuns(runs);
    $("result").scrollIntoView();
    await Promise.all(runs.map((run, i) => decode(run, requests[i])));
  } catch (error) {
    report(error);
  }
  stopper = null;
  updateButtons();
  const decoded = runs.filter((run) => run.frames.length || run.stats);
  for (const run of decoded) table.add(run);
  keepRuns(decoded.toReversed());
  table.mark(stage.runs);
  const state = runs.find(({ state }) => state !== "done")?.state ?? (runs.length ? "done" : "failed");
  const equal = form.hasEqualSides && runs.length === 1 ? ` ${EQUAL}` : "";
  setStatus(state, runs.length ? outcomeOf(runs) + equal : notSent());
}

const notSent = () => (stage.runs.length ? "Not sent. The run before is below." : "Not sent.");

async function decode(run, { path, body }) {
  try {
    const response = await callApi(path, form.key, {
      method: "POST", body: JSON.stringify(body), signal: stopper.signal,
    });
    for await (const chunk of events(response)) {
      const frames = run.frames.length;
      run.addChunk(chunk);
      if (!frames && run.frames.length) setStatus("running", "Decoding …");
      stage.update();
    }
    run.end("done", run.finish ?? "none", doneText(run));
  } catch (error) {
    if (error.name === "AbortError") run.end("stopped", "stopped", endedText(run, "Stopped"));
    else {
      run.end("failed", "failed", endedText(run, "Failed"));
      report(error, run.side);
    }
  }
  stage.update();
}

function updateButtons() {
  $("run").setAttribute("aria-disabled", String(Boolean(stopper)));
  $("stop").setAttribute("aria-disabled", String(!stopper));
}

function stop() {
  stopper?.abort();
}

/* The form as this entry of the history had it, or as a link has it that is opened; and a link's result. */
async function openEntry() {
  try {
    const state = loadDraft() ?? readFragment(location.hash);
    if (state) form.fill(state);
    nameEntry();
    const runs = await readResult(location.hash);
    if (runs) {
      if (!state) form.fill({ ...runs[0].asked, b: runs[1]?.settings ?? null });
      showAgain(runs);
    }
  } catch (error) {
    report(error);
  }
  nameEntry();
  saveDraft(form.state);
}

function link() {
  history.replaceState(history.state, "", linkFragment(form.state));
  return location.href;
}

/* The models of the server; the draft then has the model that is chosen. */
function load() {
  form.loadModels().then(() => saveDraft(form.state)).catch(report);
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
$("form").addEventListener("input", ({ target }) => clearFieldError(target));
$("stop").addEventListener("click", stop);
copyOnClick($("copy-link"), link, "Link copied", "The link is in the address bar");
$("clear-runs").addEventListener("click", () => {
  table.clear();
  forgetRuns();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    start();
  } else if (event.key === "Escape") stop();
});
$("key").value = kept(KEY);
$("key").addEventListener("change", () => {
  keep(KEY, form.key);
  clearErrors();
  load();
});
// Whatever changes the form does so in one of these; listeners of what is in the document come first.
for (const type of ["input", "change", "click"]) document.addEventListener(type, () => saveDraft(form.state));
window.addEventListener("hashchange", () => {
  clearErrors();
  openEntry();
});
for (const open of document.querySelectorAll(".open-help")) {
  open.addEventListener("click", () => $("help").showModal());
}
$("help-close").addEventListener("click", () => $("help").close());
offerExports(() => stage.runs);
table.update(loadRuns());
watchRuns((runs) => table.update(runs));
openEntry();
load();
