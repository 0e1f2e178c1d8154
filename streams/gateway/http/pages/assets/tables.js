/** Figures as tables. */

import {el} from "./dom.js";

/** A cell of words, which may be broken into lines. */
export const says = text => ({says: text});

/** Columns that begin with # are numbers. The place keeps what its reader has scrolled to. */
export function table(place, columns, rows, nothing) {
  if (!rows.length) return place.replaceChildren(el("p", {className: "faint small"}, nothing));
  const kind = at => (columns[at].startsWith("#") ? "number" : "");
  const cell = (value, at) =>
    value?.says !== undefined ? el("td", {className: "says"}, value.says) : el("td", {className: kind(at)}, value);
  const head = columns.map((column, at) => el("th", {className: kind(at), scope: "col"}, column.replace("#", "")));
  place.replaceChildren(
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...head)),
      el("tbody", {}, ...rows.map(row => el("tr", {}, ...row.map(cell)))),
    ),
  );
}

export function figure(label, value) {
  return el("div", {className: "figure"}, el("b", {}, value), el("span", {}, label));
}
