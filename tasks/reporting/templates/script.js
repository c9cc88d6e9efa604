"use strict";
// What the page can do beyond being read; without it everything is still there. It writes text alone, never markup.
const tip = document.createElement("div");
tip.id = "tip";
tip.setAttribute("role", "tooltip");
tip.hidden = true;
document.body.append(tip);
let tipOwner = null;

function hideTip() {
  tip.hidden = true;
  tipOwner?.removeAttribute("aria-describedby");
  tipOwner = null;
}

function showTip(owner, text, link) {
  hideTip();
  tipOwner = owner;
  tip.replaceChildren(text);
  if (link) {
    const more = document.createElement("a");
    more.href = link;
    more.textContent = "Glossary";
    tip.append(" ", more);
  }
  tip.hidden = false;
  owner.setAttribute("aria-describedby", "tip");
  const box = owner.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
  const below = box.bottom + 6 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(8, left) + scrollX}px`;
  tip.style.top = `${(below ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + scrollY}px`;
}

addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
addEventListener("pointerdown", (event) => { if (!tip.contains(event.target)) hideTip(); });

// Words: their meaning beside them, by mouse, keyboard and touch; the link in it leads to the glossary.
for (const word of document.querySelectorAll("a.term")) {
  word.dataset.meaning = word.title;
  word.removeAttribute("title");
  const show = () => showTip(word, word.dataset.meaning, word.getAttribute("href"));
  word.addEventListener("pointerenter", show);
  word.addEventListener("focus", show);
  word.addEventListener("click", (event) => { event.preventDefault(); show(); });
}

// Charts: the figure of what is pointed at; the arrow keys go from one to the next.
for (const chart of document.querySelectorAll(".chart")) {
  const points = [...chart.querySelectorAll(".hover")].map((point) => {
    const title = point.querySelector("title");
    title.remove();
    return [point, title.textContent];
  });
  if (!points.length) continue;
  let place = -1;
  for (const [point, text] of points) point.addEventListener("pointerenter", () => showTip(point, text));
  chart.addEventListener("pointerleave", hideTip);
  chart.addEventListener("blur", hideTip);
  chart.tabIndex = 0;
  chart.setAttribute("aria-roledescription", "chart; arrow keys read its figures");
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    place = (place + step + points.length) % points.length;
    showTip(...points[place]);
    said.textContent = points[place][1];
  });
}
const said = document.createElement("div");
said.className = "aside";
said.setAttribute("aria-live", "polite");
document.body.append(said);

// Tables: sorted by a column, by its other way round, and as they were.
const UNITS = { "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
function readValue(cell) {
  const text = cell.textContent.split("(")[0].replaceAll(",", "");
  const found = [...text.matchAll(/(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(µs|ms|s\b|min|h\b|[KMG]iB)?/g)];
  return found.length && /^\s*[-$\d]/.test(text) ? found.reduce((sum, one) => sum + one[1] * (UNITS[one[2]] ?? 1), 0) : text;
}
function compare(one, other) {
  if (typeof one === typeof other) return typeof one === "number" ? one - other : one.localeCompare(other);
  return typeof one === "number" ? -1 : 1;
}
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], rows = [...body.rows];
  if (rows.length < 2) continue;
  for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.setAttribute("aria-label", `Sort by ${heading.textContent.trim()}`);
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[heading.ariaSort ?? "none"];
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      const sorted = [...rows];
      if (next !== "none") {
        heading.ariaSort = next;
        const way = next === "ascending" ? 1 : -1;
        sorted.sort((a, b) => way * compare(readValue(a.cells[column]), readValue(b.cells[column])));
      }
      body.replaceChildren(...sorted);
    });
    heading.append(button);
  }
}

// Lines to be copied.
for (const lines of document.querySelectorAll("pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(lines);
    try { await navigator.clipboard.writeText(lines.textContent); } catch { document.execCommand("copy"); }
    button.textContent = "Copied";
  });
  lines.after(button);
}

// Contents: which section is being read.
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const seen = new Set();
const watch = new IntersectionObserver((changes) => {
  for (const { target, isIntersecting } of changes) seen[isIntersecting ? "add" : "delete"](target.id);
  const current = [...links.keys()].find((id) => seen.has(id));
  for (const [id, link] of links) {
    if (id === current) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}, { rootMargin: "-75px 0px -60% 0px" });
for (const section of document.querySelectorAll("main > section")) watch.observe(section);
