// Displays the answers of Brain.

import { chart } from "./charts.js";
import { el, moment, nameOf, svg, unitOf } from "./dom.js";
import { duration, number, percent, speed } from "./format.js";

export const PHASES = ["Pending", "Running", "Scaling", "Restarting", "Suspended", "Succeeded", "Failed", "Deleted"];
const LOOKS = {
  Running: "good", Succeeded: "over", Pending: "wait", Failed: "failed",
  Scaling: "busy", Restarting: "busy", Checkpointing: "busy", Checkpointed: "busy", Migrating: "busy", Verifying: "busy",
};
const NONE = "–";
const MOVING = ["Running", "Scaling", "Restarting"];
const MAIN = ["cpu", "memory"];
const GOODPUT = "Part of the time since the start that went into steps which were never lost";

const phase = (text) => el("span", { class: `phase ${LOOKS[text] || ""}` }, text);
const small = (text) => (text ? el("small", {}, text) : null);
export const empty = (...text) => el("p", { class: "empty" }, ...text);
export const linkTo = (uid) => `#/jobs/${encodeURIComponent(uid)}`;

/** The resources of the nodes: first those that all nodes have, then devices and others, pods last. */
export function resourcesOf(points) {
  const newest = points.at(-1);
  const there = Object.keys(newest ? newest.allocatable : {}).filter((name) => newest.allocatable[name] > 0);
  const rank = (name) => (MAIN.includes(name) ? MAIN.indexOf(name) : name.includes("/") ? 2 : name === "pods" ? 4 : 3);
  return there.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b)).slice(0, 6);
}

/** A few numbers about the cluster's current state. */
export function figures({ points }) {
  const newest = points.at(-1);
  if (!newest) return [];
  const shares = resourcesOf(points)
    .filter((name) => name !== "pods" && rankOfFigure(name))
    .slice(0, 3)
    .map((name) => {
      const unit = unitOf(name, newest.allocatable[name]);
      const asked = newest.requested[name] || 0;
      const of = `${number(asked / unit.one)} of ${number(newest.allocatable[name] / unit.one)} ${unit.name}`;
      return figure(`${nameOf(name)} requested`, percent(asked / newest.allocatable[name]), of);
    });
  const lost = newest.nodes - newest.nodes_ready;
  return [
    figure("Nodes ready", number(newest.nodes_ready), lost ? `${lost} not ready` : "all of them"),
    ...shares,
    figure("Pods running", number(newest.pods_running), newest.pods_pending ? `${number(newest.pods_pending)} pending` : "none pending"),
  ];
}

const rankOfFigure = (name) => MAIN.includes(name) || name.endsWith("/gpu");
const figure = (name, value, more) => el("div", {}, el("dt", {}, name), el("dd", {}, value, small(more)));

/** A chart of one resource: allocatable on the nodes, requested by pods, and used by processes. */
export function clusterChart({ points, now }, resource, seconds) {
  const values = (what) => points.map((point) => point[what][resource] ?? null);
  const [offered, asked, used] = [values("allocatable"), values("requested"), values("used")];
  const unit = unitOf(resource, Math.max(...offered, ...asked, 0));
  const scaled = (amounts) => amounts.map((amount) => (amount === null ? null : amount / unit.one));
  const series = [
    { name: "allocatable", style: "s0", values: scaled(offered), steps: true },
    { name: "requested", style: "s1", values: scaled(asked.map((amount) => amount ?? 0)), steps: true, area: true },
  ];
  if (used.some((amount) => amount !== null)) series.push({ name: "used", style: "s2", values: scaled(used) });
  return chart({
    title: nameOf(resource), unit: unit.name, height: 240, from: now - seconds, to: now, times: points.map((point) => point.time), series,
  });
}

/** Roles are explicit: a narrow window shows cells as lines, by which they would lose their table semantics. */
function table(caption, columns, rows) {
  const head = columns.map(([name, look, title]) => el("th", { scope: "col", role: "columnheader", class: look, title }, name));
  const body = rows.map((cells) => {
    const look = (index) => `${columns[index][1] ?? ""} ${cells[index] === NONE ? "none" : ""}`.trim() || null;
    const made = cells.map((cell, index) => el("td", { role: "cell", class: look(index), "data-label": columns[index][0] }, el("div", {}, cell)));
    return el("tr", { role: "row" }, made);
  });
  return el(
    "table",
    { role: "table" },
    el("caption", { class: "unseen" }, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)),
    el("tbody", { role: "rowgroup" }, body),
  );
}

export function jobTable({ jobs, now }) {
  const columns = [
    ["Job", "name"], ["Phase"], ["Replicas ready", "roles"], ["Speed, steps/s", "number"], ["Step", "number less"],
    ["Goodput", "number", GOODPUT], ["Age", "number less"], ["Why", "why"],
  ];
  return table("Jobs", columns, jobs.map((job) => jobCells(job, now)));
}

function jobCells(job, now) {
  return [
    [el("a", { href: linkTo(job.uid) }, job.name), small(`${job.namespace} · ${job.kind}`)],
    phase(job.phase),
    roles(job.finished ? {} : job.replicas),
    MOVING.includes(job.phase) && job.speed ? speed(job.speed) : NONE,
    number(job.step),
    goodput(job.goodput),
    age(job, now),
    why(job) ? el("span", { class: "clip", title: why(job) }, why(job)) : NONE,
  ];
}

function age(job, now) {
  const from = job.started ?? job.created;
  return from == null ? NONE : duration((job.finished ?? now) - from);
}

/** The reason of the newest plan, or else of the phase. */
function why(job) {
  const reasons = [...new Set(Object.values(job.reasons))].join("; ");
  return reasons || job.message || job.notes.join("; ") || job.reason;
}

function roles(replicas) {
  const names = Object.keys(replicas).sort();
  if (!names.length) return NONE;
  return names.map((name) => el("span", {}, `${name} ${number(replicas[name].ready)}/${number(replicas[name].desired)}`));
}

function goodput(part) {
  if (part == null) return NONE;
  const width = 40 * Math.min(1, Math.max(0, part));
  const bar = svg("svg", { class: "bar", "aria-hidden": "true" }, svg("rect", { width: 40, height: 6, rx: 3 }), svg("rect", { width, height: 6, rx: 3 }));
  return [percent(part), bar];
}

/** Plans with their reasons; of one job, its name is left out. */
export function planTable({ plans, now }, ofOne = false) {
  const columns = [["When", "when"], ["Job", "name"], ["Change", "lines"], ["Why", "why"], ["State", "state"]];
  const rows = plans.map((plan) => planCells(plan, now));
  const without = (cells) => cells.filter((_, index) => !(ofOne && index === 1));
  return table("Plans", without(columns), rows.map(without));
}

function planCells(plan, now) {
  const state = plan.phase || (plan.name ? "Pending" : "");
  const took = plan.finished && plan.created ? `after ${duration(plan.finished - plan.created)}` : "";
  return [
    moment(plan.created, now),
    [plan.job, small(plan.namespace)],
    plan.changes.length ? plan.changes.map((line) => el("span", {}, line)) : NONE,
    [plan.reason || el("span", { class: "quiet" }, "no reason given"), small(plan.message)],
    [state ? phase(state) : el("span", { class: "quiet" }, "advice of Brain"), small(took)],
  ];
}

/** "26–50 of 1,000", and buttons for the previous and the next rows. */
export function pages(what, { offset, limit, total, go }) {
  const to = Math.min(offset + limit, total);
  const turn = (name, key, by, possible) =>
    el("button", { type: "button", "data-key": `${what} ${key}`, disabled: !possible, onclick: () => go(by) }, name);
  return el(
    "div",
    { class: "pages" },
    el("span", {}, `${number(offset + 1)}–${number(to)} of ${number(total)} ${what}`),
    turn("Newer", "newer", Math.max(0, offset - limit), offset > 0),
    turn("Older", "older", offset + limit, to < total),
  );
}

/** One job: its state, the reason, its history and its plans. */
export function jobView({ job, points, plans, now }) {
  const facts = [
    ["Replicas ready", roles(job.finished ? {} : job.replicas)],
    ["Speed", MOVING.includes(job.phase) && job.speed ? `${speed(job.speed)} steps/s` : NONE],
    ["Step", number(job.step)],
    ["Goodput", goodput(job.goodput)],
    ...metricNames(Object.keys(job.metrics)).map((name) => [name, number(job.metrics[name])]),
    [job.finished ? "Took" : "Age", age(job, now)],
  ];
  return [
    el("p", {}, el("a", { href: "#/" }, "← All jobs")),
    el("div", { class: "title" }, el("h1", {}, `${job.namespace}/${job.name}`), phase(job.phase)),
    el("p", { class: "quiet" }, job.kind, job.created == null ? null : [", created ", moment(job.created, now)]),
    el("p", { class: "message" }, [job.reason, job.message].filter(Boolean).join(": ")),
    el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: name === "Replicas ready" ? "roles" : null }, value)))),
    optimizer(job),
    section("Over time", el("div", { class: "panel" }, past(points, plans, now, job.finished))),
    section("Plans", el("div", { class: "panel" }, plans.length ? planTable({ plans, now }, true) : empty("No plan so far."))),
  ];
}

const section = (title, ...content) => el("section", { "aria-label": title }, el("div", { class: "head" }, el("h2", {}, title)), ...content);

function optimizer(job) {
  const reasons = Object.entries(job.reasons);
  if (!reasons.length && !job.notes.length && !job.stage) return null;
  const who = job.optimizer === "brain" ? "Brain" : "the job's master";
  const said = reasons.map(([of, text]) => [el("dt", {}, of), el("dd", {}, text)]);
  const notes = job.notes.map((text) => [el("dt", { class: "quiet" }, "unchanged"), el("dd", { class: "quiet" }, text)]);
  const nothing = reasons.length || job.notes.length ? null : el("p", { class: "quiet" }, "Nothing would change now.");
  const stage = job.stage ? el("span", { class: "quiet" }, `stage: ${job.stage.replace(/^job_stage_/, "").replaceAll("_", " ")}`) : null;
  return el(
    "section",
    { "aria-label": "What its optimizer would change" },
    el("div", { class: "head" }, el("h2", {}, `What ${who} would change`), stage),
    el("div", { class: "panel reasons" }, el("dl", {}, said, notes), nothing),
  );
}

/** Names of metrics, the loss first; at most as many as a history contains. */
const metricNames = (names) => names.sort((a, b) => (b === "loss") - (a === "loss") || a.localeCompare(b)).slice(0, 5);

/** Speed, step, metrics and nodes on one time axis, with the plans as marks. */
function past(points, plans, now, finished) {
  if (!points.length) return [empty("Nothing was reported of its training yet.")];
  const times = points.map((point) => point.time);
  const [from, to] = [times[0], Math.max(times.at(-1), finished ?? Math.min(now, times.at(-1) + 60))];
  const marks = plans.filter((plan) => plan.created).map((plan) => ({ time: plan.created, text: plan.reason || plan.changes.join("; ") }));
  const names = [...new Set(points.flatMap((point) => Object.keys(point.nodes)))].sort();
  const measured = metricNames([...new Set(points.flatMap((point) => Object.keys(point.metrics)))]);
  const common = { from, to, times, marks };
  const nodes = names.slice(0, 6).map((name, index) => ({
    name, unit: "", style: `s${index + 1}`, steps: true, values: points.map((point) => point.nodes[name] ?? 0),
  }));
  return [
    chart({ ...common, title: "Speed", unit: "steps/s", height: 150, series: [{ name: "speed", style: "s1", area: true, values: points.map((point) => point.speed) }] }),
    chart({ ...common, title: "Step", unit: "steps", height: 130, whole: true, series: [{ name: "global step", unit: "", style: "s2", values: points.map((point) => point.step) }] }),
    ...measured.map((name) =>
      chart({
        ...common, title: name, unit: "", height: 130, free: true,
        series: [{ name: "value", style: "s3", values: points.map((point) => point.metrics[name] ?? null) }],
      }),
    ),
    nodes.length ? chart({ ...common, title: "Nodes", unit: "nodes", height: 130, whole: true, series: nodes }) : null,
  ];
}
