// What both pages need to talk to this server: small memory in the browser, the key, refusals, streams of events.

const safely = (act) => { try { return act(); } catch { return null; } };  // private windows may refuse to remember
export const recall = (store, name) => safely(() => window[store].getItem(name)) ?? "";
export const remember = (store, name, value) => safely(() => window[store].setItem(name, value));

export const count = (n, one, more = `${one}s`) => `${n} ${Number(n) === 1 ? one : more}`;

export const $ = (id) => document.getElementById(id);

export function element(tag, className = "", text = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;  // never innerHTML: what a model or a person writes is text
  made.append(...children);
  return made;
}

export function button(text, className, onclick, label = "") {
  const made = element("button", className, text);
  made.type = "button";
  made.onclick = onclick;
  if (label) made.setAttribute("aria-label", label);
  return made;
}

// The dialog with id "key-dialog" asks for a key and keeps it in this tab, under `name`, until the tab is closed.
export function keyring(name, onKey, onRefused) {
  const dialog = $("key-dialog"), field = $("key");
  dialog.onclose = () => {
    const key = field.value.trim();
    field.value = "";
    if (dialog.returnValue !== "save" || !key) return onRefused();
    remember("sessionStorage", name, key);
    onKey();
  };
  return {
    headers: () => {
      const key = recall("sessionStorage", name);
      return key ? { Authorization: `Bearer ${key}` } : {};
    },
    known: () => recall("sessionStorage", name) !== "",
    ask: (refused = recall("sessionStorage", name) !== "") => {
      if (dialog.open) return;
      dialog.returnValue = "";
      $("key-title").textContent = refused ? "The server didn't take that key" : dialog.dataset.title;
      dialog.showModal();
    },
  };
}

// Why the server refused, as an Error with .message, .status, .code (one word, or null) and .wait (seconds, or null).
export async function refusal(response) {
  let error = { message: `The server answered with status ${response.status}.`, code: null };
  try { error = (await response.json()).error ?? error; } catch { /* not our server's kind of answer */ }
  const wait = Number(response.headers.get("Retry-After") ?? NaN);
  const facts = { status: response.status, code: error.code, wait: Number.isFinite(wait) ? wait : null };
  return Object.assign(new Error(error.message), facts);
}

// The events of a stream, parsed, as they come.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}
