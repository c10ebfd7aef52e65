"""The report as one HTML file that opens offline.

Guarantees that nothing is fetched (styles, script, figures and data stand in the file) and that text written by a
model or found in a benchmark is shown as text: it is never parsed as markup, whatever it holds.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from typing import Any

from .figures import Figure
from .tables import Shown

_STYLE = """
:root { --ink: #1b1b1b; --soft: #5c5c5c; --line: #d9d9d9; --paper: #ffffff; --shade: #f5f6f8; --link: #0072b2; } * {
box-sizing: border-box; } body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color:
var(--ink); background: var(--paper);
  margin: 0 auto; max-width: 1180px; padding: 1.5rem 1.2rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; }
nav a { margin-right: .9rem; } a { color: var(--link); }
p, ul { max-width: 75ch; } .soft, figcaption, .notes { color: var(--soft); font-size: .86rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .55rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
th { background: var(--shade); position: sticky; top: 0; white-space: nowrap; } td.tight { white-space: nowrap; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--link); }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
figure { margin: 1rem 0 1.6rem; } figure img { max-width: 100%; height: auto; }
.controls { display: flex; flex-wrap: wrap; gap: .6rem; margin: .6rem 0; align-items: end; }
.controls label { display: flex; flex-direction: column; font-size: .8rem; color: var(--soft); }
input, select, .controls button { font: inherit; padding: .25rem .4rem; border: 1px solid #aaa; border-radius: 4px;
  background: #fff; color: inherit; }
tr.open td { background: var(--shade); } pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0 .8rem;
  font: .82rem/1.45 ui-monospace, Menlo, Consolas, monospace; background: #fff;
  border: 1px solid var(--line); padding: .5rem; }
tbody tr.row { cursor: pointer; } tbody tr.row:hover td { background: #eef4f9; }
@media print { .controls, nav { display: none; } th { position: static; } }
"""

_SCRIPT = """
"use strict";
const data = JSON.parse(document.getElementById("items-data").textContent);
const columns = data.columns, rows = data.rows, size = 50;
const index = Object.fromEntries(columns.map((c, i) => [c.name, i]));
let order = null, descending = false, page = 0;
const open = new Set();
const $ = id => document.getElementById(id);
const words = rows.map(r => r.map(v => v === null ? "" : String(v)).join("\\n").toLowerCase());
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
  if (value === null) return "\\u2014";
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
"""


def page(
    title: str,
    lead: Sequence[str],
    tables: Sequence[Shown],
    figures: Sequence[Figure],
    items: dict[str, Any],
    closing: Sequence[str],
    facts: Sequence[tuple[str, str]],
) -> str:
    """The whole file.

    Parameters
    ----------
    title : str
    lead, closing : paragraphs before and after the results
    tables, figures
        Shown in this order, tables first.
    items : dict
        columns (name, label), rows, shown (column names of the table), filters (column names with a choice box).
    facts : (name, value) pairs of how the report was made
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(title)}</h1>",
        '<nav><a href="#results">Results</a><a href="#figures">Figures</a><a href="#items-section">Items</a>'
        '<a href="#reading">How to read this</a><a href="#made">How it was made</a></nav>',
        *(f"<p>{_text(paragraph)}</p>" for paragraph in lead),
        '<span id="results"></span>',
        *(_table(table) for table in tables),
        '<h2 id="figures">Figures</h2>' if figures else "",
        *(_figure(figure) for figure in figures),
        _items(items),
        '<h2 id="reading">How to read this</h2>',
        "<ul>" + "".join(f"<li>{_text(line)}</li>" for line in closing) + "</ul>",
        '<h2 id="made">How it was made</h2>',
        "<table><tbody>"
        + "".join(f"<tr><th>{_text(k)}</th><td>{_text(v)}</td></tr>" for k, v in facts)
        + "</tbody></table>",
        f'<script type="application/json" id="items-data">{_embedded(items)}</script>',
        f"<script>{_SCRIPT}</script></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _text(value: str) -> str:
    return html.escape(str(value))


def _embedded(value: Any) -> str:
    """JSON that cannot close its script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _table(table: Shown) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in table.header)
    body = "".join(
        "<tr>" + "".join(f'<td class="tight">{_text(cell)}</td>' for cell in row) + "</tr>" for row in table.rows
    )
    notes = "".join(f"<br>{_text(note)}" for note in table.notes)
    caption = f'<p class="soft">{_text(table.caption)}</p>' if table.caption else ""
    return (
        f"<h2>{_text(table.title)}</h2>{caption}"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        + (f'<p class="notes">{notes.removeprefix("<br>")}</p>' if notes else "")
    )


def _figure(figure: Figure) -> str:
    image = base64.b64encode(figure.png.read_bytes()).decode()
    return (
        f'<figure id="{_text(figure.name)}"><h3>{_text(figure.title)}</h3>'
        f'<img alt="{_text(figure.title)}: {_text(figure.caption)}" src="data:image/png;base64,{image}">'
        f"<figcaption>{_text(figure.caption)}</figcaption></figure>"
    )


def _items(items: dict[str, Any]) -> str:
    label = {c["name"]: c["label"] for c in items["columns"]}
    boxes = "".join(
        f'<label>{_text(label[name])}<select id="filter-{_text(name)}"><option value="">all</option></select></label>'
        for name in items["filters"]
    )
    heads = "".join(
        f'<th data-name="{_text(name)}"><button type="button">{_text(label[name])}</button></th>'
        for name in items["shown"]
    )
    return (
        '<h2 id="items-section">Items</h2>'
        '<p class="soft">Every state: click a heading to sort, a row to see prompt, output, parse and options.</p>'
        f'<div class="controls"><label>search<input id="filter-text" type="search" size="28"></label>{boxes}'
        '<button type="button" id="items-back">previous</button><button type="button" id="items-on">next</button>'
        '<span id="items-count" class="soft" role="status"></span></div>'
        f'<div class="scroll"><table id="items"><thead><tr>{heads}</tr></thead>'
        '<tbody id="items-body"></tbody></table></div>'
    )
