// What the server is doing: from /metrics where it is answered, else what /load tells.

import { ApiError } from "./api.js";
import { byId, el, seconds, short, svg } from "./dom.js";

const PERIOD = 2000;
const KEPT = 60; // samples in a curve: two minutes
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;

/** Sums of the samples of each metric, its prefix left out: all models and engines together. */
export function parseMetrics(text) {
  const sums = new Map();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!found || found[1].endsWith("_bucket")) continue;
    const name = found[1].replace(/^[a-z]+:/, "");
    const value = Number(found[3]);
    if (Number.isFinite(value)) sums.set(name, (sums.get(name) ?? 0) + value);
  }
  return sums;
}

export class Metrics {
  constructor(api) {
    this.api = api;
    this.history = [];
    this.before = null;
    this.answer = {};
    this.timer = 0;
    this.drawing = false;
    this.root = byId("pane-metrics");
    document.addEventListener("visibilitychange", () => this.watch());
  }

  /** Ask as long as somebody looks. */
  watch() {
    clearTimeout(this.timer);
    if (this.root.hidden || document.hidden || !this.root.offsetParent) return;
    this.sample().finally(() => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.watch(), PERIOD);
    });
  }

  /** What the current answer measures. */
  show(stats, limit) {
    this.answer = { ...stats, limit };
    if (this.root.hidden || this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.draw();
    });
  }

  async sample() {
    try {
      this.take(await this.read());
      this.fault = null;
    } catch (error) {
      this.fault = error instanceof ApiError ? error : new ApiError(0, "The metrics cannot be read.");
    }
    this.draw();
  }

  async read() {
    if (!this.lacking) {
      try {
        return parseMetrics(await this.api.text("metrics"));
      } catch (error) {
        if (error.status !== 404) throw error;
        this.lacking = true;
      }
    }
    const load = await this.api.json("load");
    return new Map([["load", load.server_load]]);
  }

  take(sums) {
    const now = performance.now();
    const made = sums.get("generation_tokens_total");
    const span = this.before && (now - this.before.now) / 1000;
    const rate = span && made !== undefined && this.before.made !== undefined ? Math.max(0, (made - this.before.made) / span) : NaN;
    this.before = { now, made };
    this.sums = sums;
    this.rate = rate;
    const curve = made === undefined ? sums.get("load") : rate;
    if (Number.isFinite(curve)) this.history = [...this.history, curve].slice(-KEPT);
  }

  draw() {
    const parts = [el("h2", {}, "Current answer"), this.answerTiles(), el("h2", {}, "Server")];
    if (this.fault) parts.push(el("p", { className: "fault" }, `${this.fault.title}. ${this.fault.message}`));
    else if (this.sums) parts.push(this.serverTiles());
    else parts.push(el("p", { className: "note" }, "…"));
    if (this.lacking) parts.push(el("p", { className: "note" }, "This server answers no /metrics; only its load is shown."));
    this.root.replaceChildren(...parts);
  }

  answerTiles() {
    const { first, rate, tokens, total, limit } = this.answer;
    return el(
      "div",
      { className: "tiles" },
      tile("first", "First token after", seconds(first)),
      tile("rate", "Speed", short(rate), "tokens/s"),
      tile("tokens", "Tokens", short(tokens ?? NaN)),
      tile("context", "Context", short(total ?? NaN), limit ? `of ${short(limit)}` : ""),
    );
  }

  serverTiles() {
    const sums = this.sums;
    if (sums.has("load")) return el("div", { className: "tiles" }, broad("load", "Requests", short(sums.get("load")), "", this.history));
    const get = (...names) => names.map((name) => sums.get(name)).find((value) => value !== undefined) ?? NaN;
    const cache = get("kv_cache_usage_perc", "gpu_cache_usage_perc");
    const hits = get("prefix_cache_hits_total") / get("prefix_cache_queries_total");
    return el(
      "div",
      { className: "tiles" },
      broad("generated", "Generated", short(this.rate), "tokens/s", this.history),
      tile("running", "Running", short(get("num_requests_running"))),
      tile("waiting", "Waiting", short(get("num_requests_waiting"))),
      share("cache", "KV cache", cache),
      share("hits", "Prefix hits", hits),
      tile("ttft", "First token, mean", seconds(mean(sums, "time_to_first_token_seconds"))),
      tile("latency", "Answer, mean", seconds(mean(sums, "e2e_request_latency_seconds"))),
      tile("prompts", "Prompt tokens", short(get("prompt_tokens_total"))),
      tile("made", "Generated tokens", short(get("generation_tokens_total"))),
    );
  }
}

function mean(sums, name) {
  return sums.get(`${name}_sum`) / sums.get(`${name}_count`);
}

function tile(id, name, value, unit = "", extra = null, kind = "tile") {
  const shown = el("div", { className: "value", data: { metric: id } }, value, unit ? el("span", { className: "unit" }, ` ${unit}`) : null);
  return el("div", { className: kind }, el("div", { className: "name" }, name), shown, extra);
}

function broad(id, name, value, unit, history) {
  return tile(id, name, value, unit, curve(history), "tile broad");
}

function share(id, name, value) {
  const known = Number.isFinite(value);
  const bar = known ? el("progress", { max: 1, value: Math.min(1, value), "aria-label": name }) : null;
  return tile(id, name, known ? short(100 * value) : "–", known ? "%" : "", bar);
}

function curve(history) {
  const highest = Math.max(1, ...history);
  const points = history.map((value, index) => `${(100 * (index + KEPT - history.length)) / (KEPT - 1)},${39 - (37 * value) / highest}`);
  const picture = svg("svg", { class: "spark", viewBox: "0 0 100 40", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (points.length > 1) {
    const start = points[0].split(",")[0];
    picture.append(svg("polygon", { class: "area", points: `${start},40 ${points.join(" ")} 100,40` }), svg("polyline", { class: "line", points: points.join(" ") }));
  }
  return picture;
}
