// The view that the address of the page describes: a list of keys, or one key.

const NAMES = ["state", "q", "failed", "error", "sort", "order", "key", "key_base64"];

/** Returns the view of the current address. */
export function read() {
  const parameters = new URLSearchParams(location.search);
  return Object.fromEntries(NAMES.map((name) => [name, parameters.get(name) ?? ""]));
}

/** Returns the address of a view. */
export function address(view) {
  const parameters = new URLSearchParams();
  for (const name of NAMES) if (view[name]) parameters.set(name, view[name]);
  const search = parameters.toString();
  return search === "" ? location.pathname : `?${search}`;
}

/** Writes a view to the address of the page. If `enters` is true, adds an entry to the history of the browser. */
export function write(view, enters) {
  if (address(view) === address(read())) return;
  if (enters) history.pushState(null, "", address(view));
  else history.replaceState(null, "", address(view));
}

/** Returns true if the view is the page of a key. */
export function isKey(view) {
  return view.key !== "" || view.key_base64 !== "";
}
