// Conversations and settings, in this browser only. A conversation has a key of its own, so that two
// tabs with different ones do not overwrite each other.

const CHAT = "pegboard.chat.";
const SETTINGS = "pegboard.settings";
const ROLES = ["user", "assistant"];

const text = (value) => (typeof value === "string" ? value : "");
const time = (value) => (Number.isFinite(value) ? value : Date.now());

/** A conversation of known form from stored or imported data; null if it is none. */
export function chatOf(data) {
  if (typeof data !== "object" || data === null || !Array.isArray(data.messages)) return null;
  const messages = data.messages
    .filter((message) => ROLES.includes(message?.role) && typeof message.content === "string")
    .map(messageOf);
  return {
    id: text(data.id) || crypto.getRandomValues(new Uint32Array(3)).join("-"),
    title: text(data.title).slice(0, 200),
    named: data.named === true,
    system: text(data.system),
    created: time(data.created),
    updated: time(data.updated),
    messages,
  };
}

function messageOf({ role, content, reasoning, model, finish, stats, running }) {
  const message = { role, content };
  if (role === "user") return message;
  const numbers = Object.entries(stats ?? {}).filter(([, value]) => Number.isFinite(value));
  return {
    ...message,
    reasoning: text(reasoning),
    model: text(model),
    finish: running ? "stopped" : text(finish), // the page was left while it came
    stats: Object.fromEntries(numbers),
  };
}

export class Store {
  constructor(storage = localStorage) {
    this.storage = storage;
    this.chats = new Map();
    this.onFull = () => {};
    for (const key of Object.keys(storage)) if (key.startsWith(CHAT)) this.reload(key);
  }

  /** All conversations, the latest first. */
  list() {
    return [...this.chats.values()].sort((one, other) => other.updated - one.updated);
  }

  get(id) {
    return this.chats.get(id);
  }

  /** A new conversation; stored with its first message. */
  create(system) {
    return chatOf({ system, messages: [] });
  }

  /** Keep a conversation as it is now. */
  save(chat) {
    this.chats.set(chat.id, chat);
    this.write(CHAT + chat.id, chat);
  }

  remove(id) {
    this.chats.delete(id);
    this.storage.removeItem(CHAT + id);
  }

  /** Read one again, after another tab changed it. Returns whether the key is a conversation's. */
  reload(key) {
    if (!key?.startsWith(CHAT)) return false;
    const chat = chatOf(this.read(key));
    if (chat) this.chats.set(chat.id, chat);
    else this.chats.delete(key.slice(CHAT.length));
    return true;
  }

  get settings() {
    return { ...this.read(SETTINGS) };
  }

  set settings(value) {
    this.write(SETTINGS, value);
  }

  /** Take conversations in, beside those that there are; how many. */
  import(data) {
    const found = (Array.isArray(data?.chats) ? data.chats : [data]).map(chatOf).filter(Boolean);
    for (const chat of found) {
      if (this.chats.has(chat.id)) chat.id = chatOf({ messages: [] }).id;
      this.save(chat);
    }
    return found.length;
  }

  read(key) {
    try {
      return JSON.parse(this.storage.getItem(key));
    } catch {
      return null; // not ours, or damaged
    }
  }

  write(key, value) {
    try {
      this.storage.setItem(key, JSON.stringify(value));
    } catch {
      this.onFull();
    }
  }
}

/** A conversation as a text that other programs read. */
export function asMarkdown(chat) {
  const parts = [`# ${chat.title || "Conversation"}`];
  if (chat.system) parts.push(`## System\n\n${chat.system}`);
  for (const { role, content } of chat.messages) {
    parts.push(`## ${role === "user" ? "You" : "Assistant"}\n\n${content}`);
  }
  return `${parts.join("\n\n")}\n`;
}

/** A name for a file. */
export function fileName(title) {
  return title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60).toLowerCase() || "conversation";
}
