// One answer: what is asked, and what comes.

import { ApiError } from "./api.js";

const NUMBERS = [
  "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed",
  "presence_penalty", "frequency_penalty", "repetition_penalty",
];

/** The body of the request for `chat`'s next answer, or for more of its last one. */
export function bodyOf(chat, settings, model, goOn) {
  const messages = turns(chat.messages);
  if (chat.system.trim()) messages.unshift({ role: "system", content: chat.system });
  const body = { messages, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  if (model) body.model = model;
  for (const name of NUMBERS) if (Number.isFinite(settings[name])) body[name] = settings[name];
  const stops = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stops.length) body.stop = stops;
  if (goOn) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  return body;
}

// Answers that were never given are left out, and questions without one joined: many templates want
// the two sides to take turns.
function turns(messages) {
  const taken = [];
  for (const { role, content } of messages) {
    const before = taken.at(-1);
    if (!content) continue;
    if (before?.role === role) before.content += `\n\n${content}`;
    else taken.push({ role, content });
  }
  return taken;
}

/**
 * Runs one answer into `message`, which must be the last of its conversation when it goes on.
 * Calls `changed` for each piece. Never throws: how it ended stands in `message.finish` and
 * `message.error`.
 */
export async function runAnswer(api, body, message, signal, changed) {
  const clock = { begin: performance.now(), first: 0, before: message.stats?.tokens ?? 0 };
  message.running = true;
  message.finish = "";
  message.error = null;
  try {
    for await (const chunk of api.chat(body, signal)) {
      take(message, chunk, clock);
      changed();
    }
  } catch (error) {
    if (signal.aborted) message.finish = "stopped";
    else message.error = error instanceof ApiError ? error : new ApiError(500, String(error.message ?? error));
  }
  message.running = false;
  changed();
}

function take(message, chunk, clock) {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning ?? "";
  if ((delta.content || thought) && !clock.first) clock.first = performance.now();
  message.content += delta.content ?? "";
  message.reasoning += thought;
  if (choice?.finish_reason) message.finish = choice.finish_reason;
  if (chunk.model) message.model = chunk.model;
  if (chunk.usage) message.stats = measure(chunk.usage, clock);
}

// `rate` is of the tokens behind the first: the wait for that one is told apart.
function measure(usage, clock) {
  const tokens = usage.completion_tokens;
  const stats = { tokens: clock.before + tokens, total: usage.total_tokens };
  if (!clock.first) return stats;
  stats.first = (clock.first - clock.begin) / 1000;
  const seconds = (performance.now() - clock.first) / 1000;
  if (tokens > 1 && seconds > 0) stats.rate = (tokens - 1) / seconds;
  return stats;
}
