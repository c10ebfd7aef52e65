const data = JSON.parse(document.getElementById("items-data").textContent);
const columns = data.columns, rows = data.rows, size = 25;
const index = Object.fromEntries(columns.map((c, i) => [c.name, i]));
const label = Object.fromEntries(columns.map(c => [c.name, c.label]));
let order = null, descending = false, page = 0;
const open = new Set();
const $ = id => document.getElementById(id);
const words = rows.map(r => r.map(v => v === null ? "" : String(v)).join("\n").toLowerCase());
const value = (i, name) => name in index ? rows[i][index[name]] : null;
function choices(name) {
  const box = $("filter-" + name);
  const seen = [...new Set(rows.map(r => r[index[name]]))].filter(v => v !== null).map(String).sort();
  for (const option of seen) box.add(new Option(option, option));
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
function cell(tag, text, kind) {
  const e = document.createElement(tag); e.textContent = text; if (kind) e.className = kind; return e;
}
function show(v) {
  if (v === null) return "\u2014";
  if (typeof v === "number" && !Number.isInteger(v)) return v.toFixed(3);
  return String(v);
}
const visible = text => text.replace(/\n/g, "\u23ce").replace(/\t/g, "\u21e5").replace(/ /g, "\u2423");
function pieces(text, found, kind) {
  const box = document.createElement("pre");
  let last = 0;
  for (const [start, end] of found) {
    if (start > last) box.append(cell("span", text.slice(last, start)));
    box.append(cell(kind === "mark" ? "mark" : "span", text.slice(start, end), kind === "mark" ? "" : kind));
    last = end;
  }
  if (last < text.length) box.append(cell("span", text.slice(last)));
  return box;
}
const SPECIAL = /<\|[^|<>\n]{1,40}\|>|<\/?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[\/?INST\]|<\uff5c[^<>\n]{1,40}\uff5c>/g;
function spans(text, pattern) { return [...text.matchAll(pattern)].map(m => [m.index, m.index + m[0].length]); }
function answered(text, answer) {
  if (answer === null || String(answer) === "") return [];
  const literal = String(answer).replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return spans(text, new RegExp("(?<![\\p{L}\\p{N}])" + literal + "(?![\\p{L}\\p{N}])", "gu")).slice(-1);
}
function chances(pairs, rest, restName) {
  const box = document.createElement("div"); box.className = "chances";
  const line = (name, p, other) => {
    const bar = cell("span", "", other ? "bar other" : "bar"); bar.style.width = (100 * Math.min(1, p)).toFixed(1) + "%";
    box.append(cell(other ? "span" : "code", name), cell("span", p < 0.0005 ? "<0.001" : p.toFixed(3)), bar);
  };
  for (const [name, p] of pairs) line(name, p, false);
  if (rest !== null) line(restName, Math.max(0, rest), true);
  return box;
}
const sum = pairs => pairs.reduce((total, pair) => total + pair[1], 0);
function side(i, mine) {
  const box = document.createElement("div"); box.className = mine ? "side this" : "side";
  box.append(cell("h3", show(value(i, "regime") ?? value(i, "item_id"))));
  const flag = (on, yes, no) => { if (on === true) box.append(cell("span", yes, "flag")); if (on === false && no) box.append(cell("span", no, "flag")); };
  flag(value(i, "correct"), "correct", "wrong"); flag(value(i, "compliant"), "compliant", "not as asked"); flag(value(i, "truncated"), "cut off");
  const top = value(i, "top");
  if (top) { box.append(cell("h4", "likeliest first tokens")); box.append(chances(top.map(([t, p]) => [visible(t), p]), 1 - sum(top), "all others")); }
  const options = value(i, "options");
  if (options) { box.append(cell("h4", "options")); box.append(chances(options, 1 - sum(options), "outside")); }
  const drawn = new Set(["regime", "item_id", "correct", "compliant", "truncated", "top", "options", "prompt", "text", "id", "question", "model", "benchmark", "attention"]);
  const facts = document.createElement("dl");
  for (const c of columns) {
    const v = rows[i][index[c.name]];
    if (v === null || drawn.has(c.name)) continue;
    if (String(v).length < 40) facts.append(cell("dt", c.label), cell("dd", show(v)));
    else { box.append(cell("h4", c.label)); box.append(cell("pre", show(v))); }
  }
  box.append(facts);
  const prompt = value(i, "prompt"), text = value(i, "text"), attention = value(i, "attention");
  if (attention) { box.append(cell("h4", "attention of the boundary, mean over layers and heads")); box.append(chances(attention.map(([t, p]) => [visible(t), p]), null, "")); }
  if (prompt !== null) { box.append(cell("h4", "prompt")); box.append(pieces(String(prompt), spans(String(prompt), SPECIAL), "special")); }
  if (text !== null) { box.append(cell("h4", "output")); box.append(pieces(String(text), answered(String(text), value(i, "answer")), "mark")); }
  return box;
}
function family(i) {
  const same = j => ["model", "benchmark", "item_id"].every(name => value(i, name) === value(j, name));
  return "regime" in index ? rows.map((_, j) => j).filter(j => j === i || same(j)) : [i];
}
function detail(i) {
  const line = document.createElement("tr"); line.className = "open"; line.id = "detail-" + i;
  const box = document.createElement("td"); box.colSpan = data.shown.length + 1;
  const sides = document.createElement("div"); sides.className = "sides";
  for (const j of family(i)) sides.append(side(j, j === i));
  if (value(i, "question") !== null) box.append(cell("p", value(i, "question")));
  box.append(sides); line.append(box); return line;
}
const address = i => "state=" + (value(i, "id") ?? i) + ("model" in index && data.shown.includes("model") ? "@" + value(i, "model") : "");
function flip(i) {
  open.has(i) ? open.delete(i) : open.add(i);
  history.replaceState(null, "", open.has(i) ? "#" + encodeURIComponent(address(i)) : "#items-section");
  draw(); $("open-" + i)?.focus();
}
function draw() {
  const kept = chosen(), last = Math.max(0, Math.ceil(kept.length / size) - 1);
  page = Math.min(page, last);
  const body = $("items-body"); body.replaceChildren();
  for (const i of kept.slice(page * size, (page + 1) * size)) {
    const line = document.createElement("tr"); line.className = "row";
    const first = document.createElement("td"), button = cell("button", open.has(i) ? "\u2212" : "+"); button.type = "button"; button.id = "open-" + i;
    button.setAttribute("aria-expanded", String(open.has(i)));
    button.setAttribute("aria-label", "item " + show(value(i, "item_id")) + " " + show(value(i, "regime")));
    button.addEventListener("click", e => { e.stopPropagation(); flip(i); });
    first.append(button); line.append(first);
    for (const name of data.shown) line.append(cell("td", show(rows[i][index[name]]), name === "question" ? "question" : "tight"));
    line.addEventListener("click", () => { if (!String(getSelection())) flip(i); });
    body.append(line);
    if (open.has(i)) body.append(detail(i));
  }
  const told = kept.length + " of " + rows.length + " states, page " + (page + 1) + " of " + (last + 1);
  $("items-count").textContent = told; $("items-count-below").textContent = told;
  for (const end of ["", "-below"]) { $("items-back" + end).disabled = page === 0; $("items-on" + end).disabled = page === last; }
  for (const head of document.querySelectorAll("#items th[data-name]")) {
    head.setAttribute("aria-sort", head.dataset.name === order ? (descending ? "descending" : "ascending") : "none");
  }
}
function linked() {
  let mark = "";
  try { mark = decodeURIComponent(location.hash.slice(1)); } catch { return; }
  const i = mark.startsWith("state=") ? rows.findIndex((_, j) => address(j) === mark) : -1;
  if (i < 0) return;
  const at = chosen().indexOf(i);
  if (at < 0) return;
  page = Math.floor(at / size); open.add(i); $("items-section").open = true; draw();
  $("open-" + i).scrollIntoView(); $("open-" + i).focus();
}
for (const name of data.filters) choices(name);
$("filter-text").addEventListener("input", () => { page = 0; draw(); });
for (const end of ["", "-below"]) {
  $("items-back" + end).addEventListener("click", () => { page = Math.max(0, page - 1); draw(); });
  $("items-on" + end).addEventListener("click", () => { page += 1; draw(); });
}
for (const head of document.querySelectorAll("#items th[data-name]")) {
  head.querySelector("button").addEventListener("click", () => {
    const name = head.dataset.name;
    descending = order === name ? !descending : false; order = name; draw();
  });
}
draw(); linked();
addEventListener("hashchange", linked);
