// What is plugged in.

import { byId, el } from "./dom.js";

const LIVELY = ["ready", "unused"];

export class Plugins {
  constructor(api) {
    this.api = api;
    this.root = byId("pane-plugins");
    this.filter = el("input", { type: "search", id: "plugin-filter", placeholder: "Filter plugins", "aria-label": "Filter plugins", autocomplete: "off" });
    this.list = el("div", { id: "plugin-list" });
    this.filter.addEventListener("input", () => this.draw());
    this.all = [];
  }

  /** Ask again, and show. */
  async open() {
    this.root.replaceChildren(this.filter, this.list);
    try {
      this.all = (await this.api.json("plugins")).plugins;
      this.draw();
    } catch (error) {
      this.list.replaceChildren(el("p", { className: "fault" }, `${error.title ?? "Failed"}. ${error.message}`));
    }
  }

  draw() {
    const wanted = this.filter.value.trim().toLowerCase();
    const found = this.all.filter((plugin) => JSON.stringify(plugin).toLowerCase().includes(wanted));
    const order = (plugin) => (plugin.used?.length ? 0 : plugin.loaded ? 1 : 2);
    const cards = found.sort((one, other) => order(one) - order(other)).map(card);
    this.list.replaceChildren(...(cards.length ? cards : [el("p", { className: "note" }, "None.")]));
  }
}

function card(plugin) {
  const used = plugin.used ?? [];
  const [state, kind] = stateOf(plugin, used);
  const head = el("div", { className: "head" }, el("strong", {}, plugin.id), el("span", { className: `badge ${kind}` }, state));
  const where = [plugin.distribution, plugin.installed, plugin.group.replace(/^pegboard\./, "")].filter(Boolean).join(" · ");
  const box = el("div", { className: "plugin" }, head, el("div", { className: "where" }, where));
  if (plugin.reason) box.append(el("div", { className: "where" }, plugin.reason));
  if (used.length) box.append(el("div", { className: "uses" }, used.map((name) => el("span", {}, name))));
  return box;
}

function stateOf(plugin, used) {
  if (used.length) return ["in use", "used"];
  if (!LIVELY.includes(plugin.state)) return [plugin.state, "bad"];
  return [plugin.loaded ? "loaded" : "installed", ""];
}
