// The parts of a job's document.

import { Chart } from "./charts.js";
import { duration, moment, number, percent } from "./format.js";

const { createElement: h, Fragment, useState } = globalThis.React;

const LOOKS = { Succeeded: "good", Running: "busy", Scaling: "busy", Restarting: "wait", Pending: "wait", Suspended: "wait", Failed: "bad" };
const MAX_METRICS = 6;
/** Colour and opacity of what a job's time is spent on: related causes have one colour. */
const CAUSES = {
  training: [1, 1], queued: [5, 1], suspended: [5, 0.45], other: [5, 0.7], import: [0, 1], rendezvous: [0, 0.65], restore: [0, 0.4],
  save: [3, 1], redone: [2, 1], hang: [4, 1], masterDown: [4, 0.5],
};

const lossFirst = (names) => names.sort((a, b) => (b === "loss") - (a === "loss") || a.localeCompare(b));

const memory = (mebibytes) => (mebibytes < 1024 ? [number(mebibytes), "MiB"] : [number(mebibytes / 1024), "GiB"]);

export const Phase = ({ phase }) => h("span", { className: `chip ${LOOKS[phase] || "busy"}` }, phase);

/** Where the figures come from: the job's master, or its status, which is older. */
export function Origin({ figures, now }) {
  if (!figures) return null;
  if (figures.live) return h("span", { className: "chip good", title: "The job's master gave these figures just now." }, "live");
  const age = figures.time == null ? "no figures yet" : `figures ${duration(now - figures.time)} old`;
  return h("span", { className: "chip wait", title: figures.obstacle }, age);
}

export function Progress({ job }) {
  const { step, steps_total: total, records, records_total: all, fraction, eta_seconds: eta } = job.progress;
  if (!step && !records) return null;
  const steps = total ? `Step ${number(step)} of about ${number(total)}` : `Step ${number(step)}`;
  const data = all ? `${number(records)} of ${number(all)} records` : records ? `${number(records)} records` : "";
  const left = eta == null ? "" : `about ${duration(eta)} left`;
  return h("div", { className: "progress" },
    h("div", { className: "words" }, h("strong", null, steps), h("span", { className: "quiet" }, [data, left].filter(Boolean).join(" · "))),
    fraction == null ? null : h("div", { className: "bar", role: "progressbar", "aria-label": "Data consumed", "aria-valuenow": Math.round(fraction * 100), "aria-valuemin": 0, "aria-valuemax": 100 },
      h("span", { className: "bg0", style: { width: `${fraction * 100}%` } })));
}

export function Figures({ job, now }) {
  const count = (field) => job.roles.reduce((sum, one) => sum + one[field], 0);
  const roles = job.roles.map((one) => `${one.role} ${one.ready}/${one.desired}`).join(", ");
  const saved = job.checkpoints[0];
  const facts = [
    ["Speed", number(job.progress.speed), "steps/s"],
    job.progress.records_per_second ? ["Data", number(job.progress.records_per_second), "records/s"] : null,
    roles && !job.finished ? ["Nodes ready", `${number(count("ready"))} of ${number(count("desired"))}`, roles] : null,
    ...lossFirst(Object.keys(job.metrics)).slice(0, 3).map((name) => [name, number(job.metrics[name]), ""]),
    job.figures?.memory ? ["Memory", ...memory(job.figures.memory)] : null,
    job.goodput ? ["Goodput", percent(job.goodput.ratio), ""] : null,
    ["Restarts", number(job.restarts.total), ""],
    ["Checkpoint", saved ? `step ${number(saved.step)}` : "none", saved?.time ? moment(saved.time, now) : ""],
    job.started ? ["Time", duration((job.finished ?? now) - job.started), job.finished ? "" : "so far"] : null,
  ];
  return h("dl", { className: "figures" }, facts.filter(Boolean).map(([name, value, unit]) =>
    h("div", { key: name }, h("dt", null, name), h("dd", null, value, " ", unit ? h("small", null, unit) : null))));
}

export function Charts({ job }) {
  const times = job.points.map((point) => point.time);
  if (times.length < 2) return null;
  const marks = job.restarts.recent.map((one) => ({ time: one.time, text: `${one.subject}: ${one.cause}` }));
  const roles = [...new Set(job.points.flatMap((point) => Object.keys(point.nodes)))].sort().slice(0, 6);
  const metrics = lossFirst([...new Set(job.points.flatMap((point) => Object.keys(point.metrics)))]).slice(0, MAX_METRICS);
  const values = (name) => job.points.map((point) => point.metrics[name] ?? null);
  const drawn = metrics.filter((name) => values(name).filter((value) => value !== null).length > 1);
  const panel = (props) => h("div", { key: props.title, className: "panel" }, h(Chart, { times, marks, unit: "", ...props }));
  return h("div", { className: "grid2" },
    drawn.map((name, index) => panel({ title: name, series: [{ name, style: `s${(index + 3) % 6}`, values: values(name) }] })),
    panel({ title: "Speed", unit: "steps/s", fromZero: true, series: [{ name: "speed", style: "s0", values: job.points.map((point) => point.speed) }] }),
    roles.length ? panel({
      title: "Replicas", fromZero: true, whole: true,
      series: roles.map((role, index) => ({ name: role, style: `s${index}`, steps: true, values: job.points.map((point) => point.nodes[role] ?? 0) })),
    }) : null);
}

/** The job's time by cause. Shares are of the time without suspensions, as for goodput. */
export function TimeByCause({ goodput }) {
  if (!goodput?.spent.length) return null;
  const counted = goodput.spent.filter(({ cause }) => cause !== "suspended");
  const all = counted.reduce((sum, one) => sum + one.seconds, 0) || 1;
  const look = (cause, more) => {
    const [colour, opacity] = CAUSES[cause] || CAUSES.other;
    return { className: `bg${colour}`, style: { opacity, ...more } };
  };
  return h("section", { className: "panel" },
    h("h3", null, "Time by cause"),
    h("div", { className: "bar", style: { height: 14 } }, counted.map(({ cause, meaning, seconds }) =>
      h("span", { key: cause, title: `${cause}: ${meaning}`, ...look(cause, { width: `${(seconds / all) * 100}%` }) }))),
    h("table", { className: "spent" }, h("tbody", null, goodput.spent.map(({ cause, meaning, seconds }) => h("tr", { key: cause },
      h("td", { className: "nowrap" }, h("span", look(cause, { display: "inline-block", width: 10, height: 10, borderRadius: 2, marginInlineEnd: 8 })), cause),
      h("td", { className: "quiet" }, meaning),
      h("td", { className: "nowrap" }, duration(seconds)), h("td", { className: "nowrap quiet" }, cause === "suspended" ? "–" : percent(seconds / all)))))));
}

/** What the optimizer would change, with buttons for users who may decide. */
export function Proposal({ job, now, decide }) {
  const found = job.proposal;
  if (!found) return null;
  const ask = found.state === "open";
  const words = { open: "The job's optimizer proposes a change", automatic: "The job's optimizer is about to make a change", rejected: "Rejected plan" };
  const who = [found.optimizer, found.stage.replace("job_stage_", ""), found.time ? moment(found.time, now) : ""].filter(Boolean).join(" · ");
  return h("section", { className: `panel wide${ask ? " ask" : ""}` },
    h("h3", null, words[found.state], h("span", { className: "quiet", style: { fontWeight: 400 } }, ` ${who}`)),
    h("ul", null, found.changes.map((text) => h("li", { key: text }, h("strong", null, text)))),
    found.reasons.map((text) => h("p", { key: text }, text)),
    found.notes.map((text) => h("p", { key: text, className: "quiet" }, text)),
    found.decided ? h("p", { className: "quiet" }, `Rejected ${found.decided}`) : null,
    found.state === "automatic" ? h("p", { className: "quiet" }, "Autoscaling is on: the job's master carries it out without approval.") : null,
    ask && job.may_edit ? h("div", { className: "actions" },
      h(Decide, { look: "main", label: "Approve", run: () => decide({ action: "approve", proposal: found.id }) }),
      h(Decide, { label: "Reject", run: () => decide({ action: "reject", proposal: found.id }) })) : null,
    ask && !job.may_edit ? h("p", { className: "quiet" }, "You have no right to edit this DAG, so you can't approve or reject it.") : null);
}

/** A button that shows the error if its action failed. */
function Decide({ label, look = "", run }) {
  const [state, setState] = useState({ busy: false, error: "" });
  const press = async () => {
    setState({ busy: true, error: "" });
    try {
      await run();
      setState({ busy: false, error: "" });
    } catch (error) {
      setState({ busy: false, error: error.message });
    }
  };
  return h(Fragment, null,
    h("button", { type: "button", className: look, disabled: state.busy, onClick: press }, label),
    state.error ? h("span", { className: "bad", role: "alert" }, state.error) : null);
}

const paused = (seconds) => (seconds != null && seconds < 10 ? `${seconds.toFixed(1)} s` : duration(seconds));

export function Plans({ job, now, decide }) {
  const [some, setSome] = useState(true);
  if (!job.plans.length) return null;
  const shown = some ? job.plans.slice(0, 8) : job.plans;
  return h("section", { className: "panel wide" },
    h("h3", null, `Plans (${job.plans.length})`),
    h("div", { className: "scroll" }, h("table", null,
      h("thead", null, h("tr", null, ["Created", "Phase", "Change", "Reason", "Training paused", ""].map((text) => h("th", { key: text }, text)))),
      h("tbody", null, shown.map((plan) => h("tr", { key: plan.name },
        h("td", { className: "nowrap" }, moment(plan.created, now)),
        h("td", { className: "nowrap", title: plan.steps.map((step) => `${step.phase} ${duration((step.end ?? now) - step.start)}`).join(", ") }, h(Phase, { phase: plan.phase || "Pending" })),
        h("td", { title: plan.name }, plan.changes.join("; ")),
        h("td", null, plan.reason, plan.message ? h("div", { className: plan.phase === "Failed" ? "bad" : "quiet" }, plan.message) : null),
        h("td", { className: "nowrap" }, paused(plan.stall_seconds)),
        h("td", null, plan.may_be_rejected && job.may_edit ? h(Decide, { look: "small", label: "Reject", run: () => decide({ action: "reject", plan: plan.name }) }) : null)))))),
    shown.length < job.plans.length ? h("div", { className: "actions" }, h("button", { type: "button", onClick: () => setSome(false) }, `Show all ${job.plans.length}`)) : null);
}

export function Restarts({ restarts, now }) {
  if (!restarts.total) return null;
  const counts = Object.entries(restarts.counts).sort(([, one], [, other]) => other - one);
  const newest = restarts.recent.length < restarts.total ? `, the newest ${restarts.recent.length}` : "";
  return h("section", { className: "panel" },
    h("h3", null, `Restarts (${number(restarts.total)}${newest})`),
    counts.length ? h("div", { className: "counts" }, counts.map(([cause, count]) => h("span", { key: cause }, `${cause} `, h("strong", null, count)))) : null,
    h("div", { className: "scroll" }, h("table", null,
      h("thead", null, h("tr", null, ["Time", "What", "Cause"].map((text) => h("th", { key: text }, text)))),
      h("tbody", null, restarts.recent.map((one, index) => h("tr", { key: index },
        h("td", { className: "nowrap" }, moment(one.time, now)), h("td", null, one.subject),
        h("td", null, one.cause, one.message ? h("div", { className: "quiet" }, one.message) : null)))))));
}

export function Checkpoints({ checkpoints, now }) {
  if (!checkpoints.length) return null;
  return h("section", { className: "panel" },
    h("h3", null, "Checkpoints taken"),
    h("p", { className: "quiet" }, "The training program keeps only the newest few, so older ones may be gone."),
    h("div", { className: "scroll" }, h("table", null,
      h("thead", null, h("tr", null, ["Step", "Time", "Location"].map((text) => h("th", { key: text }, text)))),
      h("tbody", null, checkpoints.map((one) => h("tr", { key: one.uri },
        h("td", { className: "nowrap" }, number(one.step)), h("td", { className: "nowrap" }, moment(one.time, now)),
        h("td", null, one.uri, one.origin ? h("div", { className: "quiet" }, `for ${one.origin}`) : null)))))));
}

export function Log({ log }) {
  if (!log) return null;
  return h("section", { className: "panel wide" },
    h("h3", null, log.node ? `Last lines of ${log.node}` : "Log"),
    log.note ? h("p", { className: "quiet" }, log.note) : null,
    log.lines.length ? h("div", { className: "scroll tail" }, h("pre", { tabIndex: 0 }, log.lines.join("\n"))) : null);
}
