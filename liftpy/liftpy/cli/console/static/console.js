// What a page does by itself: it refreshes, it takes keys, it asks before what is dear, and it shows new messages.
"use strict";

const pages = {};
for (const link of document.querySelectorAll("nav a[data-key]")) pages[link.dataset.key] = link.href;

// --- refreshing: the page is loaded again and its main part replaced, unless somebody works in it
const everySeconds = Number(document.body.dataset.refresh || 0);
let holds = false;

function isWorkedIn() {
  const focused = document.activeElement;
  const isTyping = focused && document.querySelector("main").contains(focused) && focused !== document.body;
  const fields = [...document.querySelectorAll("main input, main textarea")];
  const isChanged = fields.some((field) => field.value !== field.defaultValue);
  return holds || document.hidden || isTyping || isChanged || String(getSelection()) !== "";
}

async function refresh() {
  if (isWorkedIn()) return;
  let text;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    text = await answer.text();
  } catch {
    tell("The console does not answer; trying again.");
    return;
  }
  if (isWorkedIn()) return;
  const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  if (fresh) document.querySelector("main").replaceChildren(...fresh.childNodes);
}

function tell(text) {
  let line = document.querySelector("[data-away]");
  if (!line) {
    line = document.createElement("p");
    line.className = "alarm";
    line.dataset.away = "";
    document.querySelector("main").prepend(line);
  }
  line.textContent = text;
}

if (everySeconds) {
  (async () => {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, everySeconds * 1000));
      await refresh();
    }
  })();
}

// --- keys
let began = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const search = document.querySelector("[data-search]");
  if (event.key === "/" && search) {
    event.preventDefault();
    search.focus();
  } else if (event.key === ".") {
    holds = !holds;
  } else if (event.key === "g" && Date.now() - began > 1000) {
    began = Date.now();
  } else if (Date.now() - began <= 1000 && pages[event.key]) {
    location.href = pages[event.key];
  } else if (event.key === "[" || event.key === "]") {
    const link = document.querySelector(event.key === "[" ? "a[rel=prev]" : "a[rel=next]");
    if (link) link.click();
  }
});

// --- asking
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-confirm]");
  if (button && !confirm(button.dataset.confirm)) event.preventDefault();
});

// --- new messages
const rows = document.querySelector("[data-tail]");
if (rows) {
  const told = document.querySelector("[data-told]");
  const button = document.querySelector("[data-hold]");
  const kept = 500;
  let source = null;
  let seen = 0;

  function cell(row, text, isCode) {
    const made = document.createElement("td");
    const inner = isCode ? made.appendChild(document.createElement("code")) : made;
    inner.textContent = text;
    row.append(made);
    return made;
  }

  function show(message) {
    const row = document.createElement("tr");
    const link = document.createElement("a");
    link.href = `/streams/${rows.dataset.stream}/messages/${message.partition}/${message.offset}`;
    link.textContent = `${message.partition}:${message.offset}`;
    row.appendChild(document.createElement("td")).append(link);
    cell(row, message.time, false);
    cell(row, message.subject, true);
    cell(row, message.key, true);
    cell(row, message.value, true);
    rows.prepend(row);
  }

  function begin() {
    source = new EventSource(rows.dataset.tail);
    source.onmessage = (event) => {
      const data = JSON.parse(event.data);
      if (data.error) {
        told.textContent = data.error;
        source.close();
        return;
      }
      data.forEach(show);
      seen += data.length;
      while (rows.children.length > kept) rows.lastElementChild.remove();
      told.textContent = `${seen.toLocaleString("en")} messages since the page was opened; the newest ${kept} are kept`;
    };
    source.onerror = () => { told.textContent = "the console does not answer; trying again"; };
    button.textContent = "Stop";
  }

  button.addEventListener("click", () => {
    if (source && source.readyState !== EventSource.CLOSED) {
      source.close();
      button.textContent = "Go on";
      told.textContent = "stopped";
    } else {
      begin();
    }
  });
  begin();
}
