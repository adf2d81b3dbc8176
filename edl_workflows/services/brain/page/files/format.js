// Numbers, durations and times as text, for this page and for the tab in Airflow (`edl_workflows.airflow.tab`).

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });

/** Three significant digits; of a larger whole number all digits. */
export function number(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  return Math.abs(value) >= 100 ? whole.format(value) : short.format(value);
}

/** Steps per second, formatted so that the numbers of a column are aligned. */
export const speed = (value) => (value >= 0.1 ? one.format(value) : number(value));

/** A short form for axes: 1.5M. */
export const brief = (value) => (Math.abs(value) >= 100_000 ? compact.format(value) : number(value));

export const percent = (part) => (part == null || !Number.isFinite(part) ? "–" : `${Math.round(part * 100)} %`);

export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  const [d, h, m] = [Math.floor(s / 86400), Math.floor((s % 86400) / 3600), Math.floor((s % 3600) / 60)];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  return m ? `${m} min ${s % 60} s` : `${s} s`;
}

const two = (value) => String(value).padStart(2, "0");

/** A time of day. */
export function clock(time, seconds = true) {
  const date = new Date(time * 1000);
  return `${two(date.getHours())}:${two(date.getMinutes())}${seconds ? `:${two(date.getSeconds())}` : ""}`;
}

const days = new Intl.DateTimeFormat("en", { month: "short", day: "numeric" });
export const day = (time) => days.format(new Date(time * 1000));

/** The time of day; with the date if it is not today. */
export function moment(time, now) {
  if (time == null) return "–";
  const today = new Date(time * 1000).toDateString() === new Date(now * 1000).toDateString();
  return today ? clock(time) : `${day(time)}, ${clock(time, false)}`;
}
