// Line charts over time, in SVG. The caption is the legend. It shows the values at the pointer, or else the newest.

import { brief, clock, day, number } from "./format.js";

const { createElement: h, useEffect, useRef, useState } = globalThis.React;

const HEIGHT = 168;
const MARGIN = { top: 20, right: 10, bottom: 24, left: 52 };
const STEPS = [5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/**
 * @param {object} props
 *   title: what is shown; unit: of the values; times: Unix seconds, ascending;
 *   series: [{name, style: "s0".."s5", values: one per time or null, steps: drawn as steps}];
 *   marks: [{time, text}] ticks on the time axis; whole: values are whole numbers; fromZero: whether the axis begins at 0.
 */
export function Chart(props) {
  const figure = useRef(null);
  const [width, setWidth] = useState(0);
  const [at, setAt] = useState(null);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    observer.observe(figure.current);
    return () => observer.disconnect();
  }, []);
  const scale = scales(props, Math.max(200, width || 400));
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    setAt(nearest(props.times, scale.time(event.clientX - box.left)));
  };
  const move = (event) => {
    const last = props.times.length - 1;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -last, End: last }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    setAt(Math.min(last, Math.max(0, (at ?? last) + step)));
  };
  const shown = at != null && at < props.times.length ? at : null;
  return h("figure", { ref: figure, className: "edl-chart" },
    h(Legend, { ...props, at: shown }),
    h("svg", {
      height: HEIGHT, width: "100%", viewBox: `0 0 ${scale.width} ${HEIGHT}`, tabIndex: 0, role: "img",
      "aria-label": `${props.title} over time`, onPointerMove: point, onPointerLeave: () => setAt(null),
      onKeyDown: move, onBlur: () => setAt(null),
    },
      axes(props, scale), marks(props, scale), curves(props, scale), shown === null ? null : cursor(props, scale, shown)));
}

function scales({ times, series, fromZero }, width) {
  const values = series.flatMap((one) => one.values).filter((value) => value != null);
  const axis = ticks(fromZero ? Math.min(0, ...values) : Math.min(...values), Math.max(...values));
  const [from, to] = [times[0] ?? 0, times.at(-1) ?? 1];
  const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
  const span = Math.max(1, to - from);
  return {
    width, from, to, axis,
    x: (time) => MARGIN.left + ((time - from) / span) * inner.width,
    // Values outside the axis, which are near the largest number, are drawn at its ends.
    y: (value) => MARGIN.top + (1 - inUnit((value - axis.from) / (axis.to - axis.from))) * inner.height,
    time: (x) => from + ((x - MARGIN.left) / inner.width) * span,
  };
}

function inUnit(share) {
  return Math.min(1, Math.max(0, share));
}

/** Ends and a step of 1, 2 or 5 times a power of ten, two to five steps apart. Without values, or with values near the
 * largest or smallest number that there is, the axis is from 0 to 1. */
function ticks(least, most) {
  const span = most - least || Math.abs(most) || 1;
  const power = 10 ** Math.floor(Math.log10(span / 3));
  const step = power * [1, 2, 5, 10].find((times) => span / (times * power) <= 4);
  const from = Math.floor(least / step + 1e-9) * step;
  const to = Math.max(from + step, Math.ceil(most / step - 1e-9) * step);
  return [from, to, step].every(Number.isFinite) ? { from, to, step } : { from: 0, to: 1, step: 1 };
}

function axes({ unit, whole }, { axis, x, y, width, from, to }) {
  const found = [h("text", { key: "unit", x: MARGIN.left - 8, y: 10, textAnchor: "end" }, unit)];
  const count = Math.round((axis.to - axis.from) / axis.step);
  for (let index = 0; index <= count; index += 1) {
    const value = axis.from + index * axis.step;
    if (whole && !Number.isInteger(value)) continue;
    const line = { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) };
    found.push(h("line", { key: `h${index}`, className: index ? "grid" : "axis", ...line }));
    const near = Math.abs(value) < axis.step / 1e6 ? 0 : value;
    found.push(h("text", { key: `v${index}`, x: MARGIN.left - 8, y: y(value) + 4, textAnchor: "end" }, brief(near)));
  }
  const step = STEPS.find((seconds) => (to - from) / seconds <= Math.max(2, width / 100)) || (to - from) / 2;
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  for (let time = Math.ceil((from - zone) / step) * step + zone; time <= to; time += step) {
    if (x(time) > width - 28 || x(time) < MARGIN.left + 12) continue;
    const text = clock(time) === "00:00:00" ? day(time) : clock(time, step < 60);
    found.push(h("line", { key: `t${time}`, className: "grid", x1: x(time), x2: x(time), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    found.push(h("text", { key: `c${time}`, x: x(time), y: HEIGHT - 6, textAnchor: "middle" }, text));
  }
  return found;
}

/** Short ticks on the time axis: there may be hundreds. */
function marks({ marks: lines = [] }, { x, from, to }) {
  const base = HEIGHT - MARGIN.bottom;
  return lines.filter(({ time }) => time >= from && time <= to).map(({ time, text }, index) =>
    h("line", { key: `m${index}`, className: "mark", x1: x(time), x2: x(time), y1: base - 7, y2: base + 3 }, h("title", null, text)));
}

function curves({ times, series }, { x, y }) {
  return series.map((one) => {
    const points = times.map((time, index) => [x(time), one.values[index]]).filter(([, value]) => value != null);
    const steps = points.map(([left, value], index) => {
      const [across, up] = [round(left), round(y(value))];
      if (!index) return `M${across} ${up}`;
      return one.steps ? `H${across}V${up}` : `L${across} ${up}`;
    });
    if (points.length === 1) return h("circle", { key: one.name, className: `dot ${one.style}`, cx: points[0][0], cy: y(points[0][1]), r: 2.5 });
    return h("path", { key: one.name, className: `line ${one.style}`, d: steps.join("") });
  });
}

function cursor({ times, series }, { x, y }, at) {
  const left = x(times[at]);
  const dots = series.filter((one) => one.values[at] != null).map((one) =>
    h("circle", { key: one.name, className: `dot ${one.style}`, cx: left, cy: y(one.values[at]), r: 3.5 }));
  return [h("line", { key: "cursor", className: "cursor", x1: left, x2: left, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }), ...dots];
}

function Legend({ title, unit, series, times, at }) {
  const newest = (values) => values.findLast((value) => value != null);
  return h("figcaption", null,
    h("strong", null, title),
    series.map((one) => h("span", { key: one.name, className: "key" },
      h("svg", { width: 16, height: 10 }, h("line", { className: `line ${one.style}`, x1: 0, x2: 16, y1: 5, y2: 5 })),
      `${series.length > 1 ? `${one.name} ` : ""}${number(at === null ? newest(one.values) : one.values[at])} ${unit}`)),
    h("span", { className: "time" }, at === null ? "" : clock(times[at])));
}

function nearest(times, time) {
  let best = null;
  times.forEach((one, index) => {
    if (best === null || Math.abs(one - time) < Math.abs(times[best] - time)) best = index;
  });
  return best;
}

const round = (value) => Math.round(value * 10) / 10;
