// Server-sent events from the body of an answer.

/** The data of each event, as text, until the stream ends. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value = "", done } = await reader.read();
      rest += value;
      // A carriage return at the end may be half of a line's end: it waits for the next piece.
      const whole = rest.endsWith("\r") && !done ? rest.slice(0, -1) : rest;
      const parts = whole.split(/\r\n\r\n|\n\n|\r\r/);
      rest = parts.pop() + rest.slice(whole.length);
      for (const part of parts) {
        const data = dataOf(part);
        if (data !== null) yield data;
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function dataOf(event) {
  const lines = event.split(/\r\n|\n|\r/).filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n") : null;
}
