/* A link that carries a result, compressed, behind the #, which browsers send to no server. It never has a key. */

import { UserError } from "./errors.js";
import { packRun, unpackRun } from "./packed_run.js";

const NAME = "result=";
const MAX_LINK_CHARS = 60_000; // Messengers and mail programs cut longer ones.
const MAX_BYTES = 20_000_000; // Of a result, unpacked.

/* Raises UserError for a result that is too long. */
export async function resultFragment(runs) {
  const packed = `[${runs.map((run) => packRun(run)).join()}]`;
  const bytes = await bytesOf(new Blob([packed]).stream().pipeThrough(new CompressionStream("deflate-raw")));
  const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  if (text.length > MAX_LINK_CHARS) throw new UserError("Too long for a link: save it as JSON", "");
  return `#${NAME}${text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

/* The runs that a fragment carries, or null without one. Raises UserError for one that is damaged. */
export async function readResult(fragment) {
  if (!fragment.startsWith(`#${NAME}`)) return null;
  try {
    const text = fragment.slice(1 + NAME.length).replaceAll("-", "+").replaceAll("_", "/");
    const packed = new Blob([Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0))]);
    const bytes = await bytesOf(packed.stream().pipeThrough(new DecompressionStream("deflate-raw")));
    const runs = JSON.parse(new TextDecoder().decode(bytes)).map(unpackRun);
    if (runs.length !== 1 && runs.length !== 2) throw new RangeError("it has no runs");
    return runs;
  } catch (error) {
    console.warn(error);
    throw new UserError("The link is damaged.", "Its result cannot be read. Ask for the link again.");
  }
}

async function bytesOf(stream) {
  const parts = [];
  let size = 0;
  for await (const part of stream) {
    parts.push(part);
    size += part.length;
    if (size > MAX_BYTES) throw new RangeError("it is too large");
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}
