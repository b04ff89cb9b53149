// The form of parameters. What is left empty is not sent: the model's own defaults count.

import { byId, el } from "./dom.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 10, step: 0.1, hint: "0: always the likeliest token. Higher: more varied." },
  { name: "top_p", label: "Top P", min: 0.01, max: 1, step: 0.05, hint: "Only the likeliest tokens whose probabilities add up to this." },
  { name: "top_k", label: "Top K", min: 0, step: 1, whole: true, hint: "Only this many of the likeliest tokens; 0: all." },
  { name: "min_p", label: "Min P", min: 0, max: 1, step: 0.05, hint: "No token less likely than this share of the likeliest." },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, whole: true, hint: "The longest answer." },
  { name: "seed", label: "Seed", step: 1, whole: true, hint: "The same seed gives the same answer again." },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, hint: "Above 0: fewer tokens that were there already." },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, hint: "Above 0: the more often a token was there, the less likely it is." },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, step: 0.05, hint: "Above 1: fewer tokens of the prompt and the answer." },
];

/** `changed(values)` is called with all parameters, `system(text, asDefault)` with the system prompt. */
export class Settings {
  constructor(values, { changed, system }) {
    this.values = values;
    this.changed = changed;
    this.inputs = new Map(FIELDS.map((field) => [field.name, this.number(field)]));
    this.system = el("textarea", { rows: 4, id: "system", placeholder: "How the model should behave", dir: "auto" });
    this.default = el("input", { type: "checkbox", id: "system-default" });
    this.stop = el("textarea", { rows: 2, id: "stop-texts", placeholder: "One per line", value: values.stop ?? "" });
    const tell = () => system(this.system.value, this.default.checked);
    this.system.addEventListener("input", tell);
    this.default.addEventListener("change", tell);
    this.stop.addEventListener("input", () => this.put("stop", this.stop.value));
    this.draw();
  }

  draw() {
    const fields = FIELDS.map(({ name, label, hint }) => el("label", { title: hint }, el("span", {}, label), this.inputs.get(name)));
    byId("pane-settings").replaceChildren(
      el("h2", {}, "System prompt of this chat"),
      el("label", {}, el("span", { className: "offscreen" }, "System prompt"), this.system),
      el("label", { className: "check" }, this.default, el("span", {}, "Use for new chats too")),
      el("h2", {}, "Parameters"),
      el("div", { className: "numbers" }, fields),
      el("label", {}, el("span", {}, "Stop texts"), this.stop),
      el("p", { className: "note" }, "Fields left empty take the model’s defaults."),
      el("button", { type: "button", className: "reset wide", on: { click: () => this.reset() } }, "Reset parameters"),
    );
  }

  number({ name, min, max, step, whole }) {
    const limits = { min: min ?? "", max: max ?? "", step: whole ? 1 : "any" };
    const input = el("input", { type: "number", id: `set-${name}`, inputMode: whole ? "numeric" : "decimal", placeholder: "default", ...limits });
    if (!whole) input.addEventListener("keydown", (event) => nudge(event, input, step));
    if (Number.isFinite(this.values[name])) input.value = this.values[name];
    input.addEventListener("input", () => this.put(name, input.value !== "" && input.validity.valid ? input.valueAsNumber : undefined));
    return input;
  }

  put(name, value) {
    this.values = { ...this.values, [name]: value };
    this.changed(this.values);
  }

  reset() {
    for (const input of this.inputs.values()) input.value = "";
    this.stop.value = "";
    const names = [...this.inputs.keys(), "stop"];
    this.values = { ...this.values, ...Object.fromEntries(names.map((name) => [name, undefined])) };
    this.changed(this.values);
  }

  /** The first field whose content is not allowed, or undefined. */
  get invalid() {
    return [...this.inputs.values()].find((input) => !input.validity.valid);
  }

  /** Show the system prompt of a conversation. */
  show(chat, usual) {
    this.system.value = chat.system;
    this.default.checked = chat.system !== "" && chat.system === usual;
  }
}

// Arrow keys step by a sensible width, though any number may be typed.
function nudge(event, input, step) {
  const up = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  if (!up) return;
  event.preventDefault();
  const [low, high] = [input.min === "" ? -Infinity : Number(input.min), input.max === "" ? Infinity : Number(input.max)];
  const next = (input.value === "" ? 1 : input.valueAsNumber) + up * step;
  input.value = String(Number(Math.min(high, Math.max(low, next)).toFixed(3)));
  input.dispatchEvent(new Event("input"));
}
