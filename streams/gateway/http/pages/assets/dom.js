/** Elements without markup: whatever a model or a person wrote becomes text, and nothing else. */

export const $ = id => document.getElementById(id);

/** An element with these properties (`aria-…`, `data-…` and the like as attributes) and children; strings are text. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

/** The same of a picture, whose properties are all attributes. */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function hidden(text) {
  return el("span", {className: "visually-hidden"}, text);
}

/** A button that says what it does to who hears it, too. */
export function button(label, act, properties = {}) {
  return el("button", {type: "button", textContent: label, onclick: act, ...properties});
}

/** "1,234" of 1234. */
export const count = number => new Intl.NumberFormat("en").format(number);

/** ", about 4 s"; nothing where it is not known. */
export function about(wait_ms) {
  if (wait_ms === null) return "";
  const seconds = Math.ceil(wait_ms / 1000);
  return seconds < 100 ? `, about ${seconds} s` : `, about ${Math.round(seconds / 60)} min`;
}
