// Line charts over time, in SVG. The caption is the legend. It shows the values at the pointer, or else the newest.

import { clock, number } from "./format.js";
import { moved, nearest, scales, shapes } from "./shapes.js";

const { createElement: h, useEffect, useRef, useState } = globalThis.React;

const HEIGHT = 168;
const MARGIN = { top: 20, right: 10, bottom: 24, left: 52 };
const BASE = HEIGHT - MARGIN.bottom;
const LOOK = {
  height: HEIGHT, margin: MARGIN, values: 4, seconds: 5, apart: 100, edges: { left: 12, right: 28 }, dot: 2.5,
  mark: [BASE - 7, BASE + 3], // short ticks on the time axis: there may be hundreds
  joined: true,
};

/**
 * @param {object} props
 *   title: what is shown; fromZero: whether the axis begins at 0; the rest as in `scales`, whose times are those of `times`.
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
  const { times } = props;
  const chart = { ...props, free: !props.fromZero, from: times[0] ?? 0, to: times.at(-1) ?? 1 };
  const scale = scales(chart, LOOK, Math.max(200, width || 400));
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    setAt(nearest(times, scale.time(event.clientX - box.left)));
  };
  const move = (event) => {
    const to = moved(event.key, at, times.length - 1);
    if (to === undefined) return;
    event.preventDefault();
    setAt(to);
  };
  const shown = at != null && at < times.length ? at : null;
  return h("figure", { ref: figure, className: "edl-chart" },
    h(Legend, { ...props, at: shown }),
    h("svg", {
      height: HEIGHT, width: "100%", viewBox: `0 0 ${scale.width} ${HEIGHT}`, tabIndex: 0, role: "img",
      "aria-label": `${props.title} over time`, onPointerMove: point, onPointerLeave: () => setAt(null),
      onKeyDown: move, onBlur: () => setAt(null),
    }, shapes(chart, LOOK, scale, shown).map(element)));
}

function element([tag, { class: className, "text-anchor": textAnchor, ...attributes }, inner = null], key) {
  return h(tag, { key, className, textAnchor, ...attributes }, Array.isArray(inner) ? element(inner) : inner);
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
