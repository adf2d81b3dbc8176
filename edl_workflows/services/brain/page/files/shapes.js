// What a line chart over time consists of, as plain shapes: [tag, attributes, text or inner shape]. This page makes
// elements of them, and the tab in Airflow (`edl_workflows.airflow.tab`) elements of React.

import { brief, clock, day } from "./format.js";

const STEPS = [5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/**
 * Where times and values stand.
 *
 * @param {object} chart
 *   from, to: Unix seconds; times: Unix seconds, ascending; unit: of the values; whole: values are whole numbers;
 *   series: [{name, style: "s0".."s6", values: one per time or null, steps: drawn as steps, area: filled}];
 *   free: the axis spans the values and need not begin at 0; marks: [{time, text}].
 * @param {object} look
 *   height, margin: pixels; values: most steps of the axis of values; seconds: least step of the time axis; apart: pixels
 *   between its labels; edges: pixels without labels, left and right; dot: radius of a lone point;
 *   mark: [top, bottom] of a mark; joined: whether lines go on over missing values.
 */
export function scales(chart, look, width) {
  const { margin, height } = look;
  const values = chart.series.flatMap((one) => one.values).filter((value) => value != null);
  const axis = axisOf(values, chart.free, look.values);
  const inner = { width: width - margin.left - margin.right, height: height - margin.top - margin.bottom };
  const span = Math.max(1, chart.to - chart.from);
  return {
    width, axis,
    x: (time) => margin.left + ((time - chart.from) / span) * inner.width,
    // Stays within the picture even for values beyond the axis, which are near the largest number.
    y: (value) => margin.top + (1 - inUnit((value - axis.from) / (axis.to - axis.from))) * inner.height,
    time: (x) => chart.from + ((x - margin.left) / inner.width) * span,
  };
}

function inUnit(share) {
  return Math.min(1, Math.max(0, share));
}

/** Ends and a step of 1, 2 or 5 times a power of ten, two to `steps` of them; 0 to 1 without values. */
function axisOf(values, free, steps) {
  const least = free ? Math.min(...values) : Math.min(0, ...values);
  const most = free ? Math.max(...values) : Math.max(0, ...values);
  const span = most - least || Math.abs(most);
  if (!(span > 0)) return { from: 0, to: 1, step: 1 };
  const power = 10 ** Math.floor(Math.log10(span / 3));
  const step = power * [1, 2, 5, 10].find((times) => span / (times * power) <= steps);
  const from = Math.floor(least / step + 1e-9) * step;
  const to = Math.max(from + step, Math.ceil(most / step - 1e-9) * step);
  if ([from, to, step].every(Number.isFinite)) return { from, to, step };
  // Near the largest or smallest floating-point number, no such step exists.
  return free || least < 0 ? { from: 0, to: 1, step: 1 } : { from: 0, to: most, step: most };
}

/** All shapes; `at` is the index of the time under the cursor, or null. */
export function shapes(chart, look, scale, at) {
  const drawn = [...axes(chart, look, scale), ...marks(chart, look, scale), ...curves(chart, look, scale)];
  return at === null ? drawn : [...drawn, ...cursor(chart, look, scale, at)];
}

function axes({ from, to, unit, whole }, { height, margin, seconds, apart, edges }, { axis, x, y, width }) {
  const drawn = [["text", { x: margin.left - 8, y: 10, "text-anchor": "end" }, unit]];
  const lines = Math.round((axis.to - axis.from) / axis.step);
  for (let index = 0; index <= lines; index += 1) {
    const exact = axis.from + index * axis.step; // such as 0.1 + 0.2
    const value = Math.abs(exact) < axis.step / 1e6 ? 0 : Number(exact.toPrecision(12));
    if (whole && !Number.isInteger(value)) continue;
    drawn.push(["line", { class: index ? "grid" : "axis", x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value) }]);
    drawn.push(["text", { x: margin.left - 8, y: y(value) + 4, "text-anchor": "end" }, brief(value)]);
  }
  const most = Math.max(2, width / apart);
  const step = STEPS.find((candidate) => candidate >= seconds && (to - from) / candidate <= most) || (to - from) / 2;
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  for (let time = Math.ceil((from - zone) / step) * step + zone; time <= to; time += step) {
    if (x(time) > width - edges.right || x(time) < margin.left + edges.left) continue;
    const text = clock(time) === "00:00:00" ? day(time) : clock(time, step < 60);
    drawn.push(["line", { class: "grid", x1: x(time), x2: x(time), y1: margin.top, y2: height - margin.bottom }]);
    drawn.push(["text", { x: x(time), y: height - 6, "text-anchor": "middle" }, text]);
  }
  return drawn;
}

function marks({ marks: lines = [], from, to }, { mark: [top, bottom] }, { x }) {
  const visible = lines.filter(({ time }) => time >= from && time <= to);
  return visible.map(({ time, text }) => ["line", { class: "mark", x1: x(time), x2: x(time), y1: top, y2: bottom }, ["title", {}, text]]);
}

function curves({ times, series }, { height, margin, dot, joined }, { x, y }) {
  const gaps = joined ? new Set() : gapsOf(times);
  return series.flatMap((one) => {
    const pieces = [];
    times.forEach((time, index) => {
      const value = one.values[index];
      if (value == null) return;
      if (!pieces.length || (!joined && (gaps.has(index) || one.values[index - 1] == null))) pieces.push([]);
      pieces.at(-1).push([round(x(time)), round(y(value))]);
    });
    return pieces.flatMap((points) => {
      const [left, top] = points[0];
      if (points.length === 1) return [["circle", { class: `dot ${one.style}`, cx: left, cy: top, r: dot }]];
      const line = ["path", { class: `line ${one.style}`, d: path(points, one.steps) }];
      const area = `${path(points, one.steps)}V${height - margin.bottom}H${left}Z`;
      return one.area ? [["path", { class: `area ${one.style}`, d: area }], line] : [line];
    });
  });
}

function path(points, steps) {
  const [first, ...rest] = points;
  const on = rest.map(([left, top]) => (steps ? `H${left}V${top}` : `L${left} ${top}`));
  return [`M${first[0]} ${first[1]}`, ...on].join("");
}

function cursor({ times, series }, { height, margin }, { x, y }, at) {
  const left = x(times[at]);
  const dots = series
    .filter((one) => one.values[at] != null)
    .map((one) => ["circle", { class: `dot ${one.style}`, cx: left, cy: y(one.values[at]), r: 3.5 }]);
  return [["line", { class: "cursor", x1: left, x2: left, y1: margin.top, y2: height - margin.bottom }], ...dots];
}

/** The index of the time that is nearest. */
export function nearest(times, time) {
  let best = null;
  times.forEach((one, index) => {
    if (best === null || Math.abs(one - time) < Math.abs(times[best] - time)) best = index;
  });
  return best;
}

/** The index to which a key moves the cursor from `at`; undefined for other keys. */
export function moved(key, at, last) {
  const here = at ?? last;
  const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: last, PageUp: here - 10, PageDown: here + 10 }[key];
  return to === undefined || last < 0 ? undefined : Math.min(last, Math.max(0, to));
}

/** Gaps in the data: intervals much longer than those before and after. Old points are further apart, since they are thinned out. */
function gapsOf(times) {
  const apart = times.map((time, index) => time - times[index - 1]);
  const long = (index) => {
    const beside = [apart[index - 1], apart[index + 1]].filter((seconds) => seconds >= 0);
    return beside.length && apart[index] > 4 * Math.max(60, ...beside);
  };
  return new Set([...times.keys()].filter(long));
}

const round = (value) => Math.round(value * 10) / 10;
