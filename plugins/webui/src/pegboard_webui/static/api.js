// Calls of the server. Addresses are relative to the page, so that a proxy may put a prefix before.

import { events } from "./sse.js";

const KEY = "pegboard.key";

/** What the server refused, or that it was not reached (`status` 0). */
export class ApiError extends Error {
  constructor(status, message, code = null, wait = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.wait = wait;
  }

  /** The model is being loaded. */
  get loading() {
    return this.status === 503 && this.code === "loading";
  }

  /** How much of it is loaded, in percent, or null. */
  get progress() {
    const found = /(\d+) ?%/.exec(this.message);
    return found ? Number(found[1]) : null;
  }

  /** One line for people. */
  get title() {
    if (this.status === 0) return "The server cannot be reached";
    if (this.loading) return "The model is still being loaded";
    const titles = {
      401: "An API key is needed",
      404: "Not found",
      413: "The conversation is too large",
      429: "The server is busy",
      503: "The server cannot answer now",
    };
    return titles[this.status] ?? (this.status >= 500 ? "The server failed" : "The request was refused");
  }
}

export class Api {
  constructor(storage = sessionStorage) {
    this.storage = storage;
  }

  /** The API key, kept until the tab is closed. */
  get key() {
    return this.storage.getItem(KEY) ?? "";
  }

  set key(value) {
    if (value) this.storage.setItem(KEY, value);
    else this.storage.removeItem(KEY);
  }

  /** An answer of status 200; `ApiError` for any other. */
  async send(path, options = {}) {
    const headers = { ...options.headers };
    if (this.key) headers.authorization = `Bearer ${this.key}`;
    let reply;
    try {
      reply = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "Is it running, and is the network up?");
    }
    if (!reply.ok) throw await failure(reply);
    return reply;
  }

  async json(path) {
    return (await this.send(path)).json();
  }

  async text(path) {
    return (await this.send(path)).text();
  }

  /** The chunks of a streamed answer to `body`. */
  async* chat(body, signal) {
    const reply = await this.send("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
    let ended = false;
    try {
      for await (const data of events(reply.body)) {
        ended = data === "[DONE]";
        if (ended) return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw errorOf(chunk.error, chunk.error.code === "engine_dead" ? 503 : 500);
        yield chunk;
      }
    } catch (error) {
      if (error instanceof TypeError) throw new ApiError(0, "The connection was lost.");
      throw error;
    }
    if (!ended) throw new ApiError(0, "The answer ended before it was complete.");
  }
}

function errorOf(error, status, wait = null) {
  return new ApiError(status, error.message || "no reason was given", error.code, wait);
}

async function failure(reply) {
  const wait = Number(reply.headers.get("retry-after")) || null;
  try {
    return errorOf((await reply.json()).error ?? {}, reply.status, wait);
  } catch {
    return new ApiError(reply.status, reply.statusText || `status ${reply.status}`, null, wait);
  }
}
