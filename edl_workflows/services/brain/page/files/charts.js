// Line charts over time, in SVG. The caption is the legend and shows the values at the cursor, which the pointer or the
// arrow keys move; without one it shows the newest.

import { el, svg } from "./dom.js";
import { brief, clock, day, number } from "./format.js";

const MARGIN = { top: 22, right: 8, bottom: 24, left: 56 };
const STEPS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/**
 * @param {object} options
 *   title: what is shown; unit: of the values; height: pixels; from, to: Unix seconds;
 *   series: [{name, style: "s0".."s6", values: one per time or null, steps: drawn as steps, area: filled}];
 *   times: Unix seconds, ascending; marks: [{time, text}] vertical lines; whole: values are whole numbers;
 *   free: the axis spans the values, which may be negative, and need not begin at 0.
 */
export function chart(options) {
  const figure = el("figure");
  const caption = el("figcaption");
  const label = `${options.title} over time`; // set at once; the rest follows when the size is known
  const picture = svg("svg", { class: "chart", height: options.height, tabindex: 0, role: "slider", "aria-label": label });
  figure.append(caption, picture);
  let at = null; // index of the time under the cursor

  const draw = () => {
    const width = Math.max(200, Math.round(picture.clientWidth || figure.clientWidth || 800));
    const scale = scales(options, width);
    picture.setAttribute("viewBox", `0 0 ${width} ${options.height}`);
    picture.replaceChildren(...axes(options, scale, width), ...marks(options, scale), ...curves(options, scale));
    if (at !== null) picture.append(...cursor(options, scale, at));
    tell(options, caption, picture, at);
  };
  const move = (index) => {
    at = index;
    draw();
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const time = scales(options, box.width).time(event.clientX - box.left);
    move(nearest(options.times, time));
  });
  picture.addEventListener("pointerleave", () => move(null));
  picture.addEventListener("blur", () => move(null));
  picture.addEventListener("keydown", (event) => {
    const last = options.times.length - 1;
    const here = at ?? last;
    const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: last, PageUp: here - 10, PageDown: here + 10 };
    if (!(event.key in to) || last < 0) return;
    event.preventDefault();
    move(Math.min(last, Math.max(0, to[event.key])));
  });
  new ResizeObserver(draw).observe(figure);
  return figure;
}

function scales({ from, to, height, series, free }, width) {
  const values = series.flatMap((one) => one.values).filter((value) => value != null);
  const top = free && values.length ? spanning(Math.min(...values), Math.max(...values)) : { low: 0, ...nice(Math.max(0, ...values)) };
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const span = Math.max(1, to - from);
  return {
    top,
    x: (time) => MARGIN.left + ((time - from) / span) * inner.width,
    // Stays within the picture even for values beyond the axis, which are near the largest number.
    y: (value) => MARGIN.top + (1 - inUnit((value - top.low) / (top.end - top.low))) * inner.height,
    time: (x) => from + ((x - MARGIN.left) / inner.width) * span,
  };
}

function inUnit(share) {
  return Math.min(1, Math.max(0, share));
}

/** An upper end and a step: the step is 1, 2 or 5 times a power of ten, and there are two to five steps. */
function nice(largest) {
  if (!(largest > 0)) return { end: 1, step: 1 };
  const power = 10 ** Math.floor(Math.log10(largest / 3));
  const step = power * [1, 2, 5, 10].find((times) => largest / (times * power) <= 5);
  const end = Math.ceil(largest / step - 1e-9) * step;
  // Near the largest or smallest floating-point number, no such step exists.
  return Number.isFinite(end) ? { end, step } : { end: largest, step: largest };
}

/** An axis whose ends are multiples of the step. Near the largest floating-point number, the axis is from 0 to 1. */
function spanning(least, most) {
  const { step } = nice(most - least || Math.abs(most));
  const low = Math.floor(least / step + 1e-9) * step;
  const end = Math.max(low + step, Math.ceil(most / step - 1e-9) * step);
  return [low, end, step].every(Number.isFinite) ? { low, end, step } : { low: 0, end: 1, step: 1 };
}

function axes({ from, to, height, unit, whole }, { top, x, y }, width) {
  const found = [svg("text", { x: MARGIN.left - 8, y: 10, "text-anchor": "end" }, unit)];
  const lines = Math.round((top.end - top.low) / top.step);
  for (let index = 0; index <= lines; index += 1) {
    const value = Number((top.low + index * top.step).toPrecision(12)); // 0.1 + 0.2
    if (whole && !Number.isInteger(value)) continue;
    found.push(svg("line", { class: index ? "grid" : "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }));
    found.push(svg("text", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, brief(value)));
  }
  const step = STEPS.find((seconds) => (to - from) / seconds <= Math.max(2, width / 110)) || (to - from) / 2;
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  for (let time = Math.ceil((from - zone) / step) * step + zone; time <= to; time += step) {
    const midnight = clock(time) === "00:00:00";
    const text = midnight ? day(time) : clock(time, false);
    if (x(time) > width - 24 || x(time) < MARGIN.left + 10) continue;
    found.push(svg("line", { class: "grid", x1: x(time), x2: x(time), y1: MARGIN.top, y2: height - MARGIN.bottom }));
    found.push(svg("text", { x: x(time), y: height - 6, "text-anchor": "middle" }, text));
  }
  return found;
}

function marks({ marks: lines = [], from, to, height }, { x }) {
  const there = lines.filter(({ time }) => time >= from && time <= to);
  return there.map(({ time, text }) =>
    svg("line", { class: "mark", x1: x(time), x2: x(time), y1: MARGIN.top, y2: height - MARGIN.bottom }, svg("title", {}, text)),
  );
}

function curves({ times, series, height }, { x, y }) {
  const gaps = gapsOf(times);
  return series.flatMap((one) => {
    const pieces = [];
    times.forEach((time, index) => {
      const value = one.values[index];
      if (value == null) return;
      if (gaps.has(index) || one.values[index - 1] == null) pieces.push([]);
      pieces.at(-1).push([x(time), y(value)]);
    });
    return pieces.flatMap((points) => {
      const line = path(points, one.steps);
      const base = height - MARGIN.bottom;
      const area = `${line}V${base}H${points[0][0]}Z`;
      const dot = points.length === 1 ? svg("circle", { class: `dot ${one.style}`, cx: points[0][0], cy: points[0][1], r: 2 }) : null;
      return [
        one.area ? svg("path", { class: `area ${one.style}`, d: area }) : null,
        svg("path", { class: `line ${one.style}`, d: line }),
        dot,
      ].filter(Boolean);
    });
  });
}

function path(points, steps) {
  return points
    .map(([left, top], index) => {
      if (!index) return `M${round(left)} ${round(top)}`;
      return steps ? `H${round(left)}V${round(top)}` : `L${round(left)} ${round(top)}`;
    })
    .join("");
}

function cursor({ times, series, height }, { x, y }, at) {
  const left = x(times[at]);
  const line = svg("line", { class: "cursor", x1: left, x2: left, y1: MARGIN.top, y2: height - MARGIN.bottom });
  const dots = series
    .filter((one) => one.values[at] != null)
    .map((one) => svg("circle", { class: `dot ${one.style}`, cx: left, cy: y(one.values[at]), r: 3.5 }));
  return [line, ...dots];
}

function tell({ title, unit, series, times, from, to, marks: lines = [] }, caption, picture, at) {
  const index = at ?? times.length - 1;
  const said = series.map((one) => ({ ...one, text: `${number(one.values[index])} ${one.unit ?? unit}`.trim() }));
  const when = index < 0 ? "" : `${to - from > 86400 ? `${day(times[index])}, ` : ""}${clock(times[index])}`;
  caption.replaceChildren(
    el("strong", {}, title),
    ...said.map((one) => key(`line ${one.style}`, `${one.name} ${one.text}`)),
    lines.length ? key("mark", "plan") : "",
    el("span", { class: "time" }, when),
  );
  const text = said.map((one) => `${one.name} ${one.text}`).join(", ");
  const facts = { valuemin: 0, valuemax: Math.max(0, times.length - 1), valuenow: Math.max(0, index) };
  for (const [name, value] of Object.entries(facts)) picture.setAttribute(`aria-${name}`, value);
  picture.setAttribute("aria-valuetext", `${when}: ${text}`);
}

const key = (look, text) =>
  el("span", { class: "key" }, svg("svg", {}, svg("line", { class: look, x1: 0, x2: 16, y1: 5, y2: 5 })), text);

function nearest(times, time) {
  let best = null;
  times.forEach((one, index) => {
    if (best === null || Math.abs(one - time) < Math.abs(times[best] - time)) best = index;
  });
  return best;
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
