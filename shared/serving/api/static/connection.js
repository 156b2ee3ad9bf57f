// Whether the server is there, which models it has, and whether it wants a key: asked again and again, shown at the top.

import { $, keyring, recall, refusal } from "./server.js";

const HEALTHY_MS = 15000, AWAY_MS = 1000;

// changed(): called whenever what is shown here has changed.
export function connection(changed) {
  let models = [];     // the names of those that are served; none until the server has told us
  let listed = false;  // whether they are still what the server said; asking costs a request of the key's limit
  let keyed = false;   // whether the server has asked for a key
  let ready = false;   // whether questions can be asked
  let timer = null;

  const key = keyring("key", reconnect, () => { if (!ready) show("away", "needs a key: see Settings"); });
  const model = () => (models.includes(recall("localStorage", "model")) ? recall("localStorage", "model") : models[0]);
  const showModel = () => { if (ready) show("ready", model()); };

  function offer(names) {
    if (names.join("\n") === models.join("\n")) return;
    models = names;
    $("model").replaceChildren(...names.map((name) => new Option(name, name)));
    $("model").value = model();
  }

  function show(state, text) {
    $("status").className = state;
    $("status").firstElementChild.textContent = $("status").title = text;  // a phone shows the beginning only
    $("change-key").hidden = !keyed && !key.known();
    $("change-key").textContent = key.known() ? "Change the API key" : "Enter the API key";
    ready = state === "ready";
    changed();
  }

  async function connect() {
    clearTimeout(timer);
    let wait = AWAY_MS;
    try {
      const health = await fetch("/health/ready");
      if (!health.ok) {
        const { status } = await health.json().catch(() => ({}));
        if (status === "shutting down") show("away", "the server is shutting down");
        else if (listed) show("ready", `${model()} · waiting for the engine`);  // questions are taken and wait, too
        else show("", "loading the model…");
      } else {
        if (!listed && !await list()) return;
        show("ready", model());
        wait = HEALTHY_MS;
      }
    } catch (error) {
      const gone = error instanceof TypeError;
      if (gone) listed = false;  // what comes back may be another
      show("away", gone ? "the server doesn't answer" : error.message);
      if (error.wait) wait = error.wait * 1000;
    }
    clearTimeout(timer);  // another call's, made meanwhile
    timer = setTimeout(connect, wait);
  }

  // Asks which models there are. False where a key is needed first.
  async function list() {
    const answer = await fetch("/v1/models", { headers: key.headers() });
    if (answer.status === 401) { needKey(); return false; }
    if (!answer.ok) throw await refusal(answer);
    offer((await answer.json()).data.map((entry) => entry.id));
    listed = true;
    return true;
  }

  function reconnect() {
    listed = false;
    return connect();
  }

  function needKey() {
    clearTimeout(timer);
    keyed = true;
    show("away", "needs a key");
    key.ask();
  }

  return { key, model, showModel, ready: () => ready, connect, list, reconnect, needKey };
}
