// How a conversation is drawn: its messages, what stands under them, and what went wrong with one.

import { render } from "./markdown.js";
import { $, button, count, element } from "./server.js";

const view = document.querySelector("main");

export const atEnd = () => view.scrollHeight - view.scrollTop - view.clientHeight < 60;
export const toEnd = () => { view.scrollTop = view.scrollHeight; };
export const last = (selector) => [...$("log").querySelectorAll(selector)].at(-1);

export function addMessage(role, text) {
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

// words, act: a button, and what it does; wait: how many seconds the server asks us to wait before that.
export function addTrouble(message, text, words = "", act = null, wait = null) {
  const box = element("div", "trouble", text);
  box.setAttribute("role", "alert");
  message.querySelector(".under").before(box);
  if (act === null) return;
  const again = button(words, "", () => { message.remove(); act(); });
  box.append(again);
  const until = Date.now() + (wait ?? 0) * 1000;
  const tick = () => {
    const left = Math.ceil((until - Date.now()) / 1000);
    again.textContent = left > 0 ? `${words} in ${left} s` : words;
    if (left > 0 && again.isConnected) setTimeout(tick, 250);
  };
  tick();
}

// An answer's tokens so far, and how fast they come. seen: what answer() in chat.js has seen of it.
export function pace(seen) {
  const seconds = (seen.last - seen.first) / 1000, tokens = seen.tokens ?? seen.pieces;
  return [count(tokens, "token"), ...(tokens > 2 && seconds > 0 ? [`${((tokens - 1) / seconds).toFixed(1)} tokens/s`] : [])].join(" · ");
}

// What is said of an answer when it has ended.
export function facts(seen) {
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
