/* Requests to the server that this page is from. */

import { UserError, responseError } from "./errors.js";
import { sentence } from "./format.js";

/* `key`: the API key, or "". Raises UserError, and the browser's AbortError. */
export async function callApi(path, key, options = {}) {
  // A header is Latin-1; a browser refuses to send anything else.
  if (/[^\x20-\x7e\xa0-\xff]/.test(key)) {
    throw new UserError("This key cannot be sent.", "It has characters that no API key has. Type it again.", "key");
  }
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new UserError("The server cannot be reached.", `${sentence(error.message)} See that it runs, then try again.`);
  }
  if (!response.ok) throw await responseError(response, Boolean(key));
  return response;
}

/* The objects of a stream of server-sent events, up to [DONE]. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new UserError("The connection broke.", `${sentence(error.message)} Try again.`);
    }
    if (read.done) throw new UserError("The connection ended early.", "Try again.");
    const parts = (rest + read.value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
