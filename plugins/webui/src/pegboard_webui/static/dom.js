// Building the page. Text only ever becomes text nodes: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

// Strokes on a grid of 24 by 24.
const ICONS = {
  check: "M5 12.5l4.5 4.5L19 7",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v11H9zM5 15V4h10",
  down: "M12 5v14M6 13l6 6 6-6",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  play: "M8 5l11 7-11 7z",
  retry: "M19 8a8 8 0 1 0 1 5M20 4v5h-5",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
};

/**
 * An element. `props` sets properties (`className`, `value`, …); names with a dash and `role` are
 * attributes; `on` maps events to handlers. Strings among the children become text.
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else if (name === "data") Object.assign(node.dataset, value);
    else if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** An element of SVG. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** A picture for a button; the button's label says what it does. */
export function icon(name) {
  const path = svg("path", { d: ICONS[name] });
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, path);
}

/** A button with a picture, and its label as a hint. */
export function iconButton(name, label, onClick) {
  return el(
    "button",
    { type: "button", className: "ghost small", title: label, "aria-label": label, on: { click: onClick } },
    icon(name),
  );
}

/** The element with an id; every id of the page exists. */
export function byId(id) {
  return document.getElementById(id);
}

/** Copy text, and show on the button that it was done. */
export async function copyText(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = copyBySelection(text); // pages that are not served from this machine or by TLS
  }
  if (!done) return;
  const before = [...button.childNodes];
  button.replaceChildren(icon("check"));
  button.classList.add("done");
  setTimeout(() => {
    button.replaceChildren(...before);
    button.classList.remove("done");
  }, 1400);
}

function copyBySelection(text) {
  const area = el("textarea", { value: text, className: "offscreen", "aria-hidden": "true" });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

/** Hand a text to the user as a file. */
export function saveFile(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

let toastTimer = 0;

/** A short message at the bottom, with an action if `undo` is given. */
export function toast(message, undo) {
  const box = byId("toast");
  const button = undo
    ? el("button", { type: "button", className: "link", on: { click: () => { box.hidden = true; undo(); } } }, "Undo")
    : null;
  box.replaceChildren(el("span", {}, message), ...(button ? [button] : []));
  box.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { box.hidden = true; }, undo ? 8000 : 4000);
}

/** A number as people read it. */
export function short(value, digits = 1) {
  if (!Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (Math.abs(value) >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  return Number.isInteger(value) ? String(value) : value.toFixed(digits);
}

/** Seconds as people read them. */
export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`;
}
