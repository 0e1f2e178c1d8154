/** Bars over time, one on another, as a picture; beside it the words for who hears the page. */

import {el, svg} from "./dom.js";

const HEIGHT = 190,
  LEFT = 84,
  RIGHT = 6,
  TOP = 8,
  BOTTOM = 22,
  LEAST_WIDTH = 260,
  LABEL_WIDTH = 84;
export const MOST_SERIES = 6;
/** Of which each has a colour; the smaller ones are added up. */

/** 1, 2 or 5 times a power of ten, so that three or four lines lie below the top. */
function step_of(top) {
  const rough = top / 4,
    power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map(each => each * power).find(each => each >= rough);
}

/** The largest series by their sums, and one of all others; each with its values of every bucket. */
export function ranked(series, others) {
  const sum = values => values.reduce((total, value) => total + value, 0);
  const sorted = [...series].map(([name, values]) => ({name, values, sum: sum(values)})).sort((a, b) => b.sum - a.sum);
  if (sorted.length <= MOST_SERIES) return sorted;
  const rest = sorted.slice(MOST_SERIES - 1);
  const values = rest[0].values.map((_, at) => sum(rest.map(each => each.values[at])));
  return [...sorted.slice(0, MOST_SERIES - 1), {name: others(rest.length), values, sum: sum(values)}];
}

function axis(top, width, shown) {
  const step = step_of(top),
    lines = [];
  for (let value = 0; value <= top * 1.0001; value += step) {
    const y = HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / top;
    lines.push(
      svg("line", {class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y}),
      svg("text", {class: "mark", x: LEFT - 6, y: y + 4, "text-anchor": "end"}, shown(value)),
    );
  }
  return lines;
}

function bars(buckets, series, top, place, shown) {
  const drawn = [];
  buckets.forEach((bucket, at) => {
    let y = HEIGHT - BOTTOM;
    series.forEach(({name, values}, rank) => {
      const height = ((HEIGHT - TOP - BOTTOM) * values[at]) / top;
      if (!(height > 0)) return;
      y -= height;
      const box = {x: place.left(at), y, width: place.bar, height};
      drawn.push(
        svg(
          "rect",
          {class: `series-${rank}${bucket.estimate ? " estimate" : ""}`, ...box},
          svg("title", {}, `${bucket.label} · ${name}: ${shown(values[at])}${bucket.estimate ? ", may still grow" : ""}`),
        ),
      );
    });
  });
  return drawn;
}

/** Draws `series`, as `ranked` gives them, over `buckets` of `{label, mark, estimate}`; `shown` writes a value. */
export function draw_bars(place, title, buckets, series, shown) {
  const highest = Math.max(0, ...buckets.map((_, at) => series.reduce((sum, each) => sum + each.values[at], 0)));
  if (!highest) return place.replaceChildren(el("p", {className: "faint small"}, "Nothing was used."));
  const width = Math.max(LEAST_WIDTH, place.clientWidth);
  const slot = (width - LEFT - RIGHT) / buckets.length;
  const bar = Math.max(1, slot - Math.min(4, slot / 4));
  const left = at => LEFT + slot * at + (slot - bar) / 2;
  const every = Math.ceil(LABEL_WIDTH / slot);
  const marks = buckets.flatMap(({mark}, at) =>
    at % every ? [] : [svg("text", {class: "mark", x: left(at), y: HEIGHT - 5}, mark)],
  );
  const told = `${title}: ${series.map(each => `${each.name} ${shown(each.sum)}`).join("; ")}. The table below has the figures.`;
  place.replaceChildren(
    svg(
      "svg",
      {viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": told},
      ...axis(highest, width, shown),
      ...bars(buckets, series, highest, {left, bar}, shown),
      ...marks,
    ),
    el(
      "ul",
      {className: "legend"},
      ...series.map((each, rank) =>
        el("li", {}, el("i", {className: `series-${rank}`, "aria-hidden": "true"}), `${each.name} `, el("b", {}, shown(each.sum))),
      ),
    ),
  );
}
