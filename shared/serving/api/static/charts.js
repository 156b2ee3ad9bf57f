// Drawn by hand: a line chart (SVG), the map of KV blocks (canvas), and the waterfall of requests.

import { count, element } from "./server.js";

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 300, HEIGHT = 120, LEFT = 34, BOTTOM = 18, TOP = 6;

function svg(tag, attributes, text = "") {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

// The least number that isn't below the value and whose half reads well, too: the top of an axis.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 6, 8, 10].map((n) => n * power).find((n) => n >= value * 0.999);
}

const short = (value) => (value >= 10000 ? `${value / 1000}k` : `${Number(value.toFixed(2))}`);

// A line over the latest seconds, or two. names: what they are called in the note beneath. Returns update(rows).
export function lineChart(into, names, digits = 0) {
  const drawing = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const note = element("div", "chart-note");
  into.append(drawing, note);
  let rows = names.map(() => []), step = 1, hovered = null;

  const draw = () => {
    const box = drawing.getBoundingClientRect(), width = box.width || WIDTH, height = box.height || HEIGHT;
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const n = rows[0].length, top = roundUp(Math.max(1, ...rows.flat()));
    const x = (i) => LEFT + (i / Math.max(n - 1, 1)) * (width - LEFT - 2);
    const y = (value) => TOP + (1 - value / top) * (height - TOP - BOTTOM);
    const line = (row) => row.map((value, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const parts = [0, top / 2, top].flatMap((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: width, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
    ]);
    parts.push(svg("text", { x: LEFT, y: height - 3 }, `${Math.round((n * step) / 60)} min ago`));
    parts.push(svg("text", { x: width, y: height - 3, "text-anchor": "end" }, "now"));
    if (n) {
      parts.push(svg("path", { class: "area", d: `${line(rows[0])}L${x(n - 1)} ${y(0)}L${x(0)} ${y(0)}Z` }));
      parts.push(...rows.map((row, k) => svg("path", { class: k ? "second" : "first", d: line(row) })));
    }
    const at = hovered === null ? n - 1 : Math.round(((hovered - LEFT) / (width - LEFT - 2)) * (n - 1));
    const i = Math.max(0, Math.min(at, n - 1));
    if (hovered !== null) parts.push(svg("line", { class: "cursor", x1: x(i), x2: x(i), y1: TOP, y2: y(0) }));
    drawing.replaceChildren(...parts);
    const when = hovered === null ? "now" : `${(n - 1 - i) * step} s ago`;
    const said = names.map((name, k) => count((rows[k][i] ?? 0).toFixed(digits), name.replace(/s$/, ""), name));
    drawing.setAttribute("aria-label", `${said.join(", ")}, ${when}; highest ${short(Math.max(0, ...rows[0]))}`);
    note.replaceChildren(...said.map((text, k) => element("span", k ? "second" : "first", text)), element("span", "", when));
  };
  drawing.onpointermove = (event) => { hovered = event.clientX - drawing.getBoundingClientRect().left; draw(); };
  drawing.onpointerleave = () => { hovered = null; draw(); };
  return (newRows, newStep) => { rows = newRows; step = newStep; draw(); };
}

const STATES = ["free", "cached", "used", "shared"];

// The map of one version's blocks: a cell for each. Returns update(name, blocks, what is said of each, and at the end).
export function blockMap(into) {
  const title = element("p"), canvas = element("canvas");
  into.append(element("div", "map", "", title, canvas));
  canvas.setAttribute("role", "img");
  let drawn = "", cells = "", stride = 1, size = 1, perRow = 1;

  canvas.onpointermove = (event) => {
    const i = Math.floor(event.offsetY / size) * perRow + Math.floor(event.offsetX / size);
    canvas.title = i < cells.length ? `block ${i * stride}: ${STATES[cells[i]]}` : "";
  };
  return (name, blocks, each, more) => {
    ({ cells, stride } = blocks);
    const counts = STATES.map((state) => `${blocks[state]} ${state}`).join(" · ");
    title.textContent = `${name}: ${blocks.num} blocks${each}: ${counts}${stride > 1 ? ` · one in ${stride} is drawn` : ""}${more}`;
    canvas.setAttribute("aria-label", title.textContent);
    const width = canvas.parentElement.clientWidth, scale = window.devicePixelRatio || 1;
    const style = getComputedStyle(document.documentElement);
    const colours = STATES.map((state) => style.getPropertyValue(`--${state}`));
    const key = [width, scale, colours, cells].join();
    if (!width || key === drawn) return;
    drawn = key;
    size = Math.max(3, Math.min(14, Math.floor(Math.sqrt((width * 220) / cells.length))));
    perRow = Math.max(1, Math.floor(width / size));
    const height = Math.ceil(cells.length / perRow) * size, gap = size > 4 ? 1 : 0.5;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    STATES.forEach((state, k) => {
      pen.fillStyle = colours[k];
      for (let i = cells.indexOf(k); i >= 0; i = cells.indexOf(k, i + 1)) {
        pen.fillRect((i % perRow) * size, Math.floor(i / perRow) * size, size - gap, size - gap);
      }
    });
  };
}

const STAGES = [["queue", "arrived", "started"], ["prefill", "started", "first_token"], ["decode", "first_token", "done"]];
const FALL_S = 90, FALL_ROWS = 24;

// Requests on one time axis, the newest first. Times are seconds after arrival, as the server says them.
export function waterfall(into, traces) {
  const newest = Math.max(...traces.map((trace) => trace.arrived_at + trace.done));
  const shown = traces.filter((trace) => newest - trace.arrived_at < FALL_S).slice(-FALL_ROWS).reverse();
  const first = Math.min(...shown.map((trace) => trace.arrived_at)), span = Math.max(newest - first, 1e-3);
  const rows = shown.flatMap((trace) => {
    const track = element("div", "track");
    const left = (at) => `${((trace.arrived_at + at - first) / span) * 100}%`;
    for (const [stage, from, to] of STAGES) {
      const begin = from === "arrived" ? 0 : trace[from];
      if (begin === null) break;
      const end = trace[to] ?? trace.done, bar = element("i", stage);
      bar.style.left = left(begin);
      bar.style.width = `${((end - begin) / span) * 100}%`;
      track.append(bar);
    }
    if (trace.error) {
      const mark = element("b", "", `✕ ${trace.error}`);
      if (trace.arrived_at + trace.done - first > span * 0.5) mark.style.right = `${100 - parseFloat(left(0))}%`;
      else mark.style.left = left(trace.done);
      track.append(mark);
    }
    track.title = [
      trace.id, trace.key && `key ${trace.key}`, trace.version, `${count(trace.prompt_tokens, "prompt token")} (${trace.cached_tokens} cached)`,
      `${trace.output_tokens} written`, `at most ${count(trace.max_blocks, "block")}`, `${trace.done.toFixed(2)} s in all`,
      trace.resumed && `resumed ${count(trace.resumed, "time")}`,
    ].filter(Boolean).join(" · ");
    const name = element("span", "mono", trace.id);
    name.title = trace.id;
    const spent = [trace.machine_s === null ? "" : `${trace.machine_s.toFixed(3)} s`, trace.cost === null ? "" : trace.cost.toPrecision(2)];
    return [name, track, element("span", "spent number", spent.filter(Boolean).join(" · "))];
  });
  const axis = element("div", "axis", "", element("span", "", "0 s"), element("span", "", `${span.toFixed(1)} s`));
  into.replaceChildren(element("div", "fall", "", ...rows, element("span"), axis, element("span", "spent", "engine's time")));
}
