/** The list of conversations: open, rename, delete. */

import {button, el, hidden} from "./dom.js";

const MAX_TITLE_CHARS = 80;

/** Draws the list anew. `act.open(id)`, `act.rename(id, title)`, `act.remove(id)`; `runs(id)` says where an answer grows. */
export function show_list(place, listed, current, runs, act) {
  // Whoever renames or deletes one is not interrupted.
  if (place.querySelector("input, [data-sure]")) return;
  const at = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  place.replaceChildren(...listed.map(each => row(each, each.id === current, runs(each.id), act)));
  if (at) [...place.querySelectorAll("[data-key]")].find(node => node.dataset.key === at)?.focus();
}

function row(each, isCurrent, isRunning, act) {
  const open = button(each.title, () => act.open(each.id), {
    className: "open",
    title: each.title,
    "data-key": `open ${each.id}`,
  });
  if (isCurrent) open.setAttribute("aria-current", "true");
  if (each.isAlone) {
    open.classList.add("alone");
    open.append(hidden(", in this page alone"));
  }
  if (isRunning) open.append(el("span", {className: "running", "aria-hidden": "true"}, " ●"), hidden(", answering"));
  const made = el("li", {}, open);
  const rename = button("✎", () => renaming(made, each, act), {
    className: "quiet rename",
    "aria-label": `Rename ${each.title}`,
    title: "Rename",
    "data-key": `rename ${each.id}`,
  });
  const remove = button("✕", () => asking(remove, () => act.remove(each.id)), {
    className: "quiet remove",
    "aria-label": `Delete ${each.title}`,
    title: "Delete",
    "data-key": `remove ${each.id}`,
  });
  remove.onblur = () => {
    remove.textContent = "✕";
    delete remove.dataset.sure;
  };
  made.append(rename, remove);
  return made;
}

/** The second press does it: nothing is lost by one. */
function asking(remove, act) {
  if (remove.dataset.sure) {
    delete remove.dataset.sure;
    return act();
  }
  remove.dataset.sure = "asked";
  remove.textContent = "Delete?";
  remove.focus();
}

function renaming(made, each, act) {
  const before = [...made.childNodes];
  const field = el("input", {value: each.title, maxLength: MAX_TITLE_CHARS, "aria-label": "Name of the conversation"});
  let isOver = false;
  const close = title => {
    if (isOver) return;
    isOver = true;
    made.replaceChildren(...before);
    if (title && title !== each.title) act.rename(each.id, title);
    else made.querySelector(".rename").focus();
  };
  field.onkeydown = event => {
    if (event.key === "Enter") close(field.value.trim());
    if (event.key === "Escape") {
      event.stopPropagation();
      close("");
    }
  };
  field.onblur = () => close(field.value.trim());
  made.replaceChildren(field);
  field.select();
}
