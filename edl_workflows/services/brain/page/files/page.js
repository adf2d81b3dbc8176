// The page: requests the shown data every few seconds and displays it.

import { TokenNeeded, ask, token } from "./api.js";
import { by, el, nameOf, refill } from "./dom.js";
import { clock } from "./format.js";
import { PHASES, clusterChart, empty, figures, jobTable, jobView, pages, planTable, resourcesOf } from "./views.js";

const EVERY = 10_000; // milliseconds
const JOBS = 25;
const PLANS = 10;
const RANGES = [[3600, "1 h"], [21600, "6 h"], [86400, "24 h"], [604800, "7 d"]];

const state = { resource: "cpu", seconds: 3600, search: "", phase: "", jobs: 0, plans: 0 };
const shown = new Map(); // the data from which each part of the page was last built
let asked = 0; // the newest round of requests; answers to older rounds are dropped
let timer = null;
let cluster = null; // the newest answer about the cluster

/** The uid in the address; null if all jobs are shown. */
function jobOf() {
  const uid = location.hash.match(/^#\/jobs\/(.+)$/)?.[1] ?? null;
  try {
    return uid && decodeURIComponent(uid);
  } catch {
    return uid; // malformed, so it is no job's uid
  }
}

async function look() {
  clearTimeout(timer);
  const round = (asked += 1);
  const uid = jobOf();
  try {
    const answers = uid === null ? await overview() : await ask(`v1/jobs/${encodeURIComponent(uid)}`);
    if (round !== asked) return;
    show(uid, answers);
  } catch (error) {
    if (round !== asked) return;
    fail(error);
  }
  if (!by("ask").hidden) return;
  timer = setTimeout(() => (document.hidden ? null : look()), EVERY);
}

async function overview() {
  const { seconds, search, phase } = state;
  const [machines, jobs, plans] = await Promise.all([
    ask("v1/cluster", { seconds }),
    ask("v1/jobs", { limit: JOBS, offset: state.jobs, phase, search }),
    ask("v1/plans", { limit: PLANS, offset: state.plans }),
  ]);
  return { cluster: machines, jobs, plans };
}

function show(uid, answers) {
  by("ask").hidden = true;
  by("problem").hidden = true;
  by("forget").hidden = !token.get();
  by("overview").hidden = uid !== null;
  by("job").hidden = uid === null;
  if (uid === null) {
    document.title = "Brain · edl-workflows";
    cluster = answers.cluster;
    showCluster();
    showJobs(answers.jobs);
    showPlans(answers.plans);
  } else {
    document.title = `${answers.job.name} · Brain`;
    part("job", answers, () => jobView(answers));
  }
  by("freshness").textContent = `as of ${clock(answers.now ?? answers.jobs.now)}`;
  document.body.dataset.ready = uid ?? "overview";
}

/** Rebuild a part of the page if its data has changed, unless the user is reading values from a chart in it. */
function part(id, from, build) {
  const text = JSON.stringify(from);
  if (shown.get(id) === text || by(id).querySelector(".chart:focus, .chart:hover")) return;
  shown.set(id, text);
  refill(by(id), build());
}

function showCluster() {
  const resources = resourcesOf(cluster.points);
  if (resources.length && !resources.includes(state.resource)) state.resource = resources[0];
  choice("resources", resources.map((name) => [name, nameOf(name)]), "resource");
  choice("ranges", RANGES, "seconds");
  part("figures", cluster.points.at(-1) ?? null, () => figures(cluster));
  part("cluster", [cluster, state.resource], () => {
    if (cluster.points.length) return clusterChart(cluster, state.resource, state.seconds);
    if (cluster.monitored) return empty("Nothing was seen in this time. The monitor adds a sample every few seconds.");
    return empty("This Brain does not watch a cluster. Start it with ", el("code", {}, "--monitor"), " to see nodes and pods here.");
  });
}

function choice(id, values, key) {
  part(id, [values, state[key]], () =>
    values.map(([value, name]) =>
      el("button", { type: "button", "data-key": `${key} ${value}`, "aria-pressed": String(state[key] === value), onclick: () => set({ [key]: value }) }, name),
    ),
  );
}

function showJobs(jobs) {
  part("jobs", jobs, () => {
    if (jobs.jobs.length) return [jobTable(jobs), pages("jobs", paging("jobs", JOBS, jobs.total))];
    if (jobs.total) return [empty("There are no jobs on this page."), pages("jobs", paging("jobs", JOBS, jobs.total))];
    if (state.search || state.phase) return empty("No job is like this.");
    return empty("No jobs yet. A job is here as soon as its master reports, or the cluster monitor sees it.");
  });
}

function showPlans(plans) {
  part("plans", plans, () => {
    if (plans.plans.length) return [planTable(plans), pages("plans", paging("plans", PLANS, plans.total))];
    return empty("No plans yet. A plan is here when an optimizer wants a job changed, with its reason.");
  });
}

const paging = (key, limit, total) => ({ offset: state[key], limit, total, go: (offset) => set({ [key]: offset }) });

function set(change) {
  Object.assign(state, change);
  if (cluster) showCluster(); // shows the previous answer until the new one arrives
  look();
}

function fail(error) {
  if (error instanceof TokenNeeded) {
    by("refused").hidden = !token.get();
    token.forget();
    shown.clear();
    for (const id of ["overview", "job", "problem", "forget"]) by(id).hidden = true;
    for (const id of ["figures", "cluster", "jobs", "plans", "job"]) by(id).replaceChildren();
    by("ask").hidden = false;
    by("token").focus();
    document.body.dataset.ready = "token";
    return;
  }
  const back = jobOf() === null ? null : [" ", el("a", { href: "#/" }, "All jobs")];
  refill(by("problem"), error.message, back);
  by("problem").hidden = false;
  document.body.dataset.ready = "problem";
}

function soon(wait, call) {
  let waiting = null;
  return (...given) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => call(...given), wait);
  };
}

by("phase").append(...PHASES.map((name) => el("option", { value: name }, name)));
by("phase").addEventListener("change", (event) => set({ phase: event.target.value, jobs: 0 }));
by("search").addEventListener("input", soon(250, (event) => set({ search: event.target.value.trim(), jobs: 0 })));
by("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(by("token").value);
  by("token").value = "";
  by("ask").hidden = true;
  look();
});
by("forget").addEventListener("click", () => {
  token.forget();
  look();
});
window.addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#/")) return; // the link to the content
  shown.delete("job");
  by("job").replaceChildren();
  by("main").focus();
  window.scrollTo(0, 0);
  look();
});
document.addEventListener("visibilitychange", () => (document.hidden ? null : look()));
look();
