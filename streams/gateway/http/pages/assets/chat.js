/** The chat page: joins what is kept, what runs and what is drawn. */

import {Answering, keyed, unanswered} from "./answering.js";
import {CALCULATOR} from "./calculator.js";
import {Connection} from "./connection.js";
import {Conversations, awaits_results, fresh, messages_of} from "./conversations.js";
import {$, count} from "./dom.js";
import {cost_of, explained, money} from "./endings.js";
import {Follower} from "./follow.js";
import {Refused, discard, lend} from "./lending.js";
import {show_list} from "./sidebar.js";
import {Turns} from "./turns.js";

const KEEP_MS = 1000;
/** How often an answer that grows is kept: who loads the page anew goes on from there. */
const MAX_TITLE_CHARS = 60;
const MAX_ANNOUNCED_CHARS = 400;
const PHASES = {
  sending: "sending",
  queued: "queued",
  answering: "answering",
  stopping: "stopping …",
  reconnecting: "reconnecting, the answer will go on …",
};

const follower = new Follower($("view"));
const answering = new Answering({changed, ended, failed: failure => status(explained(failure).title, "error")});
const turns = new Turns($("turns"), {edit, regenerate, results, model: name => models.find(each => each.id === name)});
const due = new Map();
let kept = null,
  tenant = "",
  token = "",
  models = [],
  listed = [],
  current = null,
  connection = null,
  toldFull = false;

// What is shown

function status(text, look = "") {
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").className = look;
}

/** Said to who hears the page, once, and not word by word. */
function announce(text) {
  $("announcer").textContent = text;
}

function showStatus() {
  const run = current && answering.of(current);
  if (!connection) status("not connected");
  else if (run?.phase === "continuing" && connection.isOpen) {
    status(`reconnected, continuing at token ${count(run.answer.taken_up.at(-1) ?? run.answer.last)}`, "up");
  } else if (!connection.isOpen) status(run ? PHASES.reconnecting : "reconnecting …", "error");
  else status(run ? (PHASES[run.phase] ?? run.phase) : "connected", "up");
}

function refresh() {
  const run = current && answering.of(current),
    isConnected = !!connection?.isOpen,
    isIn = kept !== null && connection !== null;
  const waits = !!current && awaits_results(current);
  $("stop").hidden = !run;
  $("stop").disabled = !isConnected || !!run?.stopping;
  $("send").hidden = !!run;
  $("send").disabled = !isConnected || waits;
  $("text").placeholder = waits ? "Send the result of the tool first" : "Ask something";
  for (const id of ["models", "footer", "side", "menu"]) $(id).hidden = !isIn;
  $("welcome").hidden = isIn;
  $("turns").hidden = !isIn;
  $("empty").hidden = !isIn || current.turns.length > 0;
  const model = models.find(each => each.id === current?.model);
  $("tools").hidden = !model?.capabilities.includes("tools");
  for (const example of $("examples").children) example.disabled = !isConnected;
  showStatus();
  showList();
  showTotal();
}

function showList() {
  const draft = current && !listed.some(each => each.id === current.id) && kept ? [{...current}] : [];
  show_list($("list"), [...draft, ...listed], current?.id, id => !!answering.of({id}), {open, rename, remove});
}

/** What this conversation has used so far. */
function showTotal() {
  let tokens = 0,
    cost = 0,
    model = null;
  for (const {ended} of current?.turns ?? []) {
    if (!ended?.usage) continue;
    tokens += ended.usage.total_tokens;
    const used = models.find(each => each.id === ended.model);
    model ??= used;
    cost += cost_of(ended.code, ended.usage, used) ?? 0;
  }
  $("total").hidden = !tokens;
  $("total").textContent = tokens
    ? `This chat: ${count(tokens)} tokens${model ? `, ${money(cost, model.prices.currency)}` : ""}`
    : "";
}

function drawer(isOpen) {
  document.body.classList.toggle("drawer", isOpen);
  $("menu").setAttribute("aria-expanded", String(isOpen));
}

// What is kept

async function keep(conversation) {
  if (!kept) return;
  clearTimeout(due.get(conversation.id));
  due.delete(conversation.id);
  conversation.changed_at_ms = Date.now();
  const isKept = await kept.write(conversation);
  if (!isKept && !toldFull) {
    toldFull = true;
    announce("This browser has no room: the conversation is not kept.");
    status("this browser has no room: nothing is kept", "error");
  }
  listed = await kept.list();
}

function keepSoon(conversation) {
  if (!due.has(conversation.id))
    due.set(
      conversation.id,
      setTimeout(() => keep(conversation), KEEP_MS),
    );
}

async function open(id) {
  const read = answering.of({id})?.conversation ?? (await kept.read(id));
  if (!read) return;
  show(read);
  drawer(false);
  $("text").focus();
}

function show(conversation) {
  current = conversation;
  if (models.some(each => each.id === current.model)) $("model").value = current.model;
  else current.model = $("model").value;
  goOn(current);
  turns.show(current);
  refresh();
  follower.follow(true);
}

/** An answer that an earlier visit to this page has begun and that has not ended goes on. */
function goOn(conversation) {
  const last = conversation.turns.at(-1);
  if (last?.role === "assistant" && !last.ended && !answering.of(conversation)) answering.adopt(conversation, last);
}

async function rename(id, title) {
  const conversation = id === current.id ? current : await kept.read(id);
  Object.assign(conversation, {title, is_named: true});
  if (conversation.turns.length) await keep(conversation);
  showList();
}

async function remove(id) {
  const run = answering.of({id});
  if (run) {
    answering.stop(run);
    answering.forget(run);
  }
  clearTimeout(due.get(id));
  due.delete(id);
  const removed = id === current.id ? current : await kept.read(id);
  await kept.remove(id);
  discard(
    [...(removed?.replaced ?? []), ...(removed?.turns ?? []).map(turn => turn.response_id).filter(Boolean)],
    token,
  );
  listed = await kept.list();
  if (current.id === id) show(fresh($("model").value));
  else showList();
  $("fresh").focus();
}

// What is asked

function tools() {
  return $("calculator").checked && !$("tools").hidden ? {tools: [CALCULATOR]} : {};
}

function body(messages) {
  // A lost connection or a closed page ends no answer: it is stored, and the page comes back for it.
  return {model: current.model, messages, store: true, on_disconnect: "continue", ...tools()};
}

function begin(message, otherwise = null) {
  const answer = unanswered();
  current.turns.push(answer);
  if (!current.is_named && current.turns[0].content) current.title = current.turns[0].content.slice(0, MAX_TITLE_CHARS);
  answering.begin(current, answer, message, otherwise);
  keep(current).then(showList);
  turns.append(current);
  refresh();
  follower.follow(true);
}

function whole() {
  return keyed({type: "request", body: body(messages_of(current.turns))});
}

/** Whether it was asked. */
function ask(text) {
  if (!text || !connection?.isOpen || answering.of(current) || awaits_results(current)) return false;
  current.model = $("model").value;
  current.turns.push({role: "user", content: text});
  begin(whole());
  return true;
}

/** Another answer in the place of the one at `index`; what follows is dropped, what runs is stopped. */
function replace(index) {
  const replaced = current.turns[index];
  const run = answering.of(current);
  if (run) {
    // The edit stops the one that it replaces.
    if (run.answer !== replaced || !replaced.response_id) answering.stop(run);
    answering.forget(run);
  }
  current.replaced = [
    ...(current.replaced ?? []),
    ...current.turns
      .slice(index)
      .map(turn => turn.response_id)
      .filter(Boolean),
  ];
  current.turns.length = index;
  current.model = $("model").value;
  const otherwise = whole();
  const asked = current.turns.at(-1);
  // What went on with calls still does: what it was asked with are their results alone.
  const messages = asked.role === "tool" ? messages_of([asked]) : otherwise.body.messages;
  turns.show(current);
  if (!replaced?.response_id) return begin(otherwise);
  begin({type: "edit", response_id: replaced.response_id, body: body(messages)}, otherwise);
}

function regenerate(index) {
  if (connection?.isOpen) replace(index);
}

function edit(index, text) {
  if (!connection?.isOpen) return;
  current.turns[index] = {role: "user", content: text};
  replace(index + 1);
  $("text").focus();
}

function results(index, told) {
  if (!connection?.isOpen || index !== current.turns.length - 1) return;
  const {response_id} = current.turns[index];
  current.turns.push({role: "tool", results: told});
  const {messages, ...rest} = body([]);
  begin(keyed({type: "tool_result", response_id, results: told, body: rest}), whole());
  $("text").focus();
}

function stop() {
  const run = current && answering.of(current);
  if (run && !run.stopping && connection?.isOpen) answering.stop(run);
}

// What comes back

function changed(run) {
  keepSoon(run.conversation);
  if (run.conversation !== current) return;
  follower.note();
  turns.update(current, run.answer, () => follower.follow());
  if ($("status").dataset.phase !== run.phase) {
    $("status").dataset.phase = run.phase;
    refresh();
  }
  showStatus();
}

function ended(run) {
  const {answer, conversation} = run;
  keep(conversation).then(showList);
  if (conversation !== current) return;
  follower.note();
  turns.ended(current, answer);
  $("status").dataset.phase = "";
  refresh();
  follower.follow();
  if (answer.ended.failure)
    announce(`${explained(answer.ended.failure).title} ${explained(answer.ended.failure).advice}`);
  else if (awaits_results(current)) {
    if (document.activeElement === $("text")) $("turns").querySelector(".tool-result")?.focus();
    announce(`The model calls ${answer.calls.map(call => call.name).join(", ")}, and waits for the result.`);
  } else announce(`The answer is complete. ${answer.content.slice(0, MAX_ANNOUNCED_CHARS)}`);
}

// Connecting

function connect(token) {
  connection = new Connection(token, {
    opened: () => {
      answering.opened();
      refresh();
    },
    heard: message => answering.heard(message),
    lost: () => {
      answering.lost();
      $("status").dataset.phase = "";
      refresh();
    },
    refused: reason => {
      answering.refused();
      disconnected(
        reason === "token_expired"
          ? "The hour is over. Show your key again, and the conversation goes on."
          : "The key is not valid any more. Connect with another one.",
      );
    },
  });
  answering.use(connection);
}

function disconnected(why) {
  connection = null;
  refresh();
  $("refusal").textContent = why;
  $("refusal").hidden = false;
  $("key").focus();
}

/** The page of this organisation: what runs goes on if it was the same one before. */
async function enter(lent) {
  const isSame = tenant === lent.tenant && current;
  ({tenant, token, models} = lent);
  models = models.filter(model => model.capabilities.includes("chat.completions"));
  $("model").replaceChildren(...models.filter(model => !model.parent).map(model => new Option(model.id, model.id)));
  kept = new Conversations(tenant);
  listed = await kept.list();
  connect(lent.token);
  if (isSame) return refresh();
  answering.forgetAll();
  show(fresh($("model").value));
}

$("login").onsubmit = async event => {
  event.preventDefault();
  $("refusal").hidden = true;
  status("connecting …");
  try {
    await enter(await lend($("key").value.trim(), ["responses"]));
    $("key").value = "";
    $("text").focus();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    disconnected(error.message);
  }
};

// Keys and buttons

$("composer").onsubmit = event => {
  event.preventDefault();
  if (ask($("text").value.trim())) $("text").value = "";
};
$("text").onkeydown = event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
  if (event.key === "ArrowUp" && !$("text").value) {
    const edits = $("turns").querySelectorAll(".edit");
    if (edits.length) {
      event.preventDefault();
      edits[edits.length - 1].click();
    }
  }
};
for (const example of $("examples").children) example.onclick = () => ask(example.textContent);
$("stop").onclick = stop;
$("fresh").onclick = () => {
  show(fresh($("model").value));
  drawer(false);
  $("text").focus();
};
$("model").onchange = () => {
  current.model = $("model").value;
  refresh();
};
$("menu").onclick = () => {
  drawer(!document.body.classList.contains("drawer"));
  if (document.body.classList.contains("drawer")) $("fresh").focus();
};
$("shade").onclick = () => drawer(false);
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  if (document.body.classList.contains("drawer")) {
    drawer(false);
    $("menu").focus();
  } else stop();
});
