// Requests to the server.

export class Refused extends Error {
  constructor(status, message, seconds) {
    super(message);
    this.status = status;
    this.seconds = seconds;
  }
}

export const settings = async () => (await fetch("v1/settings")).json();

/** Return the answer to values in JSON; an error is `Refused`, or a TypeError without a connection. */
export async function ask(path, values, signal) {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(values), signal });
  if (answer.ok) return answer.json();
  const { error } = await answer.json().catch(() => ({ error: answer.statusText || answer.status }));
  throw new Refused(answer.status, error, Number(answer.headers.get("Retry-After")));
}

/** As `ask`, but try again when the server says so; `tell` gets the seconds until then, and 0 at the end. */
export async function askPatiently(path, values, signal, tell) {
  for (;;) {
    try {
      const answer = await ask(path, values, signal);
      tell(0);
      return answer;
    } catch (error) {
      if (error.status !== 429) throw error;
      tell(error.seconds);
      await pause(1000 * error.seconds, signal);
    }
  }
}

/** Return what went wrong. */
export function problem(error) {
  return error instanceof TypeError ? "The server does not answer." : `The server refused: ${error.message}`;
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
