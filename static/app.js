// What the pages do beyond links and forms. Everything here is a convenience: without it the same pages work.
"use strict";

const byId = (id) => document.getElementById(id);
const say = (text) => {
  const place = byId("said");
  if (place) place.textContent = text;
};

// Theme -------------------------------------------------------------------------------------------------------------
const THEMES = { auto: "as the system", light: "light", dark: "dark" };

function showTheme() {
  const button = byId("theme");
  if (!button) return;
  const text = `Theme: ${THEMES[document.documentElement.dataset.theme ?? "auto"]}`;
  button.title = text;
  button.setAttribute("aria-label", text);
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const root = document.documentElement;
  const next = names[(names.indexOf(root.dataset.theme ?? "auto") + 1) % names.length];
  if (next === "auto") delete root.dataset.theme;
  else root.dataset.theme = next;
  try {
    if (next === "auto") localStorage.removeItem("fencewatch.theme");
    else localStorage.setItem("fencewatch.theme", next);
  } catch {
    // storage is refused: the choice lasts for this page
  }
  showTheme();
  say(`Theme: ${THEMES[next]}`);
}

// Live regions ------------------------------------------------------------------------------------------------------
// htmx asks every few seconds; here it is stopped while paused, hidden or signed out, and told what it already has.
const SILENT_AFTER = 15_000;
let paused = false;
let signedOut = false;
let lastAnswer = performance.now();

const region = () => document.querySelector("[data-region]");

function showLive() {
  const button = byId("live");
  if (!button) return;
  const silent = !paused && performance.now() - lastAnswer > SILENT_AFTER;
  const word = paused ? "Paused" : silent ? `No answer for ${length((performance.now() - lastAnswer) / 1000)}` : "Live";
  button.dataset.live = paused ? "paused" : silent ? "silent" : "on";
  button.setAttribute("aria-pressed", String(paused));
  button.title = paused ? "Resume live updates" : "Pause live updates";
  const place = button.querySelector("[data-live-word]");
  if (place.textContent !== word) place.textContent = word;
}

function pause(next) {
  paused = next;
  if (!paused) ask();
  showLive();
  say(paused ? "Live updates paused" : "Live updates resumed");
}

function ask() {
  const element = region();
  if (element) htmx.trigger(element, "every");
}

document.addEventListener("htmx:config:request", (event) => {
  const { ctx } = event.detail;
  if (!ctx.sourceElement.matches("[data-region]")) return;
  if (paused || signedOut || document.hidden) {
    event.preventDefault();
    return;
  }
  if (ctx.sourceElement.dataset.stamp) ctx.request.headers["If-None-Match"] = ctx.sourceElement.dataset.stamp;
});

document.addEventListener("htmx:after:request", (event) => {
  const { ctx } = event.detail;
  if (ctx.response.status === 401) signedOut = true;
  const version = ctx.response.headers.get("Fencewatch-Version");
  if (version && version !== document.body.dataset.version) byId("updated").hidden = false;
  if (ctx.response.status < 400) {
    lastAnswer = performance.now();
    if (ctx.response.status === 200) shownAt = lastAnswer;
  }
  showLive();
});

document.addEventListener("htmx:after:swap", () => tick());

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  lastAnswer = performance.now();
  if (!paused) ask();
});

// Lengths of time go on counting between answers, from what the database said and this machine's steady clock. They
// stand still while paused or without an answer, for then nobody knows.
let shownAt = performance.now();

function length(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 120) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) {
    const minutes = Math.floor((whole % 3600) / 60);
    return minutes ? `${Math.floor(whole / 3600)} h ${minutes} min` : `${Math.floor(whole / 3600)} h`;
  }
  const days = Math.floor(whole / 86400);
  const hours = Math.floor((whole % 86400) / 3600);
  return days < 14 && hours ? `${days} d ${hours} h` : `${days.toLocaleString("en-GB")} d`;
}

function tick() {
  if (paused || document.hidden || performance.now() - lastAnswer > SILENT_AFTER) return;
  const passed = (performance.now() - shownAt) / 1000;
  for (const element of document.querySelectorAll("[data-region] time[data-up], [data-region] time[data-down]")) {
    const { up, down, word } = element.dataset;
    const seconds = up === undefined ? Number(down) - passed : Number(up) + passed;
    const text = `${length(seconds)} ${word}`.trimEnd();
    if (element.textContent !== text) element.textContent = text;
  }
}

// The viewer's own zone stands beside UTC, never instead of it.
function nameZone(element) {
  if (element.dataset.zoned !== undefined || !element.title) return;
  element.dataset.zoned = "";
  const local = new Date(element.dateTime).toLocaleString("en-GB", {
    dateStyle: "medium",
    timeStyle: "long",
  });
  element.title += `\nHere: ${local}`;
}

document.addEventListener("mouseover", (event) => {
  const element = event.target.closest?.("time[datetime]");
  if (element) nameZone(element);
});

// Copying -----------------------------------------------------------------------------------------------------------
async function copy(button) {
  const word = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    button.classList.add("copied");
  } catch {
    button.textContent = "Select and copy by hand";
  }
  say(button.textContent);
  setTimeout(() => {
    button.textContent = word;
    button.classList.remove("copied");
  }, 1600);
}

// Clicks and changes ------------------------------------------------------------------------------------------------
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button");
  if (button?.id === "theme") nextTheme();
  if (button?.id === "live") pause(!paused);
  if (button?.dataset.copy) copy(button);
  if (button?.dataset.opens) byId(button.dataset.opens)?.showModal();
  const open = document.querySelector(".me[open]");
  if (open && !open.contains(event.target)) open.open = false;
});

document.addEventListener("change", (event) => {
  if (event.target.matches?.("form[data-at-once] select")) event.target.form.requestSubmit();
});

// An empty field says nothing: it stays out of the address, so that a shared link is short.
document.addEventListener("submit", (event) => {
  if (!event.target.matches?.("form[data-at-once]")) return;
  for (const field of event.target.elements) if (field.name && field.value === "") field.disabled = true;
});

window.addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll("form[data-at-once] :disabled")) field.disabled = false;
});

// Keyboard ----------------------------------------------------------------------------------------------------------
let going = -Infinity; // when `g` was pressed

function step(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  if (!rows.length) return;
  const now = rows.indexOf(document.activeElement);
  rows[Math.min(Math.max(now + by, 0), rows.length - 1)].focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const open = document.querySelector(".me[open]");
  if (event.key === "Escape" && open) {
    open.open = false;
    open.querySelector("summary").focus();
  }
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  if (performance.now() - going < 1200) {
    going = -Infinity;
    document.querySelector(`[data-go="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  const keys = {
    "/": () => byId("find")?.focus(),
    j: () => step(1),
    k: () => step(-1),
    g: () => (going = performance.now()),
    p: () => byId("live") && pause(!paused),
    "?": () => byId("help")?.showModal(),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});

// Small screens show the list first, unless one of the folded filters is at work.
const folded = document.querySelector(".more-filters");
if (folded && matchMedia("(max-width: 56rem)").matches && !folded.querySelector(".set")) folded.open = false;

showTheme();
setInterval(() => {
  tick();
  showLive();
}, 1000);
