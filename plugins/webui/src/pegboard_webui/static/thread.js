// The conversation on the screen.

import { byId, copyText, el, icon, iconButton, seconds, short } from "./dom.js";
import { renderInto } from "./markdown.js";

const NEAR = 90; // pixels from the end within which the view follows the answer
const IDEAS = [
  "Explain in two sentences why the sky is blue.",
  "Write a short poem about a lighthouse.",
  "Give me three ideas for a rainy afternoon.",
  "Write a Python function that reverses a string.",
];

/**
 * Shows one conversation. `actions` has `ask(text)`, `regenerate()`, `goOn()`, `edit(index, text)`
 * and `unlock()`.
 */
export class Thread {
  constructor(actions) {
    this.actions = actions;
    this.frame = byId("thread");
    this.root = byId("messages");
    this.follows = true;
    this.chat = null;
    this.pending = false;
    this.frame.addEventListener("scroll", () => this.scrolled(), { passive: true });
    byId("to-end").addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.follow()).observe(this.frame);
  }

  /** Show a conversation from its beginning to its end. */
  show(chat) {
    this.chat = chat;
    if (chat.messages.length) this.root.replaceChildren(...chat.messages.map((_, index) => this.message(index)));
    else this.root.replaceChildren(this.welcome());
    this.toEnd();
  }

  /** The last message has changed; drawn at most once per frame. */
  changed(chat) {
    if (chat !== this.chat || this.pending) return;
    this.pending = true;
    const draw = () => {
      if (!this.pending) return;
      this.pending = false;
      if (chat === this.chat) this.redraw();
    };
    requestAnimationFrame(draw);
    setTimeout(draw, 250); // tabs in the background have no frames
  }

  redraw() {
    const index = this.chat.messages.length - 1;
    const node = this.root.children[index];
    if (!node?.classList.contains("assistant")) return;
    this.fill(node, this.chat.messages[index], true);
    this.follow();
  }

  scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.frame;
    this.follows = scrollHeight - scrollTop - clientHeight < NEAR;
    byId("to-end").hidden = this.follows;
  }

  follow() {
    if (this.follows) this.frame.scrollTop = this.frame.scrollHeight;
    else this.scrolled();
  }

  toEnd() {
    this.follows = true;
    this.follow();
    byId("to-end").hidden = true;
  }

  welcome() {
    const ideas = IDEAS.map((text) => el("button", { type: "button", on: { click: () => this.actions.ask(text) } }, text));
    return el(
      "div",
      { className: "welcome" },
      el("img", { src: "ui/icon.svg", alt: "" }),
      el("h1", {}, "What is on your mind?"),
      el("p", {}, "Conversations stay in this browser."),
      el("div", { className: "ideas" }, ideas),
    );
  }

  message(index) {
    const message = this.chat.messages[index];
    if (message.role === "user") return this.question(message, index);
    const node = el("article", { className: "message assistant", "aria-label": "Answer" });
    node.append(el("div", { className: "body" }), el("div", { className: "prose" }), el("div", { className: "after" }), el("div", { className: "tools" }));
    this.fill(node, message, index === this.chat.messages.length - 1);
    return node;
  }

  question(message, index) {
    const bubble = el("div", { className: "bubble", dir: "auto" }, message.content);
    const node = el("article", { className: "message user", "aria-label": "Your message" }, bubble);
    const copy = iconButton("copy", "Copy", () => copyText(message.content, copy));
    const edit = iconButton("edit", "Edit and ask again", () => node.replaceChildren(this.editor(message, index, node)));
    node.append(el("div", { className: "tools" }, copy, edit));
    return node;
  }

  editor(message, index, node) {
    const area = el("textarea", { value: message.content, "aria-label": "Edit the message", dir: "auto" });
    const back = () => node.replaceWith(this.question(message, index));
    const send = () => { if (area.value.trim()) this.actions.edit(index, area.value.trim()); };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); back(); }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
    });
    queueMicrotask(() => area.focus());
    return el(
      "div",
      { className: "editor" },
      area,
      el("div", { className: "row" },
        el("button", { type: "button", className: "ghost", on: { click: back } }, "Cancel"),
        el("button", { type: "button", className: "primary", on: { click: send } }, "Ask again")),
    );
  }

  fill(node, message, last) {
    const [before, prose, after, tools] = node.children;
    node.classList.toggle("running", message.running === true);
    this.fillBefore(before, message);
    renderInto(prose, message.content);
    const running = message.running === true;
    after.replaceChildren(...(running ? [] : [noteOf(message), this.faultOf(message, last)].filter(Boolean)));
    if (running) tools.replaceChildren();
    else tools.replaceChildren(...this.toolsOf(message, last));
  }

  fillBefore(before, message) {
    const waits = message.running && !message.content && !message.reasoning;
    if (waits && !before.querySelector(".waiting")) {
      before.replaceChildren(el("div", { className: "waiting", role: "img", "aria-label": "Waiting for the answer" }, el("span"), el("span"), el("span")));
    } else if (message.reasoning) {
      let box = before.querySelector(".thought div");
      if (!box) {
        box = el("div", { dir: "auto" });
        before.replaceChildren(el("details", { className: "thought" }, el("summary", {}, "Thoughts"), box));
      }
      box.textContent = message.reasoning;
    } else if (!waits) before.replaceChildren();
  }

  faultOf({ error }, last) {
    if (!error) return null;
    const locked = error.status === 401;
    const act = () => (locked ? this.actions.unlock() : this.actions.regenerate());
    const wait = error.wait && !error.loading ? ` Try again in ${error.wait} s.` : "";
    return el(
      "div",
      { className: "fault-box", role: "alert" },
      el("div", {}, el("strong", {}, `${error.title}. `), error.loading ? "" : `${sentence(error.message)}${wait}`),
      locked || last ? el("button", { type: "button", on: { click: act } }, locked ? "Enter a key" : "Try again") : null,
    );
  }

  toolsOf(message, last) {
    const tools = [];
    if (message.content) {
      const copy = iconButton("copy", "Copy", () => copyText(message.content, copy));
      tools.push(copy);
    }
    if (last) {
      tools.push(iconButton("retry", "Answer again", () => this.actions.regenerate()));
      if (message.content && (message.finish === "length" || message.finish === "stopped" || message.error)) {
        tools.push(el("button", { type: "button", className: "ghost small", title: "Continue this answer", on: { click: () => this.actions.goOn() } }, icon("play"), "Continue"));
      }
    }
    const facts = factsOf(message);
    if (facts) tools.push(el("span", { className: "facts" }, facts));
    return tools;
  }
}

function sentence(text) {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}

function noteOf({ finish, content, error }) {
  const notes = { length: "The answer reached the limit of its length.", stopped: "You stopped this answer." };
  const text = notes[finish] ?? (!content && !error ? "The answer is empty." : null);
  return text ? el("p", { className: "note" }, text) : null;
}

/** What was measured of an answer, in one line. */
export function factsOf({ stats = {} }) {
  const parts = [];
  if (stats.tokens) parts.push(`${short(stats.tokens)} token${stats.tokens === 1 ? "" : "s"}`);
  if (stats.rate) parts.push(`${short(stats.rate)} tokens/s`);
  if (stats.first) parts.push(`first ${seconds(stats.first)}`);
  return parts.join(" · ");
}
