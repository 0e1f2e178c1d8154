/** The usage page: asks what was used in a period, by model, lane and key, and draws it. */

import {draw_bars, ranked} from "./bars.js";
import {Refused, answered} from "./calls.js";
import {connects, disconnected, status, why_refused} from "./connecting.js";
import {$, count, el} from "./dom.js";
import {figure, table} from "./tables.js";

const EVERY_MS = 60_000,
  MOST_PAGES = 20,
  PICO = 12;
const HOUR_S = 3600,
  DAY_S = 86_400;
const FORBIDDEN = "This key may not see usage: it has not the scope “usage”.";
const PERIODS = {
  hours: {width: "1h", bucket_s: HOUR_S, buckets: 24},
  week: {width: "1d", bucket_s: DAY_S, buckets: 7},
  month: {width: "1d", bucket_s: DAY_S, buckets: 30},
  quarter: {width: "1d", bucket_s: DAY_S, buckets: 90},
};
const GROUPS = ["model", "lane", "key_id"];
const NAMELESS = {model: "no model", lane: "no lane", key_id: "no key"};
const CLASSES = ["uncached_input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens"];
let token = "",
  timer = null,
  asking = 0,
  seen = null;
/** What was told last: of each group its buckets. */

// -- what is asked ----------------------------------------------------------------------------------------------------

/** From the beginning of a bucket to the end of the one that runs, in UTC. */
function interval() {
  const {width, bucket_s, buckets} = PERIODS[$("period").value];
  const end = (Math.floor(Date.now() / 1000 / bucket_s) + 1) * bucket_s;
  return new URLSearchParams({bucket_width: width, start_time: end - buckets * bucket_s, end_time: end});
}

const shown_key = () => ({authorization: `Bearer ${token}`});

/** All buckets of the period, each with its results by the group; and how fresh they are. */
async function usage_by(group) {
  const params = interval();
  params.set("group_by", group);
  const told = {buckets: [], finalized_through: Infinity};
  for (let page = 0; page < MOST_PAGES; page++) {
    const answer = await answered(`/api/usage?${params}`, shown_key());
    told.buckets.push(...answer.data);
    told.finalized_through = Math.min(told.finalized_through, answer.finalized_through);
    if (!answer.next_page) return told;
    params.set("page", answer.next_page);
  }
  throw new Refused({code: "invalid_request", message: "That is too much to be shown; choose a shorter period."});
}

async function look() {
  clearTimeout(timer);
  if (!token) return;
  if (!document.hidden) await look_now(++asking);
  timer = setTimeout(look, EVERY_MS);
}

async function look_now(mine) {
  $("now").setAttribute("aria-busy", "true");
  try {
    const told = {};
    for (const group of GROUPS) told[group] = await usage_by(group);
    if (mine !== asking) return;
    seen = told;
    $("failure").hidden = true;
    status("connected", "up");
    measures();
    show();
  } catch (error) {
    failed(error);
  } finally {
    if (mine === asking) $("now").setAttribute("aria-busy", "false");
  }
}

function failed(error) {
  if (!(error instanceof Refused)) throw error;
  if (error.status === 401 || error.status === 403) {
    token = "";
    clearTimeout(timer);
    return disconnected(why_refused(error.status, error.failure, FORBIDDEN));
  }
  status("the figures cannot be had now", "error");
  $("failure").textContent = error.message;
  $("failure").hidden = false;
}

async function save(file_format) {
  const params = interval();
  params.set("group_by", GROUPS.join(","));
  params.set("format", file_format);
  try {
    const answer = await fetch(`/api/usage/export?${params}`, {headers: shown_key()});
    if (!answer.ok) {
      const {error} = await answer.json();
      throw new Refused({code: error.code, message: error.message}, answer.status);
    }
    const name = answer.headers.get("content-disposition").match(/filename="([^"]+)"/)[1];
    const address = URL.createObjectURL(await answer.blob());
    el("a", {href: address, download: name}).click();
    setTimeout(() => URL.revokeObjectURL(address), EVERY_MS);
    $("failure").hidden = true;
  } catch (error) {
    failed(error instanceof Refused ? error : new Refused({code: "unreachable", message: "The gateway cannot be reached."}));
  }
}

// -- what is shown ----------------------------------------------------------------------------------------------------

/** An exact decimal of whole pico-currency. */
function money(pico) {
  const digits = pico.toString().padStart(PICO + 1, "0");
  const fraction = digits.slice(-PICO).replace(/0+$/, "");
  return `${count(BigInt(digits.slice(0, -PICO)))}${fraction && `.${fraction}`}`;
}

/** The same for a picture: three digits that tell. */
const short = value => new Intl.NumberFormat("en", {notation: value >= 10_000 ? "compact" : "standard", maximumSignificantDigits: 3}).format(value);
const tokens = result => CLASSES.reduce((sum, name) => sum + result[name], 0);
const total = (results, of) => results.reduce((sum, result) => sum + of(result), 0);
const pico = results => results.reduce((sum, result) => sum + BigInt(result.cost_pico), 0n);
const results_of = group => seen[group].buckets.flatMap(bucket => bucket.results);
const currencies = () => [...new Set(results_of("model").map(result => result.currency))].filter(Boolean).sort();

/** What may be shown: cost in each currency that there is, tokens, requests. */
function measures() {
  const chosen = $("measure").value;
  const names = [...currencies().map(currency => [`cost:${currency}`, `cost in ${currency}`]), ["tokens", "tokens"], ["requests", "requests"]];
  $("measure").replaceChildren(...names.map(([value, text]) => el("option", {value}, text)));
  if (names.some(([value]) => value === chosen)) $("measure").value = chosen;
}

function measured() {
  const [kind, currency] = $("measure").value.split(":");
  if (kind === "tokens") return {of: tokens, shown: short};
  if (kind === "requests") return {of: result => result.requests, shown: short};
  const of = result => (result.currency === currency ? Number(result.cost_pico) / 10 ** PICO : 0);
  return {of, shown: value => `${short(value)} ${currency}`};
}

function labels(bucket) {
  const moment = new Date(bucket.start_time * 1000).toISOString();
  const is_hour = PERIODS[$("period").value].width === "1h";
  const label = is_hour ? `${moment.slice(0, 10)} ${moment.slice(11, 16)} UTC` : moment.slice(0, 10);
  return {label, mark: is_hour ? moment.slice(11, 16) : moment.slice(5, 10), estimate: bucket.estimate};
}

function show_plot(group) {
  const {of, shown} = measured();
  const {buckets} = seen[group];
  const series = new Map();
  buckets.forEach((bucket, at) => {
    for (const result of bucket.results) {
      const name = result[group] || NAMELESS[group];
      if (!series.has(name)) series.set(name, buckets.map(() => 0));
      series.get(name)[at] += of(result);
    }
  });
  const title = `Usage by ${group === "key_id" ? "key" : group}`;
  draw_bars($(group), title, buckets.map(labels), ranked(series, left => `${left} others`), shown);
}

function show_sums() {
  const results = results_of("model");
  const input = total(results, each => each.uncached_input_tokens + each.cached_input_tokens);
  const cached = total(results, each => each.cached_input_tokens);
  const waiting = total(results, each => each.suspense_events);
  const costs = currencies().map(currency => [`cost in ${currency}`, money(pico(results.filter(each => each.currency === currency)))]);
  $("figures").replaceChildren(
    ...[
      ...costs,
      ["requests", count(total(results, each => each.requests))],
      ["input tokens", count(input)],
      ["of these cached", input ? `${((100 * cached) / input).toFixed(0)} %` : "–"],
      ["output tokens", count(total(results, each => each.output_tokens + each.reasoning_tokens))],
      ...(waiting ? [["wait for a price", el("span", {className: "bad"}, count(waiting))]] : []),
    ].map(([label, value]) => figure(label, value)),
  );
}

function show_table() {
  const group = $("by").value;
  const name = $("by").selectedOptions[0].textContent;
  const rows = seen[group].buckets.toReversed().flatMap(bucket =>
    bucket.results.map(result => [
      `${labels(bucket).label}${bucket.estimate ? " ~" : ""}`,
      result[group] || NAMELESS[group],
      count(result.requests),
      ...CLASSES.map(each => count(result[each])),
      result.currency ? `${money(BigInt(result.cost_pico))} ${result.currency}` : result.suspense_events ? "no price yet" : "–",
    ]),
  );
  const columns = ["From (UTC)", name[0].toUpperCase() + name.slice(1), "#Requests", "#Input", "#Cached", "#Output", "#Reasoning", "#Cost"];
  table($("table"), columns, rows, "Nothing was used.");
}

function show() {
  if (!seen) return;
  show_sums();
  GROUPS.forEach(show_plot);
  show_table();
  const through = new Date(Math.min(...GROUPS.map(group => seen[group].finalized_through)));
  $("finalized").textContent =
    `All that had ended by ${through.toISOString().slice(0, 19).replace("T", " ")} UTC is counted. What is pale, or marked ~, ` +
    "is an estimate: what was accepted then may still be running, or wait for a price. Days are those of UTC; the cost of a request stands in the hour in which it was accepted.";
}

$("period").onchange = look;
$("measure").onchange = show;
$("by").onchange = show;
$("csv").onclick = () => save("csv");
$("parquet").onclick = () => save("parquet");
$("asked").onsubmit = event => event.preventDefault();
new ResizeObserver(() => $("now").hidden || show()).observe($("now"));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});
connects(["usage"], FORBIDDEN, async lent => {
  token = lent;
  status("asking …");
  await look();
});
