// Elements, and names of resources. Text is inserted only as text: nothing here parses HTML.

import * as text from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null));
  return element;
}

export const el = (tag, attributes = {}, ...children) => make(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => make(document.createElementNS(SVG, tag), attributes, children);
export const by = (id) => document.getElementById(id);

/** Replace the children. A focused link or button keeps the focus if it is still there. */
export function refill(parent, ...children) {
  const active = parent.contains(document.activeElement) ? document.activeElement : null;
  const mark = active && (active.getAttribute("href") || active.dataset.key);
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child != null));
  if (!mark) return;
  const same = [...parent.querySelectorAll("a[href], [data-key]")];
  same.find((one) => (one.getAttribute("href") || one.dataset.key) === mark)?.focus({ preventScroll: true });
}

const BYTES = [[2 ** 50, "PiB"], [2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"]];

/** The unit in which amounts of a resource up to `largest` are shown: its size and its name. */
export function unitOf(resource, largest) {
  if (resource === "cpu") return { one: 1, name: "cores" };
  if (resource === "memory" || resource.endsWith("storage") || resource.startsWith("hugepages-")) {
    const [one, name] = BYTES.find(([size]) => largest >= 4 * size) || BYTES.at(-1);
    return { one, name };
  }
  return { one: 1, name: resource === "pods" ? "pods" : resource.endsWith("/gpu") ? "GPUs" : "pieces" };
}

const NAMES = { cpu: "CPU", memory: "Memory", pods: "Pods", "ephemeral-storage": "Local storage" };

/** A resource's name for people: ``nvidia.com/gpu`` is a GPU. */
export const nameOf = (resource) => NAMES[resource] || (resource.endsWith("/gpu") ? "GPU" : resource);

/** A time as an element, with the full time in its title and its datetime attribute. */
export function moment(time, now) {
  if (time == null) return text.moment(time, now);
  const date = new Date(time * 1000);
  const whole = { datetime: date.toISOString(), title: date.toLocaleString(), class: "nowrap" };
  return el("time", whole, text.moment(time, now));
}
