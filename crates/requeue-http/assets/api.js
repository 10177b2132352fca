// Sends requests to the API.

/** Sends a GET request. Returns the JSON of the response, or null if the key does not exist. */
export async function get(path, parameters, signal) {
  const url = new URL(`api/v1/${path}`, import.meta.url);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== "" && value !== false) url.searchParams.set(name, value);
  }
  const response = await fetch(url, { signal });
  if (response.status === 404) return null;
  if (!response.ok) throw new Error(`${response.status}`);
  return response.json();
}

/** Returns the parameter that identifies the key of a row, or null if the key is too long. */
export function naming(row) {
  if (row.key_base64 === null) return null;
  // A key without escapes is sent as text. Only a key with escapes contains
  // backslashes.
  return row.key.includes("\\") ? { key_base64: row.key_base64 } : { key: row.key };
}

/** Sends an action as a POST request. If it fails, throws an error with the message and the status of the response. */
export async function post(path, body, token) {
  const response = await fetch(new URL(`api/v1/${path}`, import.meta.url), {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
    body: JSON.stringify(body),
  });
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  const error = new Error(answer.error ?? `The server answered with ${response.status}.`);
  throw Object.assign(error, { status: response.status });
}
