// Markdown to DOM nodes: blocks here, what stands inside a line in inline.js.
//
// Safe by construction: texts become text nodes, elements are of a fixed set, and the only attribute
// that a text decides is the address of a link, which is checked.

import { copyText, el, icon } from "./dom.js";
import { inline } from "./inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*)|[ \t]*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const TASK = /^\[([ xX])\][ \t]+/;
const DEEPEST = 8;

/**
 * Shows a growing text in `root`: blocks that did not change keep their nodes, so that a long answer
 * costs little per piece, and what the reader selected stays selected.
 */
export function renderInto(root, text) {
  const blocks = parseBlocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
  const known = root.renderedBlocks ?? [];
  let same = 0;
  while (same < blocks.length && same < known.length && known[same] === blocks[same].source) same += 1;
  while (root.childNodes.length > same) root.lastChild.remove();
  for (const block of blocks.slice(same)) root.append(build(block));
  root.renderedBlocks = blocks.map((block) => block.source);
}

/** The blocks of a text; `source` tells whether one has changed. */
export function parseBlocks(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = readBlock(lines, at, depth);
    block.source = `${block.type}${lines.slice(at, next).join("\n")}`;
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function readBlock(lines, at, depth) {
  const line = lines[at];
  let found;
  if ((found = FENCE.exec(line))) return readCode(lines, at, found);
  if ((found = HEADING.exec(line))) {
    return [{ type: "heading", level: found[1].length, text: title(found[2] ?? "") }, at + 1];
  }
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (depth < DEEPEST) {
    if (QUOTE.test(line)) return readQuote(lines, at, depth);
    if (ITEM.test(line)) return readList(lines, at, depth);
  }
  if (isTable(lines, at)) return readTable(lines, at);
  return readParagraph(lines, at, depth);
}

// A heading's text without the number signs that may close it.
function title(text) {
  const whole = text.trim();
  let end = whole.length;
  while (whole[end - 1] === "#") end -= 1;
  return end === 0 || /\s/.test(whole[end - 1]) ? whole.slice(0, end).trim() : whole;
}

function startsBlock(lines, at, depth) {
  const line = lines[at];
  if (!line.trim() || FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  return (depth < DEEPEST && (QUOTE.test(line) || ITEM.test(line))) || isTable(lines, at);
}

function readCode(lines, at, [, fence, language]) {
  const body = [];
  const indent = /^ */.exec(lines[at])[0].length;
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const close = lines[next].trim();
    if (close.length >= fence.length && close === fence[0].repeat(close.length)) {
      return [{ type: "code", language: language.trim(), text: body.join("\n") }, next + 1];
    }
    const spaces = /^ */.exec(lines[next])[0].length;
    body.push(lines[next].slice(Math.min(indent, spaces)));
  }
  return [{ type: "code", language: language.trim(), text: body.join("\n") }, next];
}

function readQuote(lines, at, depth) {
  const inner = [];
  let next = at;
  while (next < lines.length) {
    const found = QUOTE.exec(lines[next]);
    if (!found && startsBlock(lines, next, depth)) break;
    inner.push(found ? found[1] : lines[next]);
    next += 1;
  }
  return [{ type: "quote", blocks: parseBlocks(inner, depth + 1) }, next];
}

const isOrdered = (marker) => /\d/.test(marker);

function readList(lines, at, depth) {
  const [, , marker] = ITEM.exec(lines[at]);
  const list = { type: "list", ordered: isOrdered(marker), start: parseInt(marker, 10), items: [] };
  let next = at;
  while (next < lines.length) {
    const found = RULE.test(lines[next]) ? null : ITEM.exec(lines[next]);
    if (!found || isOrdered(found[2]) !== list.ordered) break;
    const [inner, end] = readItem(lines, next, found);
    list.items.push(parseBlocks(inner, depth + 1));
    next = end;
  }
  return [list, next];
}

// Lines of one item without their indent, and where it ends. Models indent less than the standard
// asks for: two columns are enough.
function readItem(lines, at, [, spaces, marker, gap = " ", text = ""]) {
  const content = spaces.length + marker.length + (gap.length > 4 ? 1 : gap.length);
  const least = Math.min(content, spaces.length + 2);
  const inner = [text];
  let next = at + 1;
  let end = next;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    if (!line.trim()) {
      inner.push("");
      continue;
    }
    const indent = /^ */.exec(line)[0].length;
    const lazy = end === next && indent < least && !startsBlock(lines, next, 0);
    if (indent < least && !lazy) break;
    inner.push(line.slice(Math.min(indent, content)));
    end = next + 1;
  }
  // Empty lines behind the last item are not the list's.
  const blanks = /^ *(?:[-*+]|\d{1,9}[.)])/.test(lines[next] ?? "") ? next : end;
  return [inner.slice(0, blanks - at), blanks];
}

function isTable(lines, at) {
  return lines[at].includes("|") && at + 1 < lines.length && lines[at + 1].includes("-")
    && DIVIDER.test(lines[at + 1]) && cells(lines[at]).length === cells(lines[at + 1]).length;
}

function cells(line) {
  const text = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return text.split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

function readTable(lines, at) {
  const aligns = cells(lines[at + 1]).map((cell) => {
    if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "right";
    return "left";
  });
  const rows = [];
  let next = at + 2;
  while (next < lines.length && lines[next].includes("|")) rows.push(cells(lines[next++]));
  return [{ type: "table", aligns, head: cells(lines[at]), rows }, next];
}

function readParagraph(lines, at, depth) {
  let next = at + 1;
  while (next < lines.length && !startsBlock(lines, next, depth)) next += 1;
  const text = lines.slice(at, next).map((line) => line.trim()).join("\n");
  return [{ type: "paragraph", text }, next];
}

const BUILDERS = {
  paragraph: (block) => el("p", {}, inline(block.text)),
  heading: (block) => el(`h${Math.min(6, block.level + 2)}`, {}, inline(block.text)),
  rule: () => el("hr"),
  quote: (block) => el("blockquote", {}, block.blocks.map(build)),
  code: buildCode,
  list: buildList,
  table: buildTable,
};

function build(block) {
  return BUILDERS[block.type](block);
}

function buildCode({ language, text }) {
  const button = el("button", { type: "button", className: "ghost small", title: "Copy code", "aria-label": "Copy code" }, icon("copy"));
  button.addEventListener("click", () => copyText(text, button));
  const bar = el("div", { className: "code-bar" }, el("span", {}, language.split(/\s/)[0] || "text"), button);
  const code = el("pre", { tabIndex: 0 }, el("code", {}, text));
  return el("div", { className: "code", dir: "ltr" }, bar, code);
}

function buildList(block) {
  const list = el(block.ordered ? "ol" : "ul");
  if (block.ordered && block.start !== 1) list.start = block.start;
  list.append(...block.items.map(buildItem));
  return list;
}

// An item that is one paragraph stands close to its neighbours, without a paragraph of its own.
function buildItem(blocks) {
  const item = el("li");
  const [first, ...others] = blocks;
  if (first?.type === "paragraph") {
    const task = TASK.exec(first.text);
    if (task) {
      item.className = "task";
      item.append(el("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": "task" }), " ");
    }
    item.append(...inline(task ? first.text.slice(task[0].length) : first.text));
  } else if (first) item.append(build(first));
  item.append(...others.map(build));
  return item;
}

function buildTable({ aligns, head, rows }) {
  const row = (tag, texts) => el("tr", {}, aligns.map((align, column) =>
    el(tag, { className: `align-${align}` }, inline(texts[column] ?? ""))));
  const table = el("table", {}, el("thead", {}, row("th", head)), el("tbody", {}, rows.map((texts) => row("td", texts))));
  return el("div", { className: "table", tabIndex: 0 }, table);
}
