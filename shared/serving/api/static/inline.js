// What stands inside a line of Markdown: inline code, bold, italics, strikethrough, links and line breaks, as elements.

import { element } from "./server.js";

export const DEEPEST = 8;  // models that have lost the thread write a thousand "> " or "**" in a row
const LINK = /\[([^[\]\n]{1,300})\]\((https?:\/\/[^\s<>()]{1,1000}|mailto:[^\s<>()]{1,300})\)/y;
const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const isWord = (letter) => letter !== undefined && /[\p{L}\p{N}]/u.test(letter);
const isSpace = (letter) => letter === undefined || /\s/.test(letter);

// `into`, with the line's elements behind what it has.
export function withInline(into, text, open) {
  into.append(...inline(text, open));
  return into;
}

// Text to nodes. open: a marker without its end counts as closed at the end of the text.
function inline(text, open, depth = 0) {
  if (depth > DEEPEST) return [text];
  const nodes = [], without = new Set();  // markers known to have no end in what is left
  let plain = "", i = 0;
  const add = (node, end) => {
    if (plain) nodes.push(plain);
    nodes.push(node);
    plain = "";
    i = end;
  };
  while (i < text.length) {
    const letter = text[i];
    if (letter === "\\" && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? "")) {
      plain += text[i + 1];
      i += 2;
      continue;
    }
    if (letter === "\n") { add(element("br"), i + 1); continue; }
    if (letter === "`") {
      const ticks = /`+/y;
      ticks.lastIndex = i;
      const mark = ticks.exec(text)[0], start = i + mark.length;
      const end = without.has(mark) ? -1 : endOfCode(text, mark, start);
      if (end < 0) without.add(mark);
      if (end >= 0 || (open && start < text.length)) {
        const code = text.slice(start, end < 0 ? text.length : end);
        add(element("code", "", code.replace(/^ (.*\S.*) $/s, "$1").replaceAll("\n", " ")), end < 0 ? text.length : end + mark.length);
      } else {
        plain += mark;
        i = start;
      }
      continue;
    }
    if (letter === "[") {
      LINK.lastIndex = i;
      const link = LINK.exec(text);
      if (link) { add(anchor(link[1], link[2]), i + link[0].length); continue; }
    }
    const found = MARKS.find(([mark]) => text.startsWith(mark, i));
    if (found && opens(text, i, found[0])) {
      const [mark, tag] = found, start = i + mark.length;
      const end = without.has(mark) ? -1 : endOf(text, mark, start);
      if (end < 0) without.add(mark);
      if (end >= 0 || open) {
        const inner = text.slice(start, end < 0 ? text.length : end);
        add(element(tag, "", "", ...inline(inner, open && end < 0, depth + 1)), end < 0 ? text.length : end + mark.length);
        continue;
      }
    }
    const step = found ? found[0].length : String.fromCodePoint(text.codePointAt(i)).length;
    plain += text.slice(i, i + step);
    i += step;
  }
  if (plain) nodes.push(plain);
  return nodes;
}

const opens = (text, at, mark) => !isSpace(text[at + mark.length]) && !(mark[0] === "_" && isWord(text[at - 1]));

function endOf(text, mark, start) {
  for (let at = text.indexOf(mark, start + 1); at >= 0; at = text.indexOf(mark, at + 1)) {
    if (mark.length === 1 && (text[at + 1] === mark || text[at - 1] === mark)) continue;  // half of a double one
    if (mark.length === 2 && text[at + 2] === mark[0]) continue;  // "***": the last two are the outer ones
    if (isSpace(text[at - 1]) || (mark[0] === "_" && isWord(text[at + mark.length]))) continue;
    return at;
  }
  return -1;
}

function endOfCode(text, mark, start) {
  for (let at = text.indexOf(mark, start); at >= 0; at = text.indexOf(mark, at + 1)) {
    if (text[at - 1] !== "`" && text[at + mark.length] !== "`") return at;
  }
  return -1;
}

function anchor(text, address) {
  const made = element("a", "", text);
  made.href = address;  // http, https or mailto: LINK takes nothing else
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  return made;
}
