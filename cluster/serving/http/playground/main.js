/* The playground: sends requests, and shows their runs in lanes and in the table. */

import { callApi, events } from "./api.js";
import { $, copyOnClick } from "./dom.js";
import { loadDraft, nameEntry, saveDraft } from "./drafts.js";
import { clearErrors, clearFieldError, showError } from "./errors.js";
import { Lane } from "./lane.js";
import { linkFragment, readFragment } from "./link.js";
import { doneText, endedText, outcomeOf, winnerOf } from "./outcomes.js";
import { RequestForm } from "./request_form.js";
import { Run } from "./run.js";
import { RunsTable } from "./runs_table.js";
import { forgetRuns, keepRuns, loadRuns, watchRuns } from "./stored_runs.js";
import { KEY, keep, kept } from "./tab_storage.js";

const form = new RequestForm((error) => report(error));
const table = new RunsTable(showAgain);
const newLane = () => new Lane((run) => form.continueAfter(run), (run) => form.useAgain(run));
const oneColumn = matchMedia("(max-width: 62rem)");
let lanes = [];
let stopper = null; // Of the requests in progress; null if there are none.

function setStatus(state, text) {
  $("result").dataset.state = state;
  $("status").textContent = text;
}

function showRuns(runs, withPrompt = false) {
  for (const lane of lanes.splice(runs.length)) lane.pause();
  while (lanes.length < runs.length) lanes.push(newLane());
  $("lanes").replaceChildren(...lanes.map(({ root }) => root));
  $("lanes").classList.toggle("race", runs.length > 1);
  runs.forEach((run, i) => lanes[i].show(run, withPrompt));
  table.mark(runs);
}

function showAgain(run) {
  if (stopper) return;
  clearErrors();
  setStatus(run.state, run.outcome);
  showRuns([run], true);
  scrollToResult();
}

function scrollToResult() {
  const { top, bottom } = $("status").getBoundingClientRect();
  // Where form and result are one above the other, the steps are below a status that can just be seen.
  if (oneColumn.matches || top < 0 || bottom > innerHeight) $("result").scrollIntoView();
}

/* `side`: A or B in a race, else "". */
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
    scrollToResult();
    await Promise.all(runs.map((run, i) => decode(run, requests[i])));
  } catch (error) {
    report(error);
  }
  stopper = null;
  updateButtons();
  const winner = winnerOf(runs);
  if (winner) {
    winner.place = "fewer seconds";
    laneOf(winner)?.update(winner);
  }
  const decoded = runs.filter((run) => run.frames.length || run.stats);
  for (const run of decoded) table.add(run);
  keepRuns(decoded.toReversed());
  table.mark(lanes.map(({ shown }) => shown));
  const state = runs.find(({ state }) => state !== "done")?.state ?? (runs.length ? "done" : "failed");
  setStatus(state, runs.length ? outcomeOf(runs) : notSent());
}

const notSent = () => (lanes[0].shown ? "Not sent. The run before is below." : "Not sent.");

async function decode(run, { path, body }) {
  try {
    const response = await callApi(path, form.key, {
      method: "POST", body: JSON.stringify(body), signal: stopper.signal,
    });
    for await (const chunk of events(response)) {
      const frames = run.frames.length;
      run.addChunk(chunk);
      if (!frames && run.frames.length) setStatus("running", "Decoding …");
      laneOf(run)?.update(run, run.frames.length > frames);
    }
    run.end("done", run.finish ?? "none", doneText(run));
  } catch (error) {
    if (error.name === "AbortError") run.end("stopped", "stopped", endedText(run, "Stopped"));
    else {
      run.end("failed", "failed", endedText(run, "Failed"));
      report(error, run.side);
    }
  }
  laneOf(run)?.update(run);
}

const laneOf = (run) => lanes.find(({ shown }) => shown === run);

function updateButtons() {
  $("run").setAttribute("aria-disabled", String(Boolean(stopper)));
  $("stop").setAttribute("aria-disabled", String(!stopper));
}

function stop() {
  stopper?.abort();
}

/* The form as this entry of the history had it, or as a link has it that is opened. */
function openEntry() {
  try {
    const state = loadDraft() ?? readFragment(location.hash);
    if (state) form.fill(state);
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
$("settings").open = matchMedia("(min-width: 62rem)").matches;
lanes = [newLane()];
$("lanes").append(lanes[0].root);
table.update(loadRuns());
watchRuns((runs) => table.update(runs));
openEntry();
load();
