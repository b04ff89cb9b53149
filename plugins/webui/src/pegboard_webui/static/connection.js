// Whether the server answers, which models it has, and the key that it wants.

import { ApiError } from "./api.js";
import { byId, el } from "./dom.js";

const CALM = 15_000;

/** Watches the server; `onReady()` is called whenever it begins to answer. */
export class Connection {
  constructor(api, onReady) {
    this.api = api;
    this.onReady = onReady;
    this.state = "";
    this.models = new Map();
    this.timer = 0;
    this.select = byId("model");
    this.dialog = byId("key-dialog");
    byId("open-key").addEventListener("click", () => this.askKey(false));
    byId("banner-action").addEventListener("click", () => (this.state === "locked" ? this.askKey(false) : this.check()));
    this.listenToDialog();
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.check(); });
  }

  get model() {
    return this.select.value;
  }

  /** Longest context of the chosen model, in tokens, or undefined. */
  get limit() {
    return this.models.get(this.model)?.max_model_len;
  }

  /** Ask the server how it is, and again after a while. */
  async check() {
    clearTimeout(this.timer);
    let wait = CALM;
    try {
      if (this.state === "ready") await this.api.send("health");
      else this.ready((await this.api.json("v1/models")).data);
    } catch (error) {
      wait = this.failed(error);
    }
    clearTimeout(this.timer);
    if (wait) this.timer = setTimeout(() => { if (!document.hidden) this.check(); }, wait);
  }

  /** Look at an error of any call: some tell how the server is. Returns when to ask again, or 0. */
  failed(error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) {
      this.show("locked", "bad", error.title, this.api.key ? "The server does not know the key that was given." : "This server answers only with one of its keys.", "Enter a key");
      return 0;
    }
    if (error.loading) {
      this.show("loading", "busy", error.title, error.progress === null ? "…" : `${error.progress} %`, "");
      this.progress(error.progress);
      return 1000;
    }
    this.show("down", "bad", error.title, error.message, "Try now");
    return 5000;
  }

  /** An error of another call: ask again soon if the server may be the reason. */
  note(error) {
    if (![0, 401, 503].includes(error.status)) return;
    clearTimeout(this.timer);
    const wait = this.failed(error);
    if (wait) this.timer = setTimeout(() => this.check(), wait);
  }

  ready(models) {
    const before = this.model;
    this.models = new Map(models.map((model) => [model.id, model]));
    this.select.replaceChildren(...models.map((model) => el("option", { value: model.id, title: model.id }, shortName(model.id))));
    if (this.models.has(before)) this.select.value = before;
    this.select.disabled = models.length < 2;
    this.select.title = this.model;
    this.state = "ready";
    byId("dot").className = "dot ready";
    byId("banner").hidden = true;
    this.onReady();
  }

  show(state, dot, title, detail, action) {
    this.state = state;
    byId("dot").className = `dot ${dot}`;
    if (!this.models.size) this.select.replaceChildren(el("option", { value: "" }, state === "loading" ? "loading …" : "not connected"));
    byId("banner").className = `banner ${dot === "bad" ? "bad" : ""}`;
    byId("banner").hidden = false;
    byId("banner-title").textContent = `${title}.`;
    byId("banner-detail").textContent = detail;
    byId("banner-action").textContent = action;
    byId("banner-action").hidden = !action;
    byId("banner-progress").hidden = state !== "loading";
  }

  progress(percent) {
    const bar = byId("banner-progress");
    if (percent === null) bar.removeAttribute("value");
    else bar.value = percent;
  }

  /** Open the dialog for the key. */
  askKey(wrong) {
    byId("key").value = this.api.key;
    byId("key-fault").hidden = !wrong;
    byId("key-forget").hidden = !this.api.key;
    if (!this.dialog.open) this.dialog.showModal();
    byId("key").select();
  }

  listenToDialog() {
    byId("key-cancel").addEventListener("click", () => this.dialog.close());
    byId("key-forget").addEventListener("click", () => this.useKey(""));
    byId("key-save").addEventListener("click", () => this.useKey(byId("key").value.trim()));
    byId("key").addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.useKey(byId("key").value.trim());
    });
  }

  async useKey(key) {
    this.api.key = key;
    this.state = "";
    await this.check();
    if (this.state === "locked" && key) this.askKey(true);
    else this.dialog.close();
  }
}

function shortName(id) {
  return id.replace(/\/+$/, "").split("/").pop();
}
