"use strict";
const data = JSON.parse(document.getElementById("items-data").textContent);
const columns = data.columns, rows = data.rows, size = 50;
const index = Object.fromEntries(columns.map((c, i) => [c.name, i]));
let order = null, descending = false, page = 0;
const open = new Set();
const $ = id => document.getElementById(id);
const words = rows.map(r => r.map(v => v === null ? "" : String(v)).join("\n").toLowerCase());
function choices(name) {
  const box = $("filter-" + name);
  const seen = [...new Set(rows.map(r => r[index[name]]))].filter(v => v !== null).map(String).sort();
  for (const value of seen) box.add(new Option(value, value));
  box.addEventListener("change", () => { page = 0; draw(); });
}
function chosen() {
  const text = $("filter-text").value.trim().toLowerCase();
  const kept = [];
  rows.forEach((r, i) => {
    if (text && !words[i].includes(text)) return;
    for (const name of data.filters) {
      const want = $("filter-" + name).value;
      if (want !== "" && String(r[index[name]]) !== want) return;
    }
    kept.push(i);
  });
  if (order !== null) {
    const k = index[order];
    kept.sort((a, b) => {
      const x = rows[a][k], y = rows[b][k];
      if (x === null || y === null) return (x === null) - (y === null);
      const d = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return (descending ? -d : d) || a - b;
    });
  }
  return kept;
}
function cell(tag, text) { const e = document.createElement(tag); e.textContent = text; return e; }
function show(value) {
  if (value === null) return "\u2014";
  if (typeof value === "number" && !Number.isInteger(value)) return value.toFixed(3);
  return String(value);
}
function detail(i) {
  const line = document.createElement("tr"); line.className = "open";
  const box = document.createElement("td"); box.colSpan = data.shown.length;
  for (const c of columns) {
    if (data.shown.includes(c.name)) continue;
    const value = rows[i][index[c.name]];
    if (value === null) continue;
    box.append(cell("strong", c.label));
    box.append(cell("pre", typeof value === "number" ? show(value) : value));
  }
  line.append(box); return line;
}
function draw() {
  const kept = chosen(), last = Math.max(0, Math.ceil(kept.length / size) - 1);
  page = Math.min(page, last);
  const body = $("items-body"); body.replaceChildren();
  for (const i of kept.slice(page * size, (page + 1) * size)) {
    const line = document.createElement("tr"); line.className = "row"; line.tabIndex = 0;
    for (const name of data.shown) {
      const e = cell("td", show(rows[i][index[name]])); if (name !== "question") e.className = "tight"; line.append(e);
    }
    const flip = () => { open.has(i) ? open.delete(i) : open.add(i); draw(); };
    line.addEventListener("click", flip);
    line.addEventListener("keydown", e => { if (e.key === "Enter") flip(); });
    body.append(line);
    if (open.has(i)) body.append(detail(i));
  }
  const pages = "page " + (page + 1) + " of " + (last + 1);
  $("items-count").textContent = kept.length + " of " + rows.length + " states, " + pages;
  for (const head of document.querySelectorAll("#items th")) {
    const mine = head.dataset.name === order;
    head.setAttribute("aria-sort", mine ? (descending ? "descending" : "ascending") : "none");
  }
}
for (const name of data.filters) choices(name);
$("filter-text").addEventListener("input", () => { page = 0; draw(); });
$("items-back").addEventListener("click", () => { page = Math.max(0, page - 1); draw(); });
$("items-on").addEventListener("click", () => { page += 1; draw(); });
for (const head of document.querySelectorAll("#items th")) {
  head.querySelector("button").addEventListener("click", () => {
    const name = head.dataset.name;
    descending = order === name ? !descending : false; order = name; draw();
  });
}
draw();
