// The tabs "Elastic job" of a task instance and "Elastic jobs" of a DAG run. Airflow imports this module, finds the
// components under their names in globalThis, and gives them the ids from the address. React is Airflow's own.

import { addStyle } from "./style.js";
import { clock } from "./format.js";
import { Charts, Checkpoints, Figures, Log, Origin, Phase, Plans, Progress, Proposal, Restarts, TimeByCause } from "./parts.js";

const { createElement: h, useCallback, useEffect, useState } = globalThis.React;

const LIVE_SECONDS = 5;
const ENDED_SECONDS = 60;
const API = new URL("../", import.meta.url);

async function ask(what, { dag_id: dag, ...query }, options = {}) {
  const path = `dags/${encodeURIComponent(dag)}/${what}`;
  let answer;
  try {
    answer = await fetch(new URL(`${path}?${new URLSearchParams(query)}`, API), { cache: "no-store", credentials: "same-origin", ...options });
  } catch {
    throw new Error("Airflow can't be reached. The page goes on trying.");
  }
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  if (answer.status === 401) throw new Error("You are no longer logged in to Airflow; load the page again.");
  const detail = typeof body.detail === "string" ? body.detail : answer.statusText;
  throw new Error(answer.status === 403 && detail === "Forbidden" ? "You have no right to see the jobs of this DAG." : detail);
}

/** The document of a task instance or a run, read again every few seconds while somebody looks at it. */
function useDocument(query) {
  const [state, setState] = useState({ document: null, error: "" });
  const key = JSON.stringify(query);
  const read = useCallback(async () => {
    try {
      const document = await ask("jobs", JSON.parse(key));
      setState({ document, error: "" });
      return document.jobs.length && document.jobs.every((job) => job.finished != null) ? ENDED_SECONDS : LIVE_SECONDS;
    } catch (error) {
      setState((before) => ({ ...before, error: error.message }));
      return LIVE_SECONDS;
    }
  }, [key]);
  useEffect(() => {
    let timer = null;
    let over = false;
    let reading = false;
    const again = async () => {
      clearTimeout(timer);
      if (over || reading || document.visibilityState === "hidden") return;
      reading = true;
      const seconds = await read();
      reading = false;
      if (!over) timer = setTimeout(again, seconds * 1000);
    };
    document.addEventListener("visibilitychange", again);
    again();
    return () => {
      over = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", again);
    };
  }, [read]);
  return { ...state, read };
}

function Job({ job, now, decide, ofRun }) {
  // While a job goes well, its reason says no more than its phase.
  const told = job.message || !["Running", "Succeeded"].includes(job.phase);
  const reason = told ? [job.reason, job.message].filter(Boolean).join(": ") : "";
  return h("article", { "data-job": job.name, "data-phase": job.phase },
    h("header", null,
      h("h2", null, h("span", { className: "quiet" }, `${job.kind} ${job.namespace}/`), job.name),
      h(Phase, { phase: job.phase }), h(Origin, { ...job, now }),
      job.source === "brain" ? h("span", { className: "chip" }, "deleted; from Brain") : null,
      h("span", { className: "end" },
        ofRun ? h("span", null, job.tasks.map((task) => task.map_index < 0 ? task.task_id : `${task.task_id}[${task.map_index}]`).join(", ")) : null,
        job.dashboard ? h("a", { href: job.dashboard, target: "_blank", rel: "noopener noreferrer" }, "Dashboard") : null,
        h("span", { className: "nowrap" }, `as of ${clock(now)}`))),
    reason ? h("p", { className: `note ${job.phase === "Failed" ? "bad" : ""}` }, reason) : null,
    job.warnings.map((text) => h("p", { key: text, className: "note wait" }, text)),
    job.notes.map((text) => h("p", { key: text, className: "note" }, text)),
    h(Progress, { job }), h(Figures, { job, now }), h(Proposal, { job, now, decide }), h(Charts, { job }),
    h(Plans, { job, now, decide }),
    h("div", { className: "grid2" }, h(TimeByCause, job), h(Restarts, { ...job, now }), h(Checkpoints, { ...job, now })),
    h(Log, job));
}

function Tab({ dagId, runId, taskId, mapIndex }) {
  useEffect(addStyle, []);
  const query = { dag_id: dagId, run_id: runId, ...(taskId ? { task_id: taskId, map_index: mapIndex ?? -1 } : {}) };
  const { document: found, error, read } = useDocument(query);
  const decide = (job) => async (decision) => {
    const body = JSON.stringify({ kind: job.kind, namespace: job.namespace, name: job.name, ...decision });
    await ask("decisions", query, { method: "POST", body, headers: { "Content-Type": "application/json" } });
    await read();
  };
  return h("div", { className: "edl", "data-ready": found || error ? "yes" : null },
    error ? h("p", { className: "note bad", role: "alert" }, error) : null,
    found?.notes.map((text) => h("p", { key: text, className: "note" }, text)),
    found && !found.jobs.length && !found.notes.length
      ? h("p", { className: "quiet" }, taskId ? "This task works on no elastic job, or has not begun to." : "No task of this run works on an elastic job yet.") : null,
    found?.jobs.map((job) => h(Job, { key: `${job.kind}/${job.namespace}/${job.name}`, job, now: found.now, decide: decide(job), ofRun: !taskId })),
    found || error ? null : h("p", { className: "quiet" }, "Reading the job …"));
}

globalThis["Elastic job"] = Tab;
globalThis["Elastic jobs"] = Tab;
globalThis.AirflowPlugin = Tab;
