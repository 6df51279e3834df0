// Live pages, buttons that copy commands, the colour scheme and the keyboard. Without this script all pages can be read.
"use strict";

const body = document.body;
const theme = document.getElementById("theme");
const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };

function showTheme() {
  const chosen = stored();
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  if (theme) { theme.hidden = false; theme.textContent = `Theme: ${chosen || "system"}`; }
}

function switchTheme() {
  const next = { null: "dark", dark: "light", light: null }[stored()];
  try { if (next) localStorage.setItem("theme", next); else localStorage.removeItem("theme"); } catch { /* private mode */ }
  showTheme();
}

function addCopyButtons() {
  if (!navigator.clipboard) return;
  for (const code of document.querySelectorAll("code.command")) {
    if (code.nextElementSibling?.classList.contains("copy")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy: ${code.textContent}`);
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    code.after(button);
  }
}

// --- live pages: the events name the epoch; the page is fetched again and its parts are replaced

let source = null;
let known = Number(body.dataset.epoch);
let heardAt = Date.now();
let stateAge = 0;
let fetching = false;
let again = false;
let timer = null;

function isEditing() {
  const on = document.activeElement;
  if (!getSelection().isCollapsed) return true; // a reader copies text
  return on && ["INPUT", "TEXTAREA"].includes(on.tagName) && document.getElementById("main").contains(on);
}

async function refresh() {
  timer = null;
  if (fetching) { again = true; return; }
  if (isEditing()) { document.getElementById("note").textContent = `The page waits while you type or select text. Newest epoch: ${known}.`; return; }
  fetching = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, credentials: "same-origin" });
    if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
    replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch { /* the age below shows that the page is not fresh */ } finally {
    fetching = false;
    if (again) { again = false; plan(250); }
  }
}

function replace(fresh) {
  const focused = document.activeElement;
  const where = focused && focused !== body ? [...document.querySelectorAll(`#main ${focused.tagName}`)].indexOf(focused) : -1;
  const scrolled = [...document.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  for (const id of ["main", "status"]) {
    const [old, made] = [document.getElementById(id), fresh.getElementById(id)];
    if (old && made && old.innerHTML !== made.innerHTML) old.replaceChildren(...made.childNodes);
  }
  body.dataset.epoch = fresh.body.dataset.epoch;
  known = Number(body.dataset.epoch); // also after the log was rebuilt with fewer epochs
  document.querySelectorAll(".scroll").forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
  if (where >= 0) document.querySelectorAll(`#main ${focused.tagName}`)[where]?.focus({ preventScroll: true });
  addCopyButtons();
  showAge();
}

function plan(delay) { if (timer === null) timer = setTimeout(refresh, delay); }

function connect() {
  if (source || document.hidden) return;
  source = new EventSource(`/v1/events?since=${known}`);
  source.addEventListener("epoch", (event) => {
    known = Number(event.lastEventId);
    heardAt = Date.now();
    stateAge = 0;
    plan(150);
  });
  source.addEventListener("reports", (event) => {
    const status = JSON.parse(event.data);
    heardAt = Date.now();
    stateAge = status.age_s;
    if (body.dataset.reports && Date.now() - (connect.last || 0) > 5000) { connect.last = Date.now(); plan(0); }
    showAge();
  });
  source.onerror = () => { if (source && source.readyState === EventSource.CLOSED) { source = null; plan(2000); setTimeout(connect, 3000); } };
}

function disconnect() { source?.close(); source = null; }

function showAge() {
  const age = document.getElementById("age");
  if (!age) return;
  const seconds = Math.round(stateAge + (Date.now() - heardAt) / 1000);
  age.textContent = seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
  age.closest("p").classList.toggle("stale", seconds > 10);
}

// --- keyboard: j and k walk through rows, Enter opens the first link, / goes to the filter

let row = null;

function walk(step) {
  const rows = [...document.querySelectorAll("table.rows tbody tr")];
  const at = Math.min(Math.max(rows.indexOf(row) + step, 0), rows.length - 1);
  row?.classList.remove("on");
  row = rows[at] || null;
  row?.classList.add("on");
  row?.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || /INPUT|TEXTAREA|SELECT/.test(event.target.tagName)) return;
  if (event.key === "j") walk(1);
  else if (event.key === "k") walk(-1);
  else if (event.key === "Enter" && row && event.target === body) row.querySelector("a")?.click();
  else if (event.key === "/") { event.preventDefault(); document.querySelector("#main input")?.focus(); }
});

showTheme();
addCopyButtons();
theme?.addEventListener("click", switchTheme);
if (body.dataset.live) {
  connect();
  document.addEventListener("visibilitychange", () => { if (document.hidden) disconnect(); else { connect(); plan(0); } });
  setInterval(showAge, 1000);
}
