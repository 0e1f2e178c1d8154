/** The operations page: asks how the flow stands every two seconds while somebody sees the page, and draws it. */

import {connects, disconnected, status, why_refused} from "./connecting.js";
import {$, count, el} from "./dom.js";
import {draw_flow, rate} from "./flow.js";
import {figure, says, table} from "./tables.js";

const EVERY_MS = 2000;
const PATIENCE_MS = 8000;
const FORBIDDEN = "This key is no administrator's: it may not see the operations of the service.";
let token = "",
  timer = null;

function refused(why) {
  token = "";
  clearTimeout(timer);
  disconnected(why);
}

async function look() {
  clearTimeout(timer);
  if (!token) return;
  if (!document.hidden) {
    try {
      const answer = await fetch("/api/operations", {
        headers: {authorization: `Bearer ${token}`},
        signal: AbortSignal.timeout(PATIENCE_MS),
      });
      const body = await answer.json();
      if (answer.status === 401 || answer.status === 403) {
        return refused(why_refused(answer.status, body.error, FORBIDDEN));
      }
      if (!answer.ok) throw new Error(body.error?.message ?? "");
      show(body);
    } catch (error) {
      status(`the gateway does not answer ${error.message && `(${error.message})`}`, "error");
    }
  }
  timer = setTimeout(look, EVERY_MS);
}

function show(now) {
  const age_s = now.looked_ago_ms === null ? null : now.looked_ago_ms / 1000;
  if (now.log_state === "unavailable") status("Kafka does not say how it is; this is what was seen last", "error");
  else if (now.log_state === "looking") status("looking …", "up");
  else status(`live · ${now.region} · seen ${age_s.toFixed(0)} s ago`, "up");
  $("figures").replaceChildren(...figures(now));
  draw_flow($("flow"), now);
  show_pools(now);
  show_workers(now);
  table(
    $("lag"),
    ["Group", "Topic", "#Records behind"],
    now.groups.map(each => [each.group, each.topic, count(each.lag)]),
    "Nothing is known yet.",
  );
  table(
    $("reasons"),
    ["Code", "#Answers", "Reason"],
    now.endings.map(each => [
      el("span", {className: each.is_error ? "bad" : ""}, each.code),
      count(each.count),
      says(each.reason),
    ]),
    "Nothing has ended lately.",
  );
  table(
    $("recent"),
    ["Time", "Code", "Model", "#Tokens", "Reason"],
    now.recent_endings.map(each => [
      new Date(each.at_ms).toLocaleTimeString(),
      el("span", {className: each.is_error ? "bad" : ""}, each.code),
      each.model,
      count(each.completion_tokens),
      says(each.reason),
    ]),
    "Nothing has ended lately.",
  );
}

function show_pools(now) {
  table(
    $("pools"),
    ["Pool", "Brownout", "Workers", "KV blocks", "Prompts cached", "Since", "Why"],
    now.pools.map(pool => [
      pool.pool,
      el("span", {className: pool.level ? "bad" : ""}, `level ${pool.level}`),
      el(
        "span",
        {className: pool.workers_ready ? "" : "bad"},
        `${count(pool.workers_ready)} of ${count(pool.workers)} ready`,
      ),
      blocks(pool),
      cached(pool),
      pool.since_ms === null ? "–" : new Date(pool.since_ms).toLocaleString(),
      says(pool.why || "–"),
    ]),
    "There is no pool.",
  );
  table(
    $("lanes"),
    ["Pool", "Lane", "#Waiting", "#Oldest", "#Wait", "#Ahead", "#Open"],
    now.lanes.map(each => [
      each.pool,
      each.lane,
      known(each.waiting, count),
      known(each.oldest_ms, lasting),
      known(each.wait_ms, wait_ms => `about ${lasting(wait_ms)}`),
      known(each.before, count),
      count(each.open),
    ]),
    "There is no lane.",
  );
  table(
    $("shares"),
    ["Pool", "Part by weight", "Tenant", "#Tokens ÷ weight"],
    now.shares.map(each => [
      each.pool,
      el("span", {}, part(each.share), ` ${percent(each.share)}`),
      says(each.tenant_id),
      count(each.given),
    ]),
    "No pool has given anybody anything in the last minute.",
  );
}

function show_workers(now) {
  table(
    $("workers"),
    ["Worker", "Pool", "State", "Running", "Waiting", "Spilled", "Tokens/s", "KV blocks", "Prompts cached"],
    now.workers.map(worker => [
      el("span", {title: `${worker.model} on ${worker.engine}`}, worker.worker_id),
      worker.pool,
      standing(worker),
      `${count(worker.running)} of ${count(worker.max_running)}`,
      count(worker.waiting),
      count(worker.spilled),
      rate(worker.tokens_per_second),
      blocks(worker),
      cached(worker),
    ]),
    "No worker has said anything.",
  );
}

const known = (value, shown) => (value === null ? "–" : shown(value));
const percent = share => `${(100 * share).toFixed(0)} %`;
const part = share => el("meter", {max: 1, value: share, "aria-label": "Part of the pool's service"});

/** "0.4 s", "75 s", "12 min". */
function lasting(ms) {
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  return ms < 100_000 ? `${Math.round(ms / 1000)} s` : `${count(Math.round(ms / 60_000))} min`;
}

const cached = of => (of.prompt_tokens ? percent(of.cached_tokens / of.prompt_tokens) : "–");

function standing(worker) {
  if (worker.state !== "ready" || !worker.failing) return el("span", {className: `state ${worker.state}`}, worker.state);
  const title = `${worker.failing} requests failed; it is tried with one at a time`;
  return el("span", {className: "state failed", title}, "engine fails");
}

/** Of a worker or a pool. */
function blocks(of) {
  if (!of.kv_blocks_total) return "none";
  const shown = `${count(of.kv_blocks_used)} / ${count(of.kv_blocks_total)}`;
  return el(
    "span",
    {},
    el("meter", {
      max: of.kv_blocks_total,
      value: of.kv_blocks_used,
      high: of.kv_blocks_total * 0.9,
      "aria-label": "KV blocks used",
    }),
    ` ${shown}`,
  );
}

function figures(now) {
  const {first_token: first, gateway} = now;
  const requests = now.topics.find(each => each.topic === "requests")?.records_per_s;
  const generated = now.workers.reduce(
    (sum, worker) => sum + (worker.state === "gone" ? 0 : worker.tokens_per_second),
    0,
  );
  const ms = value =>
    value === null ? "–" : value < 1000 ? `${value.toFixed(0)} ms` : `${(value / 1000).toFixed(1)} s`;
  return [
    ["requests/s", rate(requests)],
    ["tokens/s generated", rate(generated)],
    ["tokens/s delivered", rate(gateway.delivered_tokens_per_s)],
    ["open responses", count(gateway.open_responses)],
    ["viewers", count(gateway.viewers)],
    ["first token p50", ms(first.p50_ms)],
    ["first token p95", ms(first.p95_ms)],
    ["first token p99", ms(first.p99_ms)],
    ...now.pools
      .filter(each => each.level > 0)
      .map(each => [`brownout of ${each.pool}`, el("span", {className: "bad"}, `level ${each.level}`)]),
    ...gateway.open_circuits.map(each => [`asked by ${gateway.gateway_id}`, el("span", {className: "bad"}, `${each} is away`)]),
  ].map(([label, value]) => figure(label, value));
}

connects(["operations"], FORBIDDEN, async lent => {
  token = lent;
  await look();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});
