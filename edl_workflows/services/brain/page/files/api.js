// Requests to the page's server. The token is stored for this tab only, and sent only to this server.

const KEY = "edl-brain-token";

export class TokenNeeded extends Error {}

export const token = {
  get: () => sessionStorage.getItem(KEY) || "",
  // Removes characters that tokens and headers can't have, such as the line break of a pasted token.
  set: (text) => sessionStorage.setItem(KEY, text.replace(/[^\x21-\x7e]/g, "")),
  forget: () => sessionStorage.removeItem(KEY),
};

/** The JSON at a path relative to this page; empty parameters are left out. */
export async function ask(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value != null);
  const query = new URLSearchParams(given).toString();
  const headers = { Accept: "application/json" };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  let answer;
  try {
    answer = await fetch(query ? `${path}?${query}` : path, { headers, cache: "no-store" });
  } catch {
    throw new Error("Brain can't be reached. The page goes on trying.");
  }
  if (answer.status === 401) throw new TokenNeeded();
  if (!answer.ok) throw new Error(`Brain can't answer (${answer.status}): ${await reason(answer)}`);
  return answer.json();
}

async function reason(answer) {
  try {
    const body = await answer.json();
    return String(body.error ?? body.message ?? body.detail ?? answer.statusText).slice(0, 500);
  } catch {
    return answer.statusText || "no reason given";
  }
}
