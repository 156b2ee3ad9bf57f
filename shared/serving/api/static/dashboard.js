// The dashboard: asks the server for its state about twice a second, and shows it as it is.

import { blockMap, lineChart, waterfall } from "./charts.js";
import { $, count, element, keyring, refusal } from "./server.js";
import { explainTerms } from "./terms.js";

const EVERY_MS = 500, HIDDEN_MS = 5000, AWAY_MS = 1000, PATIENCE_MS = 5000;
const key = keyring("admin-key", poll, () => {});
let seen = null;     // when the state shown was made
let timer = null;

// ---- asking ---------------------------------------------------------------------------------------------------------

async function poll() {
  clearTimeout(timer);
  let wait = document.hidden ? HIDDEN_MS : EVERY_MS;
  try {
    const answer = await fetch("/dashboard/state", { headers: key.headers(), signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw await refusal(answer);
    const state = await answer.json();
    seen = new Date();
    show(state);
  } catch (error) {
    wait = AWAY_MS;
    const refused = [401, 403].includes(error.status);
    away(error, refused);
    if (refused) {
      if (error.status === 401) key.ask();
      return;  // until there is another key
    }
  }
  timer = setTimeout(poll, wait);
}
document.addEventListener("visibilitychange", () => { if (!document.hidden && timer !== null) poll(); });
$("banner-key").onclick = () => key.ask(false);

function away(error, refused) {
  document.body.classList.add("stale");
  const unreachable = error.status === undefined;
  status("away", refused ? "refused" : unreachable ? "the server doesn't answer" : "the server answers with an error");
  const shown = seen === null ? "" : ` What you see is how it was at ${clock(seen)}.`;
  const why = unreachable ? `The server doesn't answer.${shown} Trying again every second.` : `${error.message}${shown}`;
  banner(why, true);
  $("banner-key").hidden = !refused || error.code === "admin_closed";  // no key opens what is closed
}

function status(state, text) {
  set($("status"), "className", state);
  set($("status").firstElementChild, "textContent", text);
}

function banner(text, bad = false) {
  $("banner").hidden = !text;
  $("banner").className = bad ? "bad" : "";
  $("banner-key").hidden = true;
  set($("banner-text"), "textContent", text);
}

// Only what has changed: a screen reader would read the same banner twice a second, and a selection would be lost.
function set(node, name, value) { if (node[name] !== value) node[name] = value; }
const write = (id, text) => set($(id), "textContent", String(text));

// ---- showing --------------------------------------------------------------------------------------------------------

const charts = {
  tokens: lineChart($("chart-tokens"), ["tokens"]),
  requests: lineChart($("chart-requests"), ["requests"]),
  batch: lineChart($("chart-batch"), ["running", "waiting"]),
};
const maps = new Map();  // a version's name -> what draws its blocks

function show(state) {
  document.body.classList.remove("stale");
  $("main").hidden = false;
  status(state.ready ? "ready" : "", state.ready ? `live · up ${time(state.uptime_s)}` : "not ready");
  banner(trouble(state));
  $("empty").hidden = state.totals.requests > 0 || state.num_requests > 0;
  showTiles(state);
  showBlocks(state);
  showRequests(state);
  showQueue(state);
  const { tokens_per_s, requests_per_s, running, waiting, step_s } = state.series;
  charts.tokens([tokens_per_s], step_s);
  charts.requests([requests_per_s], step_s);
  charts.batch([running, waiting], step_s);
  showLatency(state);
  showVersions(state.versions);
  showEvents(state.events);
  showCounts(state);
  showTraces(state);
}

function trouble({ draining, versions, num_requests }) {
  if (draining) return `The server is shutting down: it takes no new requests, and ${count(num_requests, "is", "are")} still being answered.`;
  const restarting = versions.filter((version) => version.engine_state === "restarting").map((version) => version.name);
  if (restarting.length) return `The engine of ${restarting.join(", ")} is being restarted. Open streams wait for it and go on where they stopped.`;
  const failed = versions.find((version) => version.state === "ready" && version.engine_state === "failed");
  if (failed) return `The engine of ${failed.name} has failed: ${failed.error}`;
  if (!versions.some((version) => version.state === "ready")) {
    return versions.length ? `${versions[0].model} is ${versions[0].state}…` : "No model is loaded yet.";
  }
  return "";
}

function showTiles({ queue, versions, series, latency, prefix, process, gpus, totals }) {
  const engines = versions.filter((version) => version.state === "ready").length;  // a request's version has places of its own
  const over = engines > 1 ? `, over ${engines} engines` : "";
  write("running", queue.running);
  write("running-of", `of ${count(queue.max_running, "place")}${over}`);
  write("waiting", queue.waiting);
  write("waiting-of", `of at most ${queue.max_waiting}${over}`);
  write("tokens-per-s", recent(series.tokens_per_s, series.step_s, 3).toFixed(0));
  write("tokens-peak", `highest ${Math.max(...series.tokens_per_s).toFixed(0)}`);
  write("requests-peak", `highest ${Math.max(...series.requests_per_s).toFixed(0)}`);
  write("requests-per-s", recent(series.requests_per_s, series.step_s, 10).toFixed(1));
  write("ttft-now", time(latency.ttft.p50));
  write("ttft-p99", `P99 ${time(latency.ttft.p99)}`);
  const asked = prefix.asked_tokens;
  write("prefix", asked ? percent(prefix.hit_tokens / asked) : "–");
  write("prefix-of", asked ? `of ${short(asked)} tokens` : "");
  const parts = Object.entries(process).filter(([, bytes]) => bytes !== null);
  write("memory", memory(parts.reduce((sum, [, bytes]) => sum + bytes, 0)));
  const busy = gpus.map((gpu) => `GPU ${memory(gpu.used_bytes)}${gpu.utilization === null ? "" : `, ${percent(gpu.utilization)} busy`}`);
  write("memory-of", busy.length ? busy.join("; ") : `in ${parts.length === 1 ? "one process" : `${parts.length} processes`}`);
  const errors = sum(totals.errors);
  write("errors", errors);
  write("refused-of", `and ${sum(totals.refusals)} refused`);
  set($("errors-tile"), "className", errors ? "tile bad" : "tile");
}

function showBlocks({ versions, kv_waste }) {
  const shown = versions.filter((version) => version.blocks);
  for (const version of shown) {
    if (!maps.has(version.name)) {
      const node = element("div");
      $("maps").append(node);
      maps.set(version.name, { node, update: blockMap(node) });
    }
    const per = version.engine ? ` of ${version.engine.block_size} tokens (${memory(version.engine.bytes_per_block)})` : "";
    const waste = kv_waste[version.name] ?? null;
    maps.get(version.name).update(version.name, version.blocks, per, waste === null ? "" : ` · waste ${percent(waste)}`);
  }
  for (const [name, { node }] of maps) {
    node.className = shown.some((version) => version.name === name) ? "" : "away";  // while it restarts, its last map stays
    if (versions.some((version) => version.name === name)) continue;
    node.remove();
    maps.delete(name);
  }
}

function showRequests({ requests, num_requests }) {
  write("num-requests", num_requests > requests.length ? `${requests.length} of ${num_requests} shown` : num_requests || "");
  const rows = requests.map((request) => element("tr", "", "",
    cell(request.id, "mono", request.id),
    cell(request.key),
    element("td", "", "", element("span", `stage ${request.stage}`, "", element("i"), request.stage + (request.resumed ? ", resumed" : ""))),
    cell(time(request.age_s), "r"),
    cell((request.prompt_tokens || "–") + (request.cached_tokens ? ` (${request.cached_tokens})` : ""), "r"),
    cell(request.output_tokens, "r"),
    cell(request.blocks || "–", "r"),
    cell(request.version),
  ));
  const none = element("td", "quiet", "Nobody at the moment.");
  none.colSpan = 8;
  $("requests").tBodies[0].replaceChildren(...(rows.length ? rows : [element("tr", "", "", none)]));
}

function showQueue({ queue, timeout }) {
  const keys = Object.entries(queue.by_key).sort((a, b) => b[1] - a[1]).slice(0, 12);
  const most = Math.max(1, ...keys.map(([, n]) => n));
  $("queue").replaceChildren(...(keys.length ? keys.map(([name, n]) => {
    const bar = element("div");
    bar.style.width = `${(n / most) * 100}%`;
    return element("li", "", "", element("span", "", name), element("b", "number", String(n)), bar);
  }) : [element("li", "quiet", "Nobody waits.")]));
  const why = timeout.fixed ? "set at the start with --timeout" : timeout.p99_s === null ? "until enough requests are measured"
    : `from the measured P99, ${time(timeout.p99_s)}`;
  write("timeout", `${time(timeout.seconds)}, ${why}`);
}

function showLatency({ latency, window_s }) {
  write("latency-window", `of the last ${Math.round(window_s / 60)} minutes`);
  for (const row of $("latency").tBodies[0].rows) {
    const values = latency[row.dataset.of];
    const texts = [...["p50", "p90", "p95", "p99", "p99.9"].map((name) => time(values[name])), String(values.n)];
    while (row.cells.length <= texts.length) row.append(cell("", row.cells.length < texts.length ? "r" : "r quiet"));
    texts.forEach((text, i) => set(row.cells[i + 1], "textContent", text));
  }
}

function showVersions(versions) {
  $("versions").replaceChildren(...versions.map((version) => {
    const state = version.state === "ready" ? version.engine_state : version.state, engine = version.engine;
    const share = element("div");
    share.style.width = percent(version.share);
    const facts = engine && [engine.device, engine.dtype, `attention ${engine.attention}`, count(engine.max_num_seqs, "place"),
      `${short(engine.max_model_len)} tokens of context`].join(" · ");
    return element("div", "version", "",
      element("div", "", "", element("b", "", version.name), element("span", "", version.model), element("span", `state ${state}`, state),
        element("span", "number quiet", `${percent(version.share)} of the requests · ${version.open} open`)),
      element("div", "quiet", version.error || facts || ""), element("div", "share", "", share));
  }));
}

const BAD = new Set(["engine_died", "engine_hung", "engine_failed", "request_failed", "version_failed", "version_rejected"]);
let told = "";
function showEvents(events) {
  const now = JSON.stringify(events.at(-1) ?? null) + events.length;
  if (now === told) return;
  told = now;
  $("events").replaceChildren(...(events.length ? [...events].reverse().map((event) => {
    const when = element("time", "", clock(new Date(event.at * 1000)));
    return element("li", BAD.has(event.kind) ? "bad" : "", "", when,
      element("span", "", "", element("b", "", event.kind.replaceAll("_", " ")), ` ${event.text}`));
  }) : [element("li", "quiet", "None so far.")]));
}

function showCounts({ totals, uptime_s, parts }) {
  write("uptime", time(uptime_s));
  const rows = [["requests", totals.requests], ["prompt tokens", totals.prompt_tokens], ["output tokens", totals.output_tokens],
    ["errors", sum(totals.errors)], ...sub(totals.errors), ["refused", sum(totals.refusals)], ...sub(totals.refusals),
    ["can't be served", sum(totals.bad_requests)], ...sub(totals.bad_requests), ["callers who left", totals.cancelled],
    ["timeouts", totals.timeouts], ["preemptions", totals.preemptions], ["engine restarts", totals.restarts]];
  $("counts").replaceChildren(...rows.flatMap(([name, n, kind = ""]) => [element("dt", kind, name), element("dd", "", n.toLocaleString())]));
  const lines = parts.length ? parts : ["The reference's. 'python -m chapters use 9' puts your own in."];
  if ($("parts").childElementCount === 0) $("parts").append(...lines.map((line) => element("li", "", line)));
}
const sub = (counts) => Object.entries(counts).map(([name, n]) => [name.replaceAll("_", " "), n, "sub"]);

let fallen = "";
function showTraces({ traces, debug }) {
  const note = $("traces-note"), done = traces.filter((trace) => trace.done !== null);
  const now = `${debug} ${done.length} ${done.at(-1)?.id} ${done.at(-1)?.arrived_at}`;
  if (now === fallen) return;
  fallen = now;
  $("waterfall").replaceChildren();
  if (!debug) {
    note.textContent = "Not recorded: the server keeps each request's stages only when it is started with --debug.";
    return;
  }
  if (!done.length) { note.textContent = "No request has ended yet."; return; }
  waterfall($("waterfall"), done);
  const legend = element("ul", "legend", "", ...["queue", "prefill", "decode"].map((stage) => element("li", "", "", element("i", stage), stage)));
  const save = element("button", "", "Save as Chrome trace");
  save.onclick = saveTrace;
  note.replaceChildren(legend, save, element("span", "quiet", " for chrome://tracing or Perfetto"));
}

// Not a link: a browser would follow it without the key.
async function saveTrace() {
  const answer = await fetch("/dashboard/traces", { headers: key.headers() });
  if (!answer.ok) return banner((await refusal(answer)).message, true);
  const link = element("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = "requests.trace.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

// ---- words for numbers ----------------------------------------------------------------------------------------------

const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);
const recent = (row, step, n) => row.slice(-n).reduce((a, b) => a + b, 0) / Math.max(1, Math.min(n, row.length)) / step;
const percent = (share) => `${Math.round(share * 100)}%`;
const clock = (date) => date.toLocaleTimeString([], { hourCycle: "h23" });
const short = (n) => (n >= 1e6 ? `${(n / 1e6).toFixed(1)}M` : n >= 1e4 ? `${Math.round(n / 1e3)}k` : String(n));
const memory = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : bytes >= 1e6 ? `${Math.round(bytes / 1e6)} MB` : `${Math.round(bytes / 1e3)} kB`);

function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(2)} s`;
  if (seconds < 99.5) return `${seconds.toFixed(seconds % 1 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`.replace(" 0 s", "");
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

function cell(text, className = "", title = "") {
  const made = element("td", className, String(text));
  if (title) made.title = title;
  return made;
}

explainTerms();
poll();
