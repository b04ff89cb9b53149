// The list of conversations.

import { byId, el, iconButton } from "./dom.js";

const DAY = 86_400_000;

/** `actions` has `open(id)`, `rename(id, title)`, `save(id)` and `remove(id)`. */
export class Sidebar {
  constructor(store, actions) {
    this.store = store;
    this.actions = actions;
    this.root = byId("chat-list");
    this.search = byId("search");
    this.current = null;
    this.running = new Set();
    this.search.addEventListener("input", () => this.draw());
  }

  /** Draw the list anew; `current` is the id of the open conversation. */
  draw(current = this.current) {
    this.current = current;
    const focused = this.root.contains(document.activeElement) ? document.activeElement.closest("li")?.dataset.id : null;
    const wanted = this.search.value.trim().toLowerCase();
    const chats = this.store.list().filter((chat) => !wanted || contains(chat, wanted));
    const rows = [];
    let group = "";
    for (const chat of chats) {
      if (groupOf(chat.updated) !== group) {
        group = groupOf(chat.updated);
        rows.push(el("li", { className: "group" }, group));
      }
      rows.push(this.row(chat));
    }
    if (!rows.length) rows.push(el("li", { className: "empty-list" }, wanted ? "Nothing found." : "No conversations yet."));
    this.root.replaceChildren(...rows);
    if (focused) this.root.querySelector(`li[data-id="${CSS.escape(focused)}"] .open`)?.focus();
  }

  row(chat) {
    const title = chat.title || "New chat";
    const open = el(
      "button",
      { type: "button", className: "open", title, on: { click: () => this.actions.open(chat.id) } },
      el("span", { dir: "auto" }, title),
    );
    if (chat.id === this.current) open.setAttribute("aria-current", "true");
    const names = ["chat", chat.id === this.current && "current", this.running.has(chat.id) && "running"];
    const row = el("li", { className: names.filter(Boolean).join(" "), data: { id: chat.id } }, open);
    row.append(el(
      "div",
      { className: "tools" },
      iconButton("edit", "Rename", () => this.rename(row, chat)),
      iconButton("download", "Save as Markdown", () => this.actions.save(chat.id)),
      iconButton("trash", "Delete", () => this.actions.remove(chat.id)),
    ));
    return row;
  }

  rename(row, chat) {
    const field = el("input", { value: chat.title, "aria-label": "Title", maxLength: 200 });
    let open = true;
    const end = (keep) => {
      if (!open) return;
      open = false;
      if (keep && field.value.trim()) this.actions.rename(chat.id, field.value.trim());
      this.draw();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.stopPropagation();
      if (event.key === "Enter" || event.key === "Escape") end(event.key === "Enter");
    });
    field.addEventListener("blur", () => end(true));
    row.replaceChildren(field);
    field.select();
  }
}

function contains(chat, wanted) {
  return chat.title.toLowerCase().includes(wanted)
    || chat.messages.some((message) => message.content.toLowerCase().includes(wanted));
}

function groupOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY) return "Yesterday";
  if (time >= midnight - 7 * DAY) return "Last seven days";
  return "Earlier";
}
