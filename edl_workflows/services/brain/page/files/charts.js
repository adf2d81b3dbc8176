// Line charts over time, in SVG. The caption is the legend and shows the values at the cursor, which the pointer or the
// arrow keys move; without one it shows the newest.

import { el, svg } from "./dom.js";
import { clock, day, number } from "./format.js";
import { moved, nearest, scales, shapes } from "./shapes.js";

const MARGIN = { top: 22, right: 8, bottom: 24, left: 56 };

/**
 * @param {object} options
 *   title: what is shown; height: pixels; the rest as in `scales`, with the unit of a series in place of the chart's.
 */
export function chart(options) {
  const { height } = options;
  const look = {
    height, margin: MARGIN, values: 5, seconds: 60, apart: 110, edges: { left: 10, right: 24 }, dot: 2,
    mark: [MARGIN.top, height - MARGIN.bottom], joined: false,
  };
  const figure = el("figure");
  const caption = el("figcaption");
  const label = `${options.title} over time`; // set at once; the rest follows when the size is known
  const picture = svg("svg", { class: "chart", height, tabindex: 0, role: "slider", "aria-label": label });
  figure.append(caption, picture);
  let at = null; // index of the time under the cursor

  const draw = () => {
    const width = Math.max(200, Math.round(picture.clientWidth || figure.clientWidth || 800));
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren(...shapes(options, look, scales(options, look, width), at).map(element));
    tell(options, caption, picture, at);
  };
  const move = (index) => {
    at = index;
    draw();
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    move(nearest(options.times, scales(options, look, box.width).time(event.clientX - box.left)));
  });
  picture.addEventListener("pointerleave", () => move(null));
  picture.addEventListener("blur", () => move(null));
  picture.addEventListener("keydown", (event) => {
    const to = moved(event.key, at, options.times.length - 1);
    if (to === undefined) return;
    event.preventDefault();
    move(to);
  });
  new ResizeObserver(draw).observe(figure);
  return figure;
}

const element = ([tag, attributes, inner = null]) => svg(tag, attributes, Array.isArray(inner) ? element(inner) : inner);

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
