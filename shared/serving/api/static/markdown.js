// Markdown as models write it, to elements: headings, lists, tables, quotes, rules, fenced code with a copy button, and
// what stands inside a line (inline.js). Everything else, HTML above all, stays the text it is: elements are made by
// name, and what the model wrote goes only into text nodes.
//
// While an answer is still being written it ends anywhere: render(into, text, true) holds back what may yet become a
// marker, and shows what is open (a bold word, a block of code) as if it were closed. Blocks that are done stay.

import { DEEPEST, withInline } from "./inline.js";
import { button, element } from "./server.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(?=\S)/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const ONLY_MARKERS = /^(?:[-+=]+|\d{1,9}[.)]?|#{1,6}|>|(?:`{3,}|~{3,}).*)?$/;  // of a line that isn't whole
const OPEN_LINK = /!?\[[^[\]\n]{0,80}(?:\]|\]\([^\s)]{0,300})?$/;

// Show `text` inside the element `into`. open: more of it is to come.
export function render(into, text, open = false) {
  const old = into.blocks ?? [];
  const now = blocks((open ? settled(text) : text).split("\n"), open);
  now.forEach((block, i) => {
    const before = old[i];
    if (before && before.source === block.source && before.open === block.open) {
      block.node = before.node;
    } else if (before?.kind === "code" && block.kind === "code" && before.language === block.language) {
      block.node = before.node;  // the same button, and the reader's selection, while the code grows
      block.node.querySelector("code").textContent = block.code;
    } else {
      block.node = block.build();
      if (before) before.node.replaceWith(block.node);
      else into.append(block.node);
    }
  });
  for (const block of old.slice(now.length)) block.node.remove();
  into.blocks = now;
}

// The text without the end that can't be understood yet.
function settled(text) {
  const lines = text.split("\n"), last = lines.length - 1;
  let fence = null;
  for (const line of lines.slice(0, last)) {
    if (fence === null) fence = FENCE.exec(line)?.[1] ?? null;
    else if (closes(line, fence)) fence = null;
  }
  if (fence !== null) {
    if (lines[last].trim() && fence.startsWith(lines[last].trim())) lines.pop();
    return lines.join("\n");
  }
  const isRow = (i) => i >= 0 && lines[i].trim().startsWith("|");
  if (isRow(last) && !isRow(last - 1)) lines.pop();  // a table's head: wait for the line below
  else if (isRow(last) && !isRow(last - 2) && /^[\s|:-]*$/.test(lines[last])) lines.splice(last - 1);
  else if (ONLY_MARKERS.test(lines[last].trim())) lines[last] = "";
  else {
    lines[last] = lines[last].replace(OPEN_LINK, "").replace(/[*_`~\\]+$/, "");
    if (ONLY_MARKERS.test(lines[last].trim())) lines[last] = "";
  }
  return lines.join("\n");
}

const closes = (line, fence) => line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], "") === "";

// ---- blocks ---------------------------------------------------------------------------------------------------------

// Lines to blocks: {kind, source, open, build() -> element, …}. Only the last block can be open.
function blocks(lines, open, depth = 0) {
  if (depth > DEEPEST) lines = [lines.join(" ").replace(/[->+*#|\d]+/g, " ")];
  const found = [];
  let i = 0;
  const take = (kind, end, more) => {
    const source = lines.slice(i, end).join("\n");
    found.push({ kind, source, open: open && end >= lines.length, ...more });
    i = end;
  };
  while (i < lines.length) {
    const line = lines[i];
    let match;
    if (!line.trim()) {
      i += 1;
    } else if ((match = FENCE.exec(line))) {
      take("code", ...fenced(lines, i, match));
    } else if ((match = HEADING.exec(line))) {
      const [, marks, words] = match, isOpen = open && i + 1 >= lines.length;
      take("heading", i + 1, { build: () => withInline(element(`h${Math.min(marks.length + 2, 6)}`), words, isOpen) });
    } else if (RULE.test(line)) {
      take("rule", i + 1, { build: () => element("hr") });
    } else if (QUOTE.test(line)) {
      take("quote", ...quote(lines, i, open, depth + 1));
    } else if (ITEM.test(line)) {
      take("list", ...list(lines, i, open, depth + 1));
    } else if (line.includes("|") && lines[i + 1]?.includes("|") && DIVIDER.test(lines[i + 1])) {
      take("table", ...table(lines, i, open));
    } else {
      let end = i + 1;
      while (end < lines.length && lines[end].trim() && !startsBlock(lines[end])) end += 1;
      const words = lines.slice(i, end).join("\n"), isOpen = open && end >= lines.length;
      take("paragraph", end, { build: () => withInline(element("p"), words, isOpen) });
    }
  }
  return found;
}

const startsBlock = (line) =>
  FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

function fenced(lines, start, [, fence, language]) {
  let end = start + 1;
  while (end < lines.length && !closes(lines[end], fence)) end += 1;
  const code = lines.slice(start + 1, end).join("\n");
  return [Math.min(end + 1, lines.length), { code, language, build: () => codeBlock(code, language) }];
}

function quote(lines, start, open, depth) {
  let end = start;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(start, end).map((line) => line.replace(QUOTE, ""));
  const isOpen = open && end >= lines.length;
  const build = () => element("blockquote", "", "", ...blocks(inner, isOpen, depth).map((block) => block.build()));
  return [end, { build }];
}

function list(lines, start, open, depth) {
  const ordered = /\d/.test(ITEM.exec(lines[start])[2]);
  const outer = ITEM.exec(lines[start])[1].length;
  const items = [];  // of lines, without their indentation
  let end = start, inside = 0;
  for (; end < lines.length; end += 1) {
    const line = lines[end], item = ITEM.exec(line), indent = line.search(/\S/);
    if (indent < 0) {
      const next = lines.slice(end + 1).find((l) => l.trim());
      const goesOn = next !== undefined && (next.search(/\S/) >= inside || sameList(next, outer, ordered));
      if (!goesOn) break;
      items.at(-1).push("");
    } else if (item && indent < outer + 2 && (end === start || /\d/.test(item[2]) === ordered)) {
      inside = item[0].length;
      items.push([line.slice(inside)]);
    } else if (indent >= Math.min(inside, outer + 2)) {
      items.at(-1).push(line.slice(Math.min(indent, inside)));
    } else if (lines[end - 1].trim() && !startsBlock(line)) {
      items.at(-1).push(line.trim());  // the paragraph goes on without indentation
    } else {
      break;
    }
  }
  const build = () => {
    const made = element(ordered ? "ol" : "ul");
    if (ordered) made.start = parseInt(ITEM.exec(lines[start])[2], 10);
    const isOpen = (n) => open && end >= lines.length && n === items.length - 1;
    items.forEach((item, n) => made.append(listItem(item, isOpen(n), depth)));
    return made;
  };
  return [end, { build }];
}

function sameList(line, outer, ordered) {
  const item = ITEM.exec(line);
  return item !== null && item[1].length < outer + 2 && item[1].length >= outer && /\d/.test(item[2]) === ordered;
}

function listItem(lines, open, depth) {
  const made = element("li");
  blocks(lines, open, depth).forEach((block, n) => {
    const node = block.build();
    if (n === 0 && block.kind === "paragraph") made.append(...node.childNodes);
    else made.append(node);
  });
  return made;
}

const cells = (row) => row.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines, start, open) {
  let end = start + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const sides = cells(lines[start + 1]).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "left"));
  const row = (tag, line, isOpen) => {
    const made = element("tr"), given = cells(line);
    sides.forEach((side, n) => made.append(withInline(element(tag, side), given[n] ?? "", isOpen)));
    return made;
  };
  const build = () => {
    const isOpen = (i) => open && i === lines.length - 1;
    const body = lines.slice(start + 2, end).map((line, n) => row("td", line, isOpen(start + 2 + n)));
    const whole = element("table", "", "", element("thead", "", "", row("th", lines[start], false)), element("tbody", "", "", ...body));
    const scroller = element("div", "table", "", whole);
    scroller.tabIndex = 0;  // wide tables scroll by themselves, with the keyboard too
    return scroller;
  };
  return [end, { build }];
}

function codeBlock(code, language) {
  const text = element("code", "", code), box = element("pre", "", "", text);
  box.tabIndex = 0;
  const copy = button("Copy", "plain", async () => {
    copy.textContent = (await copied(text)) ? "Copied" : "Selected: press Ctrl+C";
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  });
  return element("div", "code", "", element("div", "bar", "", element("span", "", language || "code"), copy), box);
}

async function copied(node) {
  try {
    await navigator.clipboard.writeText(node.textContent);
    return true;
  } catch {  // plain http from another computer: browsers give no clipboard there
    getSelection().selectAllChildren(node);
    return false;
  }
}
