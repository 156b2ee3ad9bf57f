// The conversations, kept in this browser's localStorage: newest first, the oldest dropped when there are too many.

import { $, button, count, element, recall } from "./server.js";

const STORE = "chats", MOST = 50;

export const newChat = () => ({ id: crypto.getRandomValues(new Uint32Array(2)).join("-"), at: Date.now(), messages: [] });

export function allChats() {
  try {
    const chats = JSON.parse(recall("localStorage", STORE) || "[]");
    return Array.isArray(chats) ? chats.filter((chat) => chat?.id && Array.isArray(chat.messages)) : [];
  } catch {
    return [];
  }
}

function keep(chats) {
  for (let n = Math.min(chats.length, MOST); n >= 0; n = n > 1 ? Math.floor(n / 2) : n - 1) {  // half of them, if all are too much
    try { localStorage.setItem(STORE, JSON.stringify(chats.slice(0, n))); return; } catch { /* full, or refused */ }
  }
}

// Other tabs write to the same list: it is read anew each time.
export function saveChat(chat) {
  const others = allChats().filter((other) => other.id !== chat.id);
  keep(chat.messages.length ? [{ ...chat, at: Date.now() }, ...others] : others);
}

// The dialog that lists them. open(chat): one was chosen; forget(ids): these were deleted.
export function chatsDialog(currentId, open, forget) {
  const dialog = $("chats"), list = $("chat-list");
  const remove = (ids) => {
    keep(allChats().filter((chat) => !ids.has(chat.id)));
    forget(ids);
    fill();
    dialog.querySelector(".main").focus();  // the button that was pressed is gone
  };
  function fill() {
    const chats = allChats();
    list.replaceChildren(...chats.map((chat) => {
      const words = chat.messages[0].content.slice(0, 200);
      const when = new Date(chat.at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
      const one = button("", "open", () => { dialog.close(); open(chat); });
      one.append(element("span", "title", words), element("small", "", `${when} · ${count(chat.messages.length, "message")}`));
      if (chat.id === currentId()) one.setAttribute("aria-current", "true");
      return element("li", "", "", one, button("Delete", "plain", () => remove(new Set([chat.id])), `Delete: ${words}`));
    }));
    if (!chats.length) list.append(element("li", "", "None yet."));
    $("delete-all").disabled = !chats.length;
  }
  $("delete-all").onclick = () => {
    if (confirm("Delete all chats kept in this browser?")) remove(new Set(allChats().map((chat) => chat.id)));
  };
  $("open-chats").onclick = () => { fill(); dialog.showModal(); };
  dialog.onclose = () => $("text").focus();
}
