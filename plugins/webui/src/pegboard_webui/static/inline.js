// What stands inside a line of Markdown, read once from left to right.

import { el } from "./dom.js";

const ESCAPABLE = /[!-/:-@[-`{-~]/;
const ADDRESS = /^(?:https?:\/\/|mailto:)[^\s<>]+$/i;
const BARE = /https?:\/\/[^\s<>"`]{1,2000}/iy;
const ANGLED = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/iy;
const TARGET = /\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\([^\s()]*\))*))(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?\s*\)/y;
const MARKS = { "*": ["em", "strong"], _: ["em", "strong"], "~": [null, "s"] };
const SIGN = /[\p{P}\p{S}]/u;
const SENTENCE = ".,:;!?'*_~";
const DEEPEST = 16;

/** The nodes of a text. */
export function inline(text, depth = 0) {
  return new Reader(text, depth).read();
}

/** An address that may be followed, or null: of the web or of mail, and whole. */
export function safeAddress(text) {
  const address = text.trim();
  if (!ADDRESS.test(address)) return null;
  try {
    const { protocol, href } = new URL(address);
    return ["http:", "https:", "mailto:"].includes(protocol) ? href : null;
  } catch {
    return null;
  }
}

function link(address, children) {
  return el("a", { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

// Emphasis that was opened: what was written, and the nodes since.
class Frame {
  constructor(mark, length) {
    this.mark = mark;
    this.length = length;
    this.nodes = [];
  }

  // What it is if it was never closed.
  flat() {
    return [this.mark.repeat(this.length), ...this.nodes];
  }
}

class Reader {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.at = 0;
    this.plain = "";
    this.frames = [new Frame("", 0)];
    this.brackets = depth < DEEPEST ? pairs(text) : new Map();
    this.unclosed = new Set();
  }

  get top() {
    return this.frames[this.frames.length - 1];
  }

  read() {
    while (this.at < this.text.length) {
      const char = this.text[this.at];
      if (!this.special(char)) {
        this.plain += char;
        this.at += 1;
      }
    }
    this.flush();
    while (this.frames.length > 1) this.unwind();
    return this.frames[0].nodes;
  }

  special(char) {
    switch (char) {
      case "\\": return this.escape();
      case "\n": return this.add(el("br"), 1);
      case "`": return this.code();
      case "!": return this.text[this.at + 1] === "[" && this.bracket(this.at + 1, true);
      case "[": return this.bracket(this.at, false);
      case "<": return this.angled();
      case "h": case "H": return this.bare();
      case "*": case "_": case "~": return this.emphasis(char);
      default: return false;
    }
  }

  flush() {
    if (this.plain) this.top.nodes.push(this.plain);
    this.plain = "";
  }

  add(node, length) {
    this.flush();
    this.top.nodes.push(node);
    this.at += length;
    return true;
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === undefined || !ESCAPABLE.test(next)) return false;
    this.plain += next;
    this.at += 2;
    return true;
  }

  code() {
    const fence = /`+/y;
    fence.lastIndex = this.at;
    const ticks = fence.exec(this.text)[0].length;
    const begin = this.at + ticks;
    const end = this.unclosed.has(ticks) ? -1 : this.closing(ticks, begin);
    if (end < 0) {
      this.unclosed.add(ticks);
      this.plain += "`".repeat(ticks);
      this.at = begin;
      return true;
    }
    let body = this.text.slice(begin, end).replace(/\n/g, " ");
    if (body.trim() && body.startsWith(" ") && body.endsWith(" ")) body = body.slice(1, -1);
    return this.add(el("code", {}, body), end + ticks - this.at);
  }

  closing(ticks, from) {
    const runs = /`+/g;
    runs.lastIndex = from;
    for (let run = runs.exec(this.text); run; run = runs.exec(this.text)) {
      if (run[0].length === ticks) return run.index;
    }
    return -1;
  }

  // A link, or a picture, which is shown as a link: the page loads nothing from elsewhere.
  bracket(open, picture) {
    const close = this.brackets.get(open);
    if (close === undefined || this.text[close + 1] !== "(") return false;
    TARGET.lastIndex = close + 1;
    const found = TARGET.exec(this.text);
    const address = found && safeAddress(found[1] ?? found[2].replace(/\\(.)/g, "$1"));
    if (!address) return false;
    const label = this.text.slice(open + 1, close);
    const children = picture ? [`▣ ${label || "picture"}`] : inline(label, this.depth + 1);
    return this.add(link(address, children.map(unlinked)), TARGET.lastIndex - this.at);
  }

  angled() {
    ANGLED.lastIndex = this.at;
    const found = ANGLED.exec(this.text);
    const address = found && safeAddress(found[1]);
    return address ? this.add(link(address, found[1]), found[0].length) : false;
  }

  bare() {
    if (/\w/.test(this.text[this.at - 1] ?? "")) return false;
    BARE.lastIndex = this.at;
    const found = BARE.exec(this.text);
    if (!found) return false;
    const shown = trimmed(found[0]);
    const address = safeAddress(shown);
    return address ? this.add(link(address, shown), shown.length) : false;
  }

  emphasis(mark) {
    let end = this.at;
    while (this.text[end] === mark) end += 1;
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[end] ?? " ";
    const [opens, closes] = flanking(mark, before, after);
    this.flush();
    let left = end - this.at;
    while (left > 0) left -= (closes && this.close(mark, left)) || (opens && this.open(mark, left)) || this.literal(mark, left);
    this.at = end;
    return true;
  }

  open(mark, left) {
    const length = Math.min(2, left);
    if (!MARKS[mark][length - 1] || this.frames.length > DEEPEST || left > 3) return 0;
    this.frames.push(new Frame(mark, length));
    return length;
  }

  close(mark, left) {
    let at = this.frames.length - 1;
    while (at > 0 && !(this.frames[at].mark === mark && this.frames[at].length <= left)) at -= 1;
    if (at === 0 || (at === this.frames.length - 1 && !this.top.nodes.length)) return 0;
    while (this.frames.length - 1 > at) this.unwind();
    const frame = this.frames.pop();
    this.top.nodes.push(el(MARKS[mark][frame.length - 1], {}, frame.nodes));
    return frame.length;
  }

  literal(mark, left) {
    this.top.nodes.push(mark.repeat(left));
    return left;
  }

  unwind() {
    const frame = this.frames.pop();
    this.top.nodes.push(...frame.flat());
  }
}

// Whether a run of marks may open and close emphasis, by what stands beside it (CommonMark's rules:
// `_` does nothing inside of a word).
function flanking(mark, before, after) {
  const [spaceBefore, spaceAfter] = [/\s/.test(before), /\s/.test(after)];
  const [signBefore, signAfter] = [SIGN.test(before), SIGN.test(after)];
  const left = !spaceAfter && (!signAfter || spaceBefore || signBefore);
  const right = !spaceBefore && (!signBefore || spaceAfter || signAfter);
  if (mark !== "_") return [left, right];
  return [left && (!right || signBefore), right && (!left || signAfter)];
}

// Where each opening bracket is closed; code and escapes do not count.
function pairs(text) {
  const found = new Map();
  const open = [];
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\") at += 1;
    else if (text[at] === "[") open.push(at);
    else if (text[at] === "]" && open.length) found.set(open.pop(), at);
  }
  return found;
}

// A link in a link is shown as its text.
function unlinked(node) {
  return node instanceof HTMLAnchorElement ? node.textContent : node;
}

// An address without the punctuation of the sentence that it stands in.
function trimmed(address) {
  let end = address.length;
  let spare = address.split(")").length - address.split("(").length;
  for (;; end -= 1) {
    const last = address[end - 1];
    if (last === ")" && spare > 0) spare -= 1;
    else if (!SENTENCE.includes(last)) return address.slice(0, end);
  }
}
