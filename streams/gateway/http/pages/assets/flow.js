/** The dataflow as a picture: where requests go, how many a second, and what waits where. */

import {about, count, el, svg as node} from "./dom.js";

const WIDTH = 1120,
  BOX = 124,
  TALL = 62,
  GAP = 16,
  TOP = 8;
const COLUMNS = {requests: 1, admission: 200, lanes: 399, workers: 598, post: 797, end: 995};
const BEHIND = 1000;
/** Records from which on a group is said to be behind. */
const MAX_SHOWN = 8;
const MAX_TITLE = 13;

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 && value > 0 ? value.toFixed(1) : count(Math.round(value));
}

/** A box with a title, lines below it, and a bar for what is used of something. */
function box(x, y, title, lines, {behind = false, broken = false, used = null} = {}) {
  const height = TALL + (used === null ? 0 : 10);
  const parts = [
    node("rect", {class: `box${broken ? " broken" : behind ? " behind" : ""}`, x, y, width: BOX, height, rx: 9}),
    node("text", {class: "title", x: x + 10, y: y + 20}, title),
    ...lines.map((line, at) =>
      node("text", {class: line.alarm ? "alarm" : "faint", x: x + 10, y: y + 37 + 15 * at}, line.alarm ?? line),
    ),
  ];
  if (used !== null) {
    parts.push(
      node("rect", {class: "bar", x: x + 10, y: y + height - 12, width: BOX - 20, height: 5, rx: 2.5}),
      node("rect", {
        class: "used",
        x: x + 10,
        y: y + height - 12,
        width: Math.max(0, (BOX - 20) * Math.min(1, used)),
        height: 5,
        rx: 2.5,
      }),
    );
  }
  return {x, y, height, middle: y + height / 2, parts};
}

/** From box to box; with what flows along it in a second, where that is known. */
function edge(from, to, per_second = null, flows = per_second > 0) {
  const [x1, y1, x2, y2] = [from.x + BOX, from.middle, to.x, to.middle];
  const x = (x1 + x2) / 2;
  const path = node("path", {
    class: `edge${flows ? " flows" : ""}`,
    d: `M${x1} ${y1} C${x} ${y1} ${x} ${y2} ${x2} ${y2}`,
  });
  if (per_second === null) return [path];
  return [
    path,
    node("text", {class: "rate", x, y: (y1 + y2) / 2 + 4, "text-anchor": "middle"}, `${rate(per_second)}/s`),
  ];
}

/** Boxes below one another, around the middle of the picture. */
function column(x, height, rows) {
  const total = rows.reduce((sum, row) => sum + TALL + (row.more?.used === undefined ? 0 : 10) + GAP, -GAP);
  let y = TOP + (height - total) / 2;
  return rows.map(row => {
    const made = box(x, y, row.title, row.lines, row.more);
    y += made.height + GAP;
    return made;
  });
}

/** Of a lane in which requests wait for engines, and one that comes now would. */
function waits({waiting, wait_ms}) {
  return `${count(waiting)} wait${about(wait_ms)}`;
}

function lag_of(now, group) {
  const lag = now.groups.filter(each => each.group === group).reduce((sum, each) => sum + each.lag, 0);
  return {lines: [now.groups.length ? `${count(lag)} behind` : "not seen yet"], more: {behind: lag >= BEHIND}};
}

/** Of a long name the end, which tells it from others. */
const short = name => (name.length > MAX_TITLE ? `…${name.slice(1 - MAX_TITLE)}` : name);
const many = (number, what) => `${count(number)} ${what}${number > 1 ? "s" : ""}`;

/** What the picture has no room for; "" where it has. */
function left_out(now, others) {
  const told = [];
  if (others.length) told.push(`${many(others.length, "lane")} in one box.`);
  if (now.workers.length > MAX_SHOWN) told.push(`Not drawn: ${many(now.workers.length - MAX_SHOWN, "worker")}.`);
  return told.join(" ");
}

/** Which lanes have a box each: those that are used come first. The others share the last box, so that no worker
 *  stands without what it reads. */
function parted(lanes) {
  const use = each => (each.records_per_s ?? 0) + each.open;
  const order = [...lanes].sort((a, b) => use(b) - use(a));
  const own = new Set(order.slice(0, lanes.length > MAX_SHOWN ? MAX_SHOWN - 1 : MAX_SHOWN));
  return [lanes.filter(each => own.has(each)), lanes.filter(each => !own.has(each))];
}

/** A box of lanes: its row, and what edges need to know. */
function lane_box(lanes, title, lines) {
  const sum = of => lanes.reduce((total, each) => total + (of(each) ?? 0), 0);
  const open = sum(each => each.open);
  return {
    pools: new Set(lanes.map(each => each.pool)),
    per_second: sum(each => each.records_per_s),
    row: {title, lines: lines(open), more: {behind: open >= BEHIND}},
  };
}

function lane_boxes(own, others) {
  const boxes = own.map(each =>
    lane_box([each], each.lane, open => [each.pool.slice(0, 18), each.waiting ? waits(each) : `${count(open)} open`]),
  );
  if (!others.length) return boxes;
  const pools = new Set(others.map(each => each.pool)).size;
  const title = many(others.length, "more lane");
  return [...boxes, lane_box(others, title, open => [`of ${many(pools, "pool")}`, `${count(open)} open`])];
}

export function draw_flow(place, now) {
  const per_second = topic => now.topics.find(each => each.topic === topic)?.records_per_s;
  const [lanes, others] = parted(now.lanes);
  const boxes_of_lanes = lane_boxes(lanes, others);
  const workers = now.workers.slice(0, MAX_SHOWN);
  const rows = {
    lanes: boxes_of_lanes.map(each => each.row),
    workers: workers.map(each => ({
      title: short(each.worker_id),
      lines: [
        each.state === "ready" ? `${each.running}/${each.max_running} run, ${each.waiting} wait` : {alarm: each.state},
        `${rate(each.tokens_per_second)} tokens/s`,
      ],
      more: {
        broken: ["gone", "failed"].includes(each.state),
        used: each.kv_blocks_total ? each.kv_blocks_used / each.kv_blocks_total : 0,
      },
    })),
  };
  if (!workers.length)
    rows.workers = [{title: "no worker", lines: ["none has said anything"], more: {broken: now.log_state === "seen"}}];
  const height = (TALL + 10 + GAP) * Math.max(3, rows.lanes.length, rows.workers.length);
  const one = (x, title, more) => column(x, height, [{title, ...more}])[0];
  const sources = column(COLUMNS.requests, height, [
    {title: "requests", lines: ["from gateways"]},
    {title: "intake.batch", lines: ["from producers"]},
  ]);
  const admission = one(COLUMNS.admission, "admission", lag_of(now, "admission"));
  const drawnLanes = column(COLUMNS.lanes, height, rows.lanes),
    drawnWorkers = column(COLUMNS.workers, height, rows.workers);
  const behind = lag_of(now, "post-safety");
  const post = one(COLUMNS.post, "post-safety", {
    ...behind,
    lines: [...behind.lines, `${rate(per_second("generated"))} records/s in`],
  });
  const [gateway, settlement, billing] = column(COLUMNS.end, height, [
    {title: "gateways", ...lag_of(now, "gateway")},
    {title: "settlement", ...lag_of(now, "settlement")},
    {title: "billing", ...lag_of(now, "billing")},
  ]);
  const shown = topic => per_second(topic) || null;
  const edges = [
    edge(sources[0], admission, per_second("requests") ?? null),
    edge(sources[1], admission, shown("intake.batch")),
    ...drawnLanes.map((lane, at) => edge(admission, lane, boxes_of_lanes[at].per_second || null)),
    ...drawnLanes.flatMap((lane, at) =>
      drawnWorkers
        .filter((_, number) => !workers.length || boxes_of_lanes[at].pools.has(workers[number].pool))
        .map(worker => edge(lane, worker, null, boxes_of_lanes[at].per_second > 0)),
    ),
    ...drawnWorkers.map((worker, at) => edge(worker, post, null, workers[at]?.tokens_per_second > 0)),
    edge(post, gateway, shown("responses")),
    edge(post, settlement, shown("usage")),
    edge(post, billing, shown("usage")),
  ];
  const boxes = [...sources, admission, ...drawnLanes, ...drawnWorkers, post, gateway, settlement, billing];
  const missing = left_out(now, others);
  const told = `Requests ${rate(per_second("requests"))} a second; ${lanes.map(each => `${each.lane} lane of ${each.pool}: ${each.open} open${each.waiting ? `, ${waits(each)}` : ""}`).join("; ")}. ${missing} The tables below say all of it.`;
  place.replaceChildren(
    node(
      "svg",
      {viewBox: `0 0 ${WIDTH} ${height + 2 * TOP}`, role: "img", "aria-label": told},
      ...edges.flat(),
      ...boxes.flatMap(each => each.parts),
    ),
    ...(missing ? [el("p", {className: "small faint"}, `${missing} The tables below have all of them.`)] : []),
  );
}
