// The chat page: ask, show the answer as it comes, stop it, try again, change the question. Nothing leaves this server.

import { allChats, chatsDialog, newChat, saveChat } from "./chats.js";
import { render } from "./markdown.js";
import { $, button, element, events, keyring, recall, refusal, remember } from "./server.js";

const FIELDS = ["temperature", "top-p", "max-tokens", "seed", "system"];
const view = document.querySelector("main");
let models = [];        // the names of those that are served; none until the server has told us
let ready = false;
let running = null;     // the AbortController of the answer being written
let chat = newChat();   // {id, at, messages: [{role, content}]}, without the system prompt

// ---- settings -------------------------------------------------------------------------------------------------------

for (const name of FIELDS) $(name).value = recall("localStorage", name);
$("open-settings").onclick = () => $("settings").showModal();
$("settings").onclose = () => {
  for (const name of FIELDS) remember("localStorage", name, $(name).value);
  remember("localStorage", "model", $("model").value);
  if (ready) show("ready", model());
  $("text").focus();
};
$("defaults").onclick = () => {
  for (const name of FIELDS) $(name).value = "";
  $("model").selectedIndex = 0;
};
$("change-key").onclick = () => { $("settings").close(); key.ask("The key in use was typed in before."); };

const key = keyring("key", connect, () => show("away", "needs a key; reload the page to enter it"));
const model = () => (models.includes(recall("localStorage", "model")) ? recall("localStorage", "model") : models[0]);

function offer(names) {
  if (names.join("\n") === models.join("\n")) return;
  models = names;
  $("model").replaceChildren(...names.map((name) => new Option(name, name)));
  $("model").value = model();
}

// ---- is the server there? -------------------------------------------------------------------------------------------

function show(state, text) {
  $("status").className = state;
  $("status").firstElementChild.textContent = text;
  $("change-key").hidden = !key.known();
  ready = state === "ready";
  update();
}

let timer = null;
async function connect() {
  clearTimeout(timer);
  let wait = 1000;
  try {
    const health = await fetch("/health/ready");
    if (!health.ok) {
      show("", "loading the model…");
    } else {
      const answer = await fetch("/v1/models", { headers: key.headers() });
      if (answer.status === 401) { show("away", "needs a key"); key.ask((await refusal(answer)).message); return; }
      if (!answer.ok) throw await refusal(answer);
      offer((await answer.json()).data.map((entry) => entry.id));
      show("ready", model());
      wait = 15000;
    }
  } catch (error) {
    show("away", error instanceof TypeError ? "the server doesn't answer" : error.message);
    wait = 1000;
  }
  timer = setTimeout(connect, wait);
}

// ---- the conversation on the page -----------------------------------------------------------------------------------

const atEnd = () => view.scrollHeight - view.scrollTop - view.clientHeight < 60;
const toEnd = () => { view.scrollTop = view.scrollHeight; };
const last = (selector) => [...$("log").querySelectorAll(selector)].at(-1);

function addMessage(role, text) {
  $("welcome").hidden = true;
  $("log").hidden = false;
  const message = element("div", `message ${role}`, "", element("span", "out-of-sight", role === "user" ? "You: " : "The model: "));
  const shown = element("div", "text", role === "user" ? text : "");
  if (role === "assistant") render(shown, text);
  message.append(shown, element("div", "under"));
  $("log").append(message);
  toEnd();
  return message;
}

// The buttons under the last question and the last answer; those before have had theirs.
function offerChanges() {
  for (const old of $("log").querySelectorAll(".actions")) old.remove();
  if (running || !chat.messages.length) return;
  const answered = chat.messages.at(-1).role === "assistant";
  last(".user").lastElementChild.append(element("span", "actions", "", button("Edit", "plain", editLast)));
  const message = last(".assistant"), under = message?.lastElementChild;
  if (!message || message.querySelector(".trouble")) return;
  if (!answered) { under.append(element("span", "actions", "", button("Try again", "plain", regenerate))); return; }  // stopped before its first word
  const text = chat.messages.at(-1).content;
  const copy = button("Copy", "plain", async () => {
    try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; } catch { copy.textContent = "Not allowed here"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  }, "Copy the answer");
  under.append(element("span", "actions", "", copy, button("Regenerate", "plain", regenerate, "Regenerate the answer")));
}

function regenerate() {
  if (chat.messages.at(-1).role === "assistant") chat.messages.pop();
  last(".assistant").remove();
  answer();
}

function editLast() {
  while (chat.messages.at(-1).role !== "user") chat.messages.pop();
  const box = $("text");
  box.value = [chat.messages.pop().content, box.value].filter(Boolean).join("\n");
  for (let message = last(".user"), next; message; message = next) {
    next = message.nextElementSibling;
    message.remove();
  }
  saveChat(chat);
  if (!chat.messages.length) { $("log").hidden = true; $("welcome").hidden = false; }
  offerChanges();
  fit();
  update();
  box.focus();
}

function open(other) {
  running?.abort();
  running = null;
  chat = other;
  remember("sessionStorage", "chat", chat.id);
  $("log").replaceChildren();
  $("log").removeAttribute("aria-busy");
  $("log").hidden = !chat.messages.length;
  $("welcome").hidden = chat.messages.length > 0;
  for (const { role, content } of chat.messages) addMessage(role, content);
  offerChanges();
  if (chat.messages.at(-1)?.role === "user") addTrouble(addMessage("assistant", ""), "This was never answered.", answer);
  $("text").focus();
  update();
}

// retry: what to do at "Try again"; wait: how many seconds the server asks us to wait before that.
function addTrouble(message, text, retry = null, wait = null) {
  const box = element("div", "trouble", text);
  box.setAttribute("role", "alert");
  message.querySelector(".under").before(box);
  if (retry === null) return;
  const again = button("Try again", "", () => { message.remove(); retry(); });
  box.append(again);
  const until = Date.now() + (wait ?? 0) * 1000;
  const count = () => {
    const left = Math.ceil((until - Date.now()) / 1000);
    again.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left > 0 && again.isConnected) setTimeout(count, 250);
  };
  count();
}

// The server will never take the last message: put it back into the box, or every later one would be refused with it.
function takeBack(message, text) {
  const box = $("text");
  box.value = [chat.messages.pop().content, box.value].filter(Boolean).join("\n");
  last(".user").remove();
  message.classList.add("refused");
  addTrouble(message, text);
  fit();
}

function update() {
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
  $("send").disabled = !ready || $("text").value.trim() === "";
  for (const idea of $("ideas").children) idea.disabled = !ready;
}

function fit() {
  const box = $("text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

// ---- asking ---------------------------------------------------------------------------------------------------------

function ask(text) {
  if (!ready || running || !text.trim()) return;
  for (const box of document.querySelectorAll(".trouble button")) box.remove();  // it's this one's turn now
  for (const message of document.querySelectorAll(".refused")) message.remove();
  chat.messages.push({ role: "user", content: text });
  addMessage("user", text);
  answer();
}

async function answer() {
  if (running) return;
  const mine = running = new AbortController(), current = chat;
  const message = addMessage("assistant", "");
  const text = message.querySelector(".text"), under = message.querySelector(".under");
  const seen = { started: performance.now(), text: "", first: null, last: null, pieces: 0, tokens: null, reason: null, flags: [] };
  message.classList.add("busy");
  $("log").setAttribute("aria-busy", "true");  // read the answer out when it is whole, not piece by piece
  saveChat(current);
  offerChanges();
  update();
  let trouble = null, drawing = null;
  const draw = () => {
    drawing = null;
    const follow = atEnd();
    render(text, seen.text, true);
    under.replaceChildren(element("span", "pace", pace(seen)));
    if (follow) toEnd();
  };
  try {
    for await (const piece of pieces(mine.signal, seen)) {
      if (piece.error) throw new Error(piece.error.message);
      if (piece.usage) seen.tokens = piece.usage.completion_tokens;
      const choice = piece.choices[0];
      if (!choice) continue;
      seen.reason = choice.finish_reason ?? seen.reason;
      seen.last = performance.now();
      if (!choice.delta.content) continue;
      seen.first ??= seen.last;
      seen.pieces += 1;
      seen.text += choice.delta.content;
      drawing ??= setTimeout(draw, 16);  // at most once a frame; in a hidden tab, too
    }
    if (seen.reason === null) throw new Error("The answer broke off: the server closed the connection.");
  } catch (error) {
    if (mine.signal.aborted) seen.reason = "stopped";
    else if (error instanceof TypeError) trouble = new Error("The server can't be reached. Is it still running?");
    else trouble = error;
  }
  clearTimeout(drawing);
  if (running === mine) running = null;
  if (chat === current) {
    finish(message, text, under, seen, trouble);
  } else if (seen.text && allChats().some((other) => other.id === current.id)) {  // another chat was opened meanwhile
    current.messages.push({ role: "assistant", content: seen.text });
    saveChat(current);
  }
  update();
}

function finish(message, text, under, seen, trouble) {
  const follow = atEnd();
  message.classList.remove("busy");
  $("log").removeAttribute("aria-busy");
  render(text, seen.text);
  under.replaceChildren();
  if (trouble !== null && [400, 413].includes(trouble.status)) {
    takeBack(message, trouble.message);
  } else if (trouble !== null) {
    addTrouble(message, trouble.message, answer, trouble.wait);
    if (trouble.status === 401) key.ask(trouble.message);
    else connect();
  } else {
    if (seen.text) chat.messages.push({ role: "assistant", content: seen.text });
    under.append(element("span", "facts", facts(seen)));
  }
  saveChat(chat);
  offerChanges();
  if (follow) toEnd();
}

async function* pieces(signal, seen) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST", signal, body: JSON.stringify(request()), headers: { "Content-Type": "application/json", ...key.headers() },
  });
  if (!response.ok) throw await refusal(response);
  const degraded = response.headers.get("X-Degraded");
  if (degraded) seen.flags.push(`the server is busy: ${degraded}`);
  yield* events(response.body);
}

function request() {
  const system = $("system").value.trim();
  const given = { temperature: $("temperature").valueAsNumber, top_p: $("top-p").valueAsNumber, seed: $("seed").valueAsNumber };
  return {
    model: model(),
    messages: [...(system ? [{ role: "system", content: system }] : []), ...chat.messages],
    stream: true,
    stream_options: { include_usage: true },
    max_tokens: $("max-tokens").valueAsNumber || 512,
    ...Object.fromEntries(Object.entries(given).filter(([, value]) => !Number.isNaN(value))),
  };
}

function pace(seen) {
  const seconds = (seen.last - seen.first) / 1000, tokens = seen.tokens ?? seen.pieces;
  return [`${tokens} tokens`, ...(tokens > 2 && seconds > 0 ? [`${((tokens - 1) / seconds).toFixed(1)} tokens/s`] : [])].join(" · ");
}

function facts(seen) {
  const all = [...seen.flags];
  if (seen.reason === "stopped") all.push("stopped");
  if (seen.reason === "length") all.push("cut off at the longest answer allowed");
  if (seen.first !== null) {
    all.push(`first token after ${((seen.first - seen.started) / 1000).toFixed(2)} s`, pace(seen));
  } else if (seen.reason !== "stopped") {
    all.push("an empty answer");
  }
  return all.join(" · ");
}

// ---- keys and buttons -----------------------------------------------------------------------------------------------

$("ask").onsubmit = (event) => {
  event.preventDefault();
  if ($("send").disabled || running) return;
  ask($("text").value);
  $("text").value = "";
  fit();
  update();
};
$("text").oninput = () => { fit(); update(); };
$("text").onkeydown = (event) => {
  if (event.key === "ArrowUp" && !$("text").value && !running && chat.messages.length) {  // as in a shell
    event.preventDefault();
    editLast();
  }
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;  // composing: Enter picks a character
  event.preventDefault();
  $("ask").requestSubmit();
};
$("stop").onclick = () => { running?.abort(); $("text").focus(); };
document.onkeydown = (event) => { if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.abort(); };
$("new").onclick = () => open(newChat());
for (const idea of $("ideas").children) idea.onclick = () => { ask(idea.textContent); $("text").focus(); };
chatsDialog(() => chat.id, open, (ids) => { if (ids.has(chat.id)) open(newChat()); });

const before = allChats().find((other) => other.id === recall("sessionStorage", "chat"));
open(before ?? chat);  // a reloaded tab goes on where it was; a new one starts anew
connect();
