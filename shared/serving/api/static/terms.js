// What the words on the dashboard mean: shown when the pointer, a finger or the keyboard rests on one.

import { $ } from "./server.js";

const TERMS = {
  running: "Answers that the engines compute together, a token for each in every step. The rest wait for a place.",
  waiting: "Requests that have passed the limits and wait for a place in the engine. Keys take turns, so that one caller with many requests doesn't hold up another. When too many wait, new ones are refused with 429.",
  tokens: "Output tokens that the engines made in each second, of all answers together.",
  requests: "Requests that ended in each second, refused ones included.",
  ttft: "Time to first token: from the request's arrival until the first token of its answer is there. It holds the waiting and the reading of the prompt.",
  tpot: "Time per output token: how long each token after the first takes, on average over one answer.",
  e2e: "End to end: from the request's arrival until its answer is complete.",
  queue: "From passing the limits until the first step that has some of the request. Under load, most of the latency is here.",
  p50: "Half of the requests were faster than this.",
  p90: "Nine of ten requests were faster than this.",
  p95: "19 of 20 requests were faster than this.",
  p99: "99 of 100 requests were faster than this. Average values hide what the slowest callers see; this doesn't.",
  p999: "999 of 1,000 requests were faster than this. Of fewer than a thousand it is next to the slowest.",
  prefix: "Of all prompt tokens, the share whose keys and values were there already, from an earlier request that began the same. They aren't computed again.",
  memory: "Resident memory of the API process and of the engine processes. Weights that several processes map are counted in each.",
  errors: "Requests that the server failed. Counted apart: refusals, before anything was computed; requests that can't be served as they are; and callers who left.",
  waste: "Of the places for tokens in the blocks that are held, the share that has no token yet: the unfilled ends of last blocks.",
  blocks: "The memory for keys and values, as it is: a cell for each block, which holds a few tokens. Answers take blocks as they grow, and give them back when they end.",
  free: "Nobody uses it, and nothing of use is in it.",
  cached: "Nobody uses it now, but it holds the keys and values of a prompt's beginning. A request that begins the same gets it back; it is taken when no free one is left, the least recently used first.",
  used: "One answer's tokens.",
  shared: "Several answers that begin the same use it together.",
  batch: "How many answers the engine computes together in a step. They join and leave between any two steps (continuous batching).",
  open: "The requests that are being answered, and those that wait for a place. Prompts and answers are never shown here.",
  stage: "queued: waits for a place. prefill: its prompt is being read. decode: its answer is being written.",
  prompt: "Tokens of the prompt; in brackets, those that came out of the prefix cache.",
  answer: "Tokens written so far.",
  timeout: "How long a request may take that doesn't say so itself. By default three times the P99 of end to end, so that no usual request is cut off, and a stuck one doesn't stay for ever.",
  versions: "Each loaded version has an engine process of its own. A model's requests are shared out among its versions; a stream stays with the version it began with.",
  events: "What an operator should hear of: an engine that went away and came back, a version that was loaded or promoted, a failed request.",
  parts: "The server runs on the repository's reference, and on your own modules where you have chosen them with 'python -m chapters use'.",
  waterfall: "The latest requests on one time axis, stage by stage. Long grey bars mean that requests wait; long blue ones, that prompts are long. At the right: its share of the engine's time, and with --cost-per-hour what that cost.",
};

export function explainTerms() {
  const tip = $("tip");
  let term = null;
  const place = () => {
    if (term === null) return;
    const at = term.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const below = at.bottom + 8 + size.height < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - size.width - 8))}px`;
    tip.style.top = `${below ? at.bottom + 8 : at.top - size.height - 8}px`;
  };
  const show = (event) => {
    const found = event.target.closest?.("dfn");
    if (!found) return;
    term = found;
    tip.textContent = TERMS[term.dataset.term];
    tip.hidden = false;
    term.setAttribute("aria-describedby", "tip");
    place();
  };
  const hide = () => { term = null; tip.hidden = true; };
  for (const one of document.querySelectorAll("dfn")) one.tabIndex = 0;
  document.addEventListener("pointerover", show);
  document.addEventListener("pointerout", hide);
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", place, true);  // focus may scroll the page; the words stay with their term
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
}
