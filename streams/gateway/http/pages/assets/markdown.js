/** Markdown as elements. A library reads it; what it read is built here, tag by tag, and nothing is ever markup.
 *
 *  So whatever a model writes, no element, attribute or address appears that this file does not name.
 */

import {lexer} from "./vendor/marked.esm.js";
import {button, el} from "./dom.js";

const MAX_CHARS = 100_000;
const MAX_DEPTH = 40;
const SAFE_ADDRESS = /^(?:https?:\/\/|mailto:)/i;
const ENTITIES = {amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'"};

const text = written => written.replace(/&(amp|lt|gt|quot|apos|nbsp|#39);/g, (_, name) => ENTITIES[name]);

/** A fragment. What is too long or too deep to be worth it is shown as it was written. */
export function markdown(written) {
  const fragment = document.createDocumentFragment();
  try {
    if (written.length > MAX_CHARS) throw new RangeError("too long");
    fragment.append(...blocks(lexer(written), 0));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    fragment.replaceChildren(el("p", {className: "as-written"}, written));
  }
  return fragment;
}

function deeper(depth) {
  if (depth >= MAX_DEPTH) throw new RangeError("too deep");
  return depth + 1;
}

function blocks(tokens, depth) {
  return tokens.map(token => block(token, deeper(depth))).filter(node => node !== null);
}

function block(token, depth) {
  switch (token.type) {
    case "paragraph":
      return el("p", {}, ...inlines(token.tokens, depth));
    // The page has headings of its own above these.
    case "heading":
      return el(`h${Math.min(6, token.depth + 2)}`, {}, ...inlines(token.tokens, depth));
    case "code":
      return code(token);
    case "blockquote":
      return el("blockquote", {}, ...blocks(token.tokens, depth));
    case "list":
      return list(token, depth);
    case "table":
      return table(token, depth);
    case "hr":
      return el("hr");
    case "space":
    case "def":
      return null;
    default:
      return el("span", {}, ...(token.tokens ? inlines(token.tokens, depth) : [inline(token, depth)]));
  }
}

function code(token) {
  const language = (token.lang ?? "").split(/\s/)[0].slice(0, 30);
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(token.text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not allowed here";
    }
  });
  // Whoever has no mouse must be able to scroll it.
  const shown = el("pre", {tabIndex: 0}, el("code", {}, token.text));
  return el("figure", {className: "code"}, el("figcaption", {}, el("span", {}, language || "text"), copy), shown);
}

function list(token, depth) {
  const made = el(token.ordered ? "ol" : "ul");
  if (token.ordered && Number.isSafeInteger(token.start)) made.start = token.start;
  made.append(...token.items.map(item => el("li", {}, ...blocks(item.tokens, depth))));
  return made;
}

function table(token, depth) {
  const cell = tag => part => {
    const made = el(tag, {}, ...inlines(part.tokens, depth));
    if (["left", "center", "right"].includes(part.align)) made.style.textAlign = part.align;
    return made;
  };
  const rows = token.rows.map(row => el("tr", {}, ...row.map(cell("td"))));
  const made = el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...token.header.map(cell("th")))),
    el("tbody", {}, ...rows),
  );
  return el("div", {className: "wide", tabIndex: 0}, made);
}

function inlines(tokens, depth) {
  return tokens.map(token => inline(token, deeper(depth)));
}

function inline(token, depth) {
  switch (token.type) {
    case "strong":
      return el("strong", {}, ...inlines(token.tokens, depth));
    case "em":
      return el("em", {}, ...inlines(token.tokens, depth));
    case "del":
      return el("del", {}, ...inlines(token.tokens, depth));
    case "codespan":
      return el("code", {}, token.text);
    case "br":
      return el("br");
    case "checkbox":
      return document.createTextNode(token.checked ? "☑ " : "☐ ");
    case "link":
      return link(token.href, inlines(token.tokens, depth));
    // A picture would be fetched from wherever the model says, and tell that somebody reads this.
    case "image":
      return link(token.href, [`picture: ${token.text || token.href}`]);
    case "escape":
      return document.createTextNode(token.text);
    // Markup is what was written, no more.
    case "html":
      return document.createTextNode(token.raw);
    default:
      return token.tokens ? el("span", {}, ...inlines(token.tokens, depth)) : document.createTextNode(text(token.raw));
  }
}

function link(address, shown) {
  if (!SAFE_ADDRESS.test(address)) return el("span", {}, ...shown);
  return el("a", {href: address, target: "_blank", rel: "noopener noreferrer nofollow", title: address}, ...shown);
}
