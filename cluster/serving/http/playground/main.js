/* The playground: sends requests, and shows their runs in lanes and in the table. */

import { callApi, events } from "./api.js";
import { $, copyOnClick } from "./dom.js";
import { clearErrors, showError } from "./errors.js";
import { count } from "./format.js";
import { Lane } from "./lane.js";
import { linkFragment, readFragment } from "./link.js";
import { RequestForm } from "./request_form.js";
import { Run } from "./run.js";
import { RunsTable } from "./runs_table.js";
import { loadKey, storeKey } from "./stored_key.js";
import { loadRuns, storeRuns } from "./stored_runs.js";

const form = new RequestForm();
const table = new RunsTable(showAgain);
const newLane = () => new Lane((run) => form.continueAfter(run));
let lanes = [];
let stopper = null; // Of the requests in progress; null if there are none.

function setStatus(state, text) {
  $("result").dataset.state = state;
  $("status").textContent = text;
}

function showRuns(runs) {
  for (const lane of lanes.splice(runs.length)) lane.pause();
  while (lanes.length < runs.length) lanes.push(newLane());
  $("lanes").replaceChildren(...lanes.map(({ root }) => root));
  $("lanes").classList.toggle("race", runs.length > 1);
  runs.forEach((run, i) => lanes[i].show(run));
  table.mark(runs);
}

function showAgain(run) {
  if (stopper) return;
  clearErrors();
  setStatus(run.state, run.outcome);
  showRuns([run]);
}

/* `side`: A or B in a race, else "". */
function report(error, side = "") {
  const control = showError(error, (names) => form.control(names, error.side || side));
  control?.focus({ preventScroll: true });
  control?.closest(".field").scrollIntoView({ block: "nearest" });
}

async function start() {
  if (stopper) return;
  clearErrors();
  const before = lanes.map(({ shown }) => shown).filter(Boolean);
  stopper = new AbortController();
  updateButtons();
  let runs = [];
  try {
    setStatus("running", "Waiting for the server …");
    if (!$("model").value) await form.loadModels();
    const requests = form.requests();
    runs = requests.map(({ name }) => new Run(name));
    showRuns(runs);
    if (matchMedia("(max-width: 62rem)").matches) $("result").scrollIntoView();
    await Promise.all(runs.map((run, i) => decode(run, requests[i], runs)));
  } catch (error) {
    report(error);
  }
  stopper = null;
  updateButtons();
  const decoded = runs.filter((run) => run.frames.length || run.stats);
  for (const run of decoded) table.add(run);
  storeRuns(table.runs);
  // A request that was refused leaves the last result on show, below its error.
  if (!decoded.length && before.length) showRuns(before);
  table.mark(lanes.map(({ shown }) => shown));
  setStatus(runs.find(({ state }) => state !== "done")?.state ?? (runs.length ? "done" : "failed"), outcome(runs));
}

async function decode(run, { path, body }, runs) {
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
    if (runs.length > 1) run.place = runs.some(({ place }) => place) ? "" : "finished first";
  } catch (error) {
    if (error.name === "AbortError") run.end("stopped", "stopped", `Stopped after ${count(run.frames.length)}.`);
    else {
      run.end("failed", "failed", "Failed.");
      report(error, run.side);
    }
  }
  laneOf(run)?.update(run);
}

const laneOf = (run) => lanes.find(({ shown }) => shown === run);

function doneText(run) {
  const { tokens, steps, tpf, seconds } = run.cost;
  const after = run.promptTokens === null ? "" : ` after a prompt of ${run.promptTokens}`;
  const speed = `in ${count(steps)} and ${seconds.toFixed(2)} s; ${tpf.toFixed(2)} tokens per forward`;
  return `Done: ${tokens} tokens${after}, ${speed}.`;
}

function outcome(runs) {
  if (!runs.length) return "Not sent.";
  if (runs.length === 1) return runs[0].outcome;
  if (runs.some(({ state }) => state !== "done")) return runs.map((run) => `${run.side}: ${run.outcome}`).join(" ");
  const told = ({ side, cost }) => `${side} took ${count(cost.steps)} and ${cost.seconds.toFixed(2)} s`;
  const ordered = runs.toSorted((a, b) => Number(Boolean(b.place)) - Number(Boolean(a.place)));
  return `${ordered[0].side} came first: ${ordered.map(told).join(", ")}. Both ran at the same time on the server.`;
}

function updateButtons() {
  $("run").setAttribute("aria-disabled", String(Boolean(stopper)));
  $("stop").setAttribute("aria-disabled", String(!stopper));
}

function stop() {
  stopper?.abort();
}

/* The page as a link has it. */
function openLink() {
  try {
    const state = readFragment(location.hash);
    if (!state) return;
    form.fill(state);
  } catch (error) {
    report(error);
  }
}

function link() {
  history.replaceState(null, "", linkFragment(form.state));
  return location.href;
}

function load() {
  form.loadModels().catch(report);
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
$("stop").addEventListener("click", stop);
copyOnClick($("copy-link"), link, "Link copied", "The link is in the address bar");
$("clear-runs").addEventListener("click", () => {
  table.clear();
  storeRuns([]);
});
$("model").addEventListener("change", () => form.loadDefaults().catch(report));
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    start();
  } else if (event.key === "Escape") stop();
});
$("key").value = loadKey();
$("key").addEventListener("change", () => {
  storeKey(form.key);
  clearErrors();
  load();
});
window.addEventListener("hashchange", () => {
  clearErrors();
  openLink();
});
$("settings").open = matchMedia("(min-width: 62rem)").matches;
lanes = [newLane()];
$("lanes").append(lanes[0].root);
for (const run of loadRuns().reverse()) table.add(run);
openLink();
load();
