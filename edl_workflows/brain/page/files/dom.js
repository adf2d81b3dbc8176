// Elements and numbers. Text reaches the page as text only: nothing here reads HTML.

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

/** Put new children in; who had the focus keeps it where the same link or button is still there. */
export function refill(parent, ...children) {
  const active = parent.contains(document.activeElement) ? document.activeElement : null;
  const mark = active && (active.getAttribute("href") || active.dataset.key);
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child != null));
  if (!mark) return;
  const same = [...parent.querySelectorAll("a[href], [data-key]")];
  same.find((one) => (one.getAttribute("href") || one.dataset.key) === mark)?.focus({ preventScroll: true });
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** Three digits where that says enough, else all of a whole number. */
export function number(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  return Math.abs(value) >= 100 ? whole.format(value) : short.format(value);
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });

/** As short as an axis needs it: 1.5M. */
export const brief = (value) => (Math.abs(value) >= 100_000 ? compact.format(value) : number(value));

/** Steps per second, so that the numbers of a column stand under each other. */
export const speed = (value) => (value >= 0.1 ? one.format(value) : number(value));

export const percent = (part) => (part == null || !Number.isFinite(part) ? "–" : `${Math.round(part * 100)} %`);

const BYTES = [[2 ** 50, "PiB"], [2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"]];

/** How amounts of a resource are shown, for values up to `largest`: what one unit is, and its name. */
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

export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  const [d, h, m] = [Math.floor(s / 86400), Math.floor((s % 86400) / 3600), Math.floor((s % 3600) / 60)];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  return m ? `${m} min ${s % 60} s` : `${s} s`;
}

const two = (value) => String(value).padStart(2, "0");

/** A time of day, with seconds or without. */
export function clock(time, seconds = true) {
  const date = new Date(time * 1000);
  return `${two(date.getHours())}:${two(date.getMinutes())}${seconds ? `:${two(date.getSeconds())}` : ""}`;
}

const dayFormat = new Intl.DateTimeFormat("en", { month: "short", day: "numeric" });
export const day = (time) => dayFormat.format(new Date(time * 1000));

/** A moment: today's by its time, others with their day; the whole of it for the title and for machines. */
export function moment(time, now) {
  if (time == null) return "–";
  const date = new Date(time * 1000);
  const today = date.toDateString() === new Date(now * 1000).toDateString();
  const text = today ? clock(time) : `${day(time)}, ${clock(time, false)}`;
  return el("time", { datetime: date.toISOString(), title: date.toLocaleString(), class: "nowrap" }, text);
}
