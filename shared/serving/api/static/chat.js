// The chat page: ask, show the answer as it comes, stop it, try again, change the question. Nothing leaves this server.

import { allChats, chatsDialog, newChat, saveChat } from "./chats.js";
import { connection } from "./connection.js";
import { render } from "./markdown.js";
import { addMessage, addTrouble, atEnd, facts, last, pace, toEnd } from "./messages.js";
import { $, button, element, events, recall, refusal, remember } from "./server.js";
import { request, settingsDialog } from "./settings.js";

const QUIET_MS = 4000;
const server = connection(update);
let running = null;     // the AbortController of the answer being written
let chat = newChat();   // {id, at, messages: [{role, content}]}, without the system prompt

settingsDialog(server);

// ---- the conversation on the page -----------------------------------------------------------------------------------

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
  retry();
}

// The button that was pressed goes away with what it stood in; the keyboard goes on at the box.
function retry() {
  $("text").focus();
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
  if (chat.messages.at(-1)?.role === "user") addTrouble(addMessage("assistant", ""), "This was never answered.", "Try again", retry);
  $("text").focus();
  update();
}

// The server will never take the last message: put it back into the box, or every later one would be refused with it.
function takeBack(message, text, ...more) {
  const box = $("text");
  box.value = [chat.messages.pop().content, box.value].filter(Boolean).join("\n");
  last(".user").remove();
  message.classList.add("refused");
  addTrouble(message, text, ...more);
  fit();
}

function update() {
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
  $("send").disabled = !server.ready() || $("text").value.trim() === "";
  for (const idea of $("ideas").children) idea.disabled = !server.ready();
}

function fit() {
  const box = $("text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

// ---- asking ---------------------------------------------------------------------------------------------------------

function ask(text) {
  if (!server.ready() || running || !text.trim()) return;
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
  const waiting = setInterval(() => {
    if (performance.now() - (seen.last ?? seen.started) < QUIET_MS) return;
    server.connect();  // the server may be gone, and the connection doesn't know yet
    const soFar = seen.first === null ? "" : `${pace(seen)} · `;
    under.replaceChildren(element("span", "pace", `${soFar}waiting for the engine…`));
  }, 1000);
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
  clearInterval(waiting);
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
  if (trouble?.code === "context_length_exceeded" && chat.messages.length > 1) {
    takeBack(message, "This conversation has become longer than the model can read.", "Start a new chat", () => open(newChat()));
  } else if (trouble !== null && [400, 413].includes(trouble.status)) {
    takeBack(message, trouble.message);
  } else if (trouble?.status === 401) {
    addTrouble(message, "The server didn't take the key.", "Try again", retry);
    server.needKey();
  } else if (trouble !== null) {
    addTrouble(message, trouble.message, "Try again", retry, trouble.wait);
    if (trouble.status === 404) server.reconnect();  // the model was unloaded
    else server.connect();
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
    method: "POST", signal, body: JSON.stringify(request(server.model(), chat.messages)), headers: { "Content-Type": "application/json", ...server.key.headers() },
  });
  if (!response.ok) throw await refusal(response);
  const degraded = response.headers.get("X-Degraded");
  if (degraded) seen.flags.push(`the server is busy: ${degraded}`);
  yield* events(response.body);
}

// ---- keys and buttons -----------------------------------------------------------------------------------------------

$("ask").onsubmit = (event) => {
  event.preventDefault();
  if ($("send").disabled || running) return;
  ask($("text").value);
  $("text").value = "";
  $("text").focus();  // the button that was pressed is hidden now
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
server.connect();
