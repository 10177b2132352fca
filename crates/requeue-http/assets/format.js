// Formats numbers and durations for readers.

/** Formats an integer with separators between thousands. */
export function amount(number) {
  return number.toLocaleString("en");
}

/** Converts a name of the API, such as `backing_off`, to words. */
export function name(text) {
  return text.replaceAll("_", " ");
}

/** Replaces the control characters of a text, except newlines and tabs, with visible characters. */
export function printable(text) {
  const escaped = (character) => `\\x${character.charCodeAt(0).toString(16).padStart(2, "0")}`;
  return text.replaceAll("\r\n", "\n").replaceAll(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, escaped);
}

/** Formats a duration in seconds. */
export function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.9995) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(whole / unit));
  if (hours < 1) return `${minutes} min ${two(whole % 60)} s`;
  if (days < 1) return `${hours} h ${two(minutes % 60)} min`;
  return `${days} d ${two(hours % 24)} h`;
}

/** Formats the local date and time that were `ago` seconds before now. */
export function timeBefore(ago) {
  const format = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return new Date(Date.now() - ago * 1000).toLocaleString([], format);
}

/** Formats a duration in seconds that is a power of ten. */
export function power(seconds) {
  if (seconds >= 1) return `${amount(seconds)} s`;
  return seconds > 0.0009 ? `${Math.round(seconds * 1e3)} ms` : `${Math.round(seconds * 1e6)} µs`;
}

/** Formats a limit on the rate of starts, as in the API. */
export function limit({ starts, per, burst }) {
  const unit = { 1: "s", 60: "min", 3600: "h" }[per] ?? duration(per);
  return `${amount(starts)}/${unit}, burst ${amount(burst)}`;
}

/** Formats a rate in events per second. */
export function rate(number) {
  return number < 99.95 ? number.toFixed(1) : amount(Math.round(number));
}
