// The settings: kept in this browser, and sent with every question.

import { $, recall, remember } from "./server.js";

const FIELDS = ["temperature", "top-p", "max-tokens", "seed", "system"];

// The dialog that changes them. server: what connection() made.
export function settingsDialog(server) {
  for (const name of FIELDS) $(name).value = recall("localStorage", name);
  $("open-settings").onclick = () => {
    $("settings").returnValue = "";
    $("settings").showModal();
    if (server.ready()) server.list().catch(() => {});  // a version may have come; if that can't be told, the old list stays
  };
  $("settings").onclose = () => {
    const saved = $("settings").returnValue === "save";  // else it was left with Escape
    for (const name of FIELDS) {
      if (saved) remember("localStorage", name, $(name).value);
      else $(name).value = recall("localStorage", name);
    }
    if (saved) remember("localStorage", "model", $("model").value);
    $("model").value = server.model();
    server.showModel();
    $("text").focus();
  };
  $("defaults").onclick = () => {
    for (const name of FIELDS) $(name).value = "";
    $("model").selectedIndex = 0;
  };
  $("change-key").onclick = () => { $("settings").close(); server.key.ask(false); };
}

// The body of a request for the next answer of a conversation; what isn't set is the server's to choose.
export function request(model, messages) {
  const system = $("system").value.trim();
  const given = { temperature: $("temperature").valueAsNumber, top_p: $("top-p").valueAsNumber, seed: $("seed").valueAsNumber };
  return {
    model,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    stream: true,
    stream_options: { include_usage: true },
    max_tokens: $("max-tokens").valueAsNumber || 512,
    ...Object.fromEntries(Object.entries(given).filter(([, value]) => !Number.isNaN(value))),
  };
}
