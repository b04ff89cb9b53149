// The page: puts its parts together.

import { runAnswer, bodyOf } from "./answer.js";
import { Api } from "./api.js";
import { Connection } from "./connection.js";
import { byId, saveFile, toast } from "./dom.js";
import { Drawers } from "./drawers.js";
import { Metrics } from "./metrics.js";
import { Plugins } from "./plugins.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Store, asMarkdown, fileName } from "./store.js";
import { Thread, factsOf } from "./thread.js";

const SAVE_EVERY = 1000;
const KEYS_HINT = matchMedia("(hover: hover)").matches ? "Enter sends, Shift+Enter begins a new line" : "";
const THEMES = { auto: "as the system", light: "light", dark: "dark" };

class App {
  constructor() {
    this.store = new Store();
    this.store.onFull = () => toast("This browser keeps no more: delete conversations.");
    this.api = new Api();
    this.runs = new Map(); // id of a conversation -> what aborts its answer
    this.input = byId("input");
    this.thread = new Thread({
      ask: (text) => this.ask(text),
      regenerate: () => this.regenerate(),
      goOn: () => this.goOn(),
      edit: (index, text) => this.edit(index, text),
      unlock: () => this.connection.askKey(false),
    });
    this.sidebar = new Sidebar(this.store, {
      open: (id) => this.open(this.store.get(id)),
      rename: (id, title) => this.rename(id, title),
      save: (id) => this.saveChat(id),
      remove: (id) => this.remove(id),
    });
    this.metrics = new Metrics(this.api);
    this.plugins = new Plugins(this.api);
    this.connection = new Connection(this.api, () => this.connected());
    const settings = this.store.settings;
    this.settings = new Settings(settings.parameters ?? {}, {
      changed: (parameters) => this.keep({ parameters }),
      system: (text, usual) => this.setSystem(text, usual),
    });
    this.drawers = new Drawers(settings.layout, (layout) => this.keep({ layout }), (tab) => this.tabShown(tab));
    this.listen();
    this.setTheme(settings.theme ?? "auto");
    this.open(this.store.get(location.hash.slice(1)) ?? this.store.list()[0] ?? this.fresh());
    this.connection.check();
    if (matchMedia("(hover: hover)").matches) this.input.focus(); // elsewhere a keyboard would rise
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => { event.preventDefault(); this.submit(); });
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.submit(); }
    });
    this.input.addEventListener("input", () => this.grow());
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => this.startNew());
    byId("export-all").addEventListener("click", () => this.exportAll());
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => this.importFile(event.target));
    byId("theme").addEventListener("click", () => this.nextTheme());
    byId("model").addEventListener("change", () => this.drawState());
    document.addEventListener("keydown", (event) => this.keys(event));
    addEventListener("storage", (event) => this.otherTab(event.key));
    addEventListener("pagehide", () => { for (const id of this.runs.keys()) this.store.save(this.store.get(id)); });
  }

  keys(event) {
    if (event.key === "Escape" && !event.defaultPrevented && !byId("key-dialog").open) {
      if (!this.drawers.escape()) this.stop();
    }
    if (event.altKey && !event.ctrlKey && event.code === "KeyN") { event.preventDefault(); this.startNew(); }
    const typing = event.target.closest("input, textarea, select, dialog");
    if (event.key === "/" && !typing) { event.preventDefault(); this.input.focus(); }
  }

  // Conversations

  fresh() {
    return this.store.create(this.store.settings.system ?? "");
  }

  open(chat) {
    this.chat = chat;
    history.replaceState(null, "", chat.messages.length ? `#${chat.id}` : location.pathname + location.search);
    document.title = chat.title ? `${chat.title} – Pegboard` : "Pegboard";
    this.thread.show(chat);
    this.settings.show(chat, this.store.settings.system ?? "");
    this.sidebar.draw(chat.id);
    this.drawState();
    if (this.drawers.over === "sidebar") this.drawers.close("sidebar");
  }

  startNew() {
    this.open(this.fresh());
    this.input.focus();
  }

  rename(id, title) {
    const chat = this.store.get(id);
    Object.assign(chat, { title, named: true });
    this.store.save(chat);
    if (chat === this.chat) document.title = `${title} – Pegboard`;
  }

  remove(id) {
    const chat = this.store.get(id);
    this.runs.get(id)?.abort();
    this.store.remove(id);
    if (chat === this.chat) this.open(this.store.list()[0] ?? this.fresh());
    else this.sidebar.draw();
    toast("The conversation was deleted.", () => { this.store.save(chat); this.open(chat); });
  }

  saveChat(id) {
    const chat = this.store.get(id);
    saveFile(`${fileName(chat.title)}.md`, asMarkdown(chat), "text/markdown");
  }

  exportAll() {
    const text = JSON.stringify({ format: "pegboard-chats", version: 1, chats: this.store.list() }, storable, 2);
    saveFile("pegboard-chats.json", text, "application/json");
  }

  async importFile(field) {
    const [file] = field.files;
    field.value = "";
    if (!file) return;
    let count = 0;
    try {
      count = this.store.import(JSON.parse(await file.text()));
    } catch {
      // not JSON: nothing is taken in
    }
    toast(count ? `${count} conversation${count === 1 ? "" : "s"} imported.` : "This file holds no conversations.");
    this.sidebar.draw();
  }

  otherTab(key) {
    const id = key?.slice("pegboard.chat.".length);
    if (this.runs.has(id) || !this.store.reload(key)) return;
    if (id === this.chat.id && this.store.get(id)) this.open(this.store.get(id));
    else this.sidebar.draw();
  }

  // Asking

  submit() {
    const text = this.input.value.trim();
    if (!text || this.runs.has(this.chat.id)) return;
    if (!this.allowed()) return;
    this.input.value = "";
    this.grow();
    this.ask(text);
  }

  allowed() {
    const wrong = this.settings.invalid;
    if (!wrong) return true;
    this.drawers.select("settings");
    if (!this.drawers.isOpen("panel")) this.drawers.toggle("panel");
    wrong.focus();
    wrong.reportValidity();
    return false;
  }

  ask(text) {
    const { chat } = this;
    if (this.runs.has(chat.id)) return;
    chat.messages.push({ role: "user", content: text });
    if (!chat.named && !chat.title) chat.title = text.split("\n")[0].slice(0, 60);
    this.answer(chat);
  }

  edit(index, text) {
    if (this.runs.has(this.chat.id)) return;
    this.chat.messages.length = index;
    this.ask(text);
  }

  regenerate() {
    const { chat } = this;
    if (this.runs.has(chat.id) || !this.allowed()) return;
    if (chat.messages.at(-1)?.role === "assistant") chat.messages.pop();
    this.answer(chat);
  }

  goOn() {
    const { chat } = this;
    if (this.runs.has(chat.id) || !this.allowed()) return;
    this.run(chat, bodyOf(chat, this.settings.values, this.connection.model, true), chat.messages.at(-1));
  }

  answer(chat) {
    const body = bodyOf(chat, this.settings.values, this.connection.model, false);
    const message = { role: "assistant", content: "", reasoning: "", model: "", finish: "", stats: {} };
    chat.messages.push(message);
    this.run(chat, body, message);
  }

  async run(chat, body, message) {
    const abort = new AbortController();
    this.runs.set(chat.id, abort);
    this.sidebar.running.add(chat.id);
    chat.updated = Date.now();
    message.running = true;
    this.save(chat);
    this.open(chat);
    let saved = performance.now();
    await runAnswer(this.api, body, message, abort.signal, () => {
      this.thread.changed(chat);
      if (chat === this.chat) this.drawLive(message);
      if (performance.now() - saved > SAVE_EVERY) {
        saved = performance.now();
        this.save(chat);
      }
    });
    this.ended(chat, message);
  }

  ended(chat, message) {
    this.runs.delete(chat.id);
    this.sidebar.running.delete(chat.id);
    if (message.error) this.connection.note(message.error);
    if (this.store.get(chat.id) === chat) this.save(chat);
    this.sidebar.draw();
    if (chat !== this.chat) return;
    this.drawState();
    byId("announce").textContent = message.error ? message.error.title : "The answer is complete.";
  }

  save(chat) {
    this.store.save(chat);
  }

  stop() {
    this.runs.get(this.chat.id)?.abort();
  }

  // What stands around it

  connected() {
    this.drawState();
    this.metrics.watch();
    if (this.drawers.kept.tab === "plugins") this.plugins.open();
  }

  tabShown(tab) {
    if (tab === "metrics") this.metrics.watch();
    if (tab === "plugins") this.plugins.open();
  }

  drawState() {
    const running = this.runs.has(this.chat.id);
    byId("send").hidden = running;
    byId("stop").hidden = !running;
    this.drawLive(this.chat.messages.at(-1) ?? {});
  }

  drawLive(message) {
    const { stats = {} } = message;
    byId("live").textContent = message.running ? factsOf(message) : KEYS_HINT;
    const { limit } = this.connection;
    byId("context").hidden = !limit || !stats.total;
    if (limit && stats.total) {
      byId("context-meter").value = stats.total / limit;
      byId("context-text").textContent = `${Math.round((100 * stats.total) / limit)} %`;
    }
    this.metrics.show(stats, limit);
  }

  setSystem(text, usual) {
    this.chat.system = text;
    if (this.store.get(this.chat.id)) this.store.save(this.chat);
    const before = this.store.settings.system ?? "";
    if (usual) this.keep({ system: text });
    else if (before && before === text) this.keep({ system: "" });
  }

  keep(part) {
    this.store.settings = { ...this.store.settings, ...part };
  }

  nextTheme() {
    const names = Object.keys(THEMES);
    this.setTheme(names[(names.indexOf(this.theme) + 1) % names.length]);
    this.keep({ theme: this.theme });
    toast(`Colours: ${THEMES[this.theme]}`);
  }

  setTheme(theme) {
    this.theme = theme in THEMES ? theme : "auto";
    if (this.theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.theme;
    const label = `Colours: ${THEMES[this.theme]}`;
    byId("theme").setAttribute("aria-label", label);
    byId("theme").title = label;
  }

  grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight}px`;
  }
}

// What is of the moment does not go into a file.
function storable(name, value) {
  return name === "running" || name === "error" ? undefined : value;
}

new App();
