/** The chat page: joins what is kept at the gateway, what runs and what is drawn. */

import {Answering, unanswered} from "./answering.js";
import {CALCULATOR} from "./calculator.js";
import {Refused} from "./calls.js";
import {Connection} from "./connection.js";
import {fresh} from "./conversations.js";
import {$, about, count} from "./dom.js";
import {cost_of, explained, money} from "./endings.js";
import {Follower} from "./follow.js";
import {lend} from "./lending.js";
import {asks, awaits_results, title_of} from "./said.js";
import {Shelf} from "./shelf.js";
import {show_list} from "./sidebar.js";
import {Turns} from "./turns.js";

const MAX_ANNOUNCED_CHARS = 400;
const PHASES = {
  sending: "sending",
  queued: "queued",
  answering: "answering",
  stopping: "stopping …",
  reconnecting: "reconnecting, the answer will go on …",
};
const COULD_NOT = {
  listed: "The conversations could not be listed.",
  opened: "The conversation could not be opened.",
  renamed: "The conversation could not be renamed.",
  deleted: "The conversation could not be deleted.",
  kept: "The conversation could not be kept.",
};
const AWAY =
  "Your conversations cannot be had now: what you ask is answered, and stays in this page until you close it.";
const ALONE = "This chat is in this page alone, and gone when you close it.";
const CUT = "This chat goes on without what was said before what is shown.";

const follower = new Follower($("view"));
const answering = new Answering({
  changed,
  ended,
  left: run => shelf.leave(run.conversation),
  failed: failure => status(explained(failure).title, "error"),
});
const turns = new Turns($("turns"), {
  edit,
  regenerate,
  results,
  branch,
  model: name => models.find(each => each.id === name),
});
let shelf = null,
  whose = "",
  models = [],
  current = null,
  connection = null;

// What is shown

function status(text, look = "") {
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").className = look;
}

/** Said to who hears the page, once, and not word by word. */
function announce(text) {
  $("announcer").textContent = text;
}

function queued({queue}) {
  if (!queue) return PHASES.queued;
  return (queue.before ? `${count(queue.before)} before you` : "you are next") + about(queue.wait_ms);
}

function showStatus() {
  const run = current && answering.of(current);
  if (!connection) status("not connected");
  else if (run?.phase === "continuing" && connection.isOpen) {
    status(`reconnected, continuing at token ${count(run.answer.taken_up.at(-1) ?? run.answer.last)}`, "up");
  } else if (!connection.isOpen) status(run ? PHASES.reconnecting : "reconnecting …", "error");
  else if (run?.phase === "queued") status(queued(run), "up");
  else status(run ? (PHASES[run.phase] ?? run.phase) : "connected", "up");
}

function refresh() {
  const run = current && answering.of(current),
    isConnected = !!connection?.isOpen,
    isIn = shelf !== null && connection !== null;
  const waits = !!current && awaits_results(current);
  $("stop").hidden = !run;
  $("stop").disabled = !isConnected || !!run?.stopping;
  $("send").hidden = !!run;
  $("send").disabled = !isConnected || waits;
  $("text").placeholder = waits ? "Send the result of the tool first" : "Ask something";
  for (const id of ["models", "footer", "side", "menu"]) $(id).hidden = !isIn;
  $("welcome").hidden = isIn;
  $("turns").hidden = !isIn;
  $("earlier").hidden = !isIn || !current.has_more;
  $("empty").hidden = !isIn || current.turns.length > 0;
  const model = models.find(each => each.id === current?.model);
  $("tools").hidden = !model?.capabilities.includes("tools");
  for (const example of $("examples").children) example.disabled = !isConnected;
  showStatus();
  showNotice();
  showList();
  showTotal();
}

function showNotice() {
  const told = shelf?.trouble && explained(shelf.trouble.failure);
  let text = current?.place === "page" ? ALONE : "";
  if (shelf?.isAway) text = `${told.title} ${AWAY}`;
  else if (told) text = `${COULD_NOT[shelf.trouble.what]} ${told.title}`;
  if (current?.isCut) text += ` ${CUT}`;
  if ($("notice").textContent !== text) $("notice").textContent = text;
  $("notice").title = told?.detail ?? "";
  $("notice").hidden = !text;
}

function showList() {
  const {alone = [], listed = [], has_more = false} = shelf ?? {};
  const own = [...(current?.place === "new" ? [current] : []), ...alone];
  const rows = own.map(each => ({id: each.id, title: title_of(each), isAlone: each.place === "page"}));
  const kept = listed.map(({id, title}) => ({id, title: title || "New chat"}));
  show_list($("list"), [...rows, ...kept], current?.id, id => !!answering.of({id}), {open, rename, remove});
  $("older").hidden = !has_more;
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

async function open(id) {
  const found = answering.of({id})?.conversation ?? (await shelf.read(id));
  if (!found) return;
  show(found);
  drawer(false);
  $("text").focus();
}

/** The newest branch that goes through that response. */
async function branch(through) {
  if (answering.of(current)) return;
  const found = await shelf.read(current.id, {through});
  if (found) show(found);
}

/** What was said before what is shown. */
async function earlier() {
  const conversation = current,
    view = $("view");
  const first = conversation.turns.find(turn => turn.response_id);
  const found = await shelf.read(conversation.id, {before: first.response_id});
  // What has been left meanwhile has been asked without it.
  if (!found || conversation !== current || conversation.place !== "kept") return;
  conversation.turns.unshift(...found.turns);
  conversation.has_more = found.has_more;
  const below = view.scrollHeight - view.scrollTop;
  turns.show(conversation);
  refresh();
  view.scrollTop = view.scrollHeight - below;
}

function show(conversation) {
  current = conversation;
  shelf.calm();
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
  if (id === current.id) current.title = title;
  if (id === current.id && current.place === "new") return showList();
  await shelf.rename(id, title);
}

async function remove(id) {
  const isNew = id === current.id && current.place === "new";
  if (isNew) shelf.discard(current);
  else if (!(await shelf.remove(id))) return refresh();
  const run = answering.of({id});
  if (run) {
    answering.stop(run);
    answering.forget(run);
  }
  if (current.id === id) show(fresh($("model").value));
  else showList();
  $("fresh").focus();
}

// What is asked

function tools() {
  return $("calculator").checked && !$("tools").hidden ? {tools: [CALCULATOR]} : {};
}

/** All that a request says beside what is said in it. */
function said() {
  // A lost connection or a closed page ends no answer: the page comes back for it.
  return {model: current.model, on_disconnect: "continue", ...tools()};
}

/** Another answer at the end, in the place of one of those `beside` it; one can go back to these `branches`. */
async function begin(beside = [], branches = []) {
  const conversation = current,
    answer = unanswered(conversation.place === "page" ? [] : branches),
    more = said();
  conversation.turns.push(answer);
  const run = answering.begin(conversation, answer);
  turns.append(conversation);
  refresh();
  follower.follow(true);
  const failure = await shelf.place(conversation);
  if (failure) return answering.fail(run, failure);
  answering.ask(run, asks(conversation, conversation.turns.indexOf(answer), beside, more));
  refresh();
}

/** Whether it was asked. */
function ask(text) {
  if (!text || !connection?.isOpen || answering.of(current) || awaits_results(current)) return false;
  current.model = $("model").value;
  current.turns.push({role: "user", content: text});
  begin();
  return true;
}

/** Another answer in the place of the one at `index`: what followed stays with that one, what runs is stopped. */
function replace(index) {
  const run = answering.of(current);
  if (run) {
    answering.stop(run);
    answering.forget(run);
  }
  const {response_id, branches, ended} = current.turns[index];
  const beside = [...new Set([response_id, ...branches])].filter(Boolean);
  current.turns.length = index;
  current.model = $("model").value;
  turns.show(current);
  // What failed is nothing to go back to.
  begin(
    beside,
    beside.filter(id => id !== response_id || !ended?.failure),
  );
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
  current.turns.push({role: "tool", results: told});
  begin();
  $("text").focus();
}

function stop() {
  const run = current && answering.of(current);
  if (run && !run.stopping && connection?.isOpen) answering.stop(run);
}

// What comes back

function changed(run) {
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
  shelf.refresh();
  if (conversation !== current) return showList();
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
      if (shelf.isAway) shelf.refresh();
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

/** The page of this user: what runs goes on if it was the same one before. */
function enter(lent) {
  const isSame = whose === lent.whose && current;
  ({whose, models} = lent);
  models = models.filter(model => model.capabilities.includes("chat.completions"));
  $("model").replaceChildren(...models.filter(model => !model.parent).map(model => new Option(model.id, model.id)));
  if (isSame) {
    connect(lent.token);
    refresh();
    return shelf.use(lent.token);
  }
  shelf?.end();
  shelf = new Shelf(lent.token, refresh);
  answering.forgetAll();
  connect(lent.token);
  show(fresh($("model").value));
  shelf.refresh();
}

$("login").onsubmit = async event => {
  event.preventDefault();
  $("refusal").hidden = true;
  status("connecting …");
  try {
    enter(await lend($("key").value.trim(), ["responses"]));
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
$("older").onclick = () => shelf.more();
$("earlier").onclick = earlier;
$("model").onchange = () => {
  current.model = $("model").value;
  refresh();
};
$("menu").onclick = () => {
  drawer(!document.body.classList.contains("drawer"));
  if (document.body.classList.contains("drawer")) $("fresh").focus();
};
$("shade").onclick = () => drawer(false);
document.addEventListener("visibilitychange", () => {
  // Meanwhile there may be others, from elsewhere.
  if (!document.hidden && connection) shelf.refresh();
});
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  if (document.body.classList.contains("drawer")) {
    drawer(false);
    $("menu").focus();
  } else stop();
});
