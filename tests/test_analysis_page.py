"""The page's own script, run on a stand-in document: sorting, filtering, searching, opening a row."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from precollapse.reports import page

NODE = shutil.which("node")
HOSTILE = "</script><img src=x onerror=alert(1)> & <!-- "

HARNESS = r"""
const fs = require("fs");
const html = fs.readFileSync(process.argv[2], "utf8");
const data = html.match(/id="items-data">([\s\S]*?)<\/script>/)[1];
const script = html.match(/<script>([\s\S]*?)<\/script>/)[1];
class Element {
  constructor(tag) { this.tag = tag; this.children = []; this.listeners = {}; this.dataset = {}; this.attributes = {};
    this.textContent = ""; this.value = ""; this.className = ""; this.style = {}; }
  append(...c) { this.children.push(...c); } replaceChildren() { this.children = []; } add(o) { this.children.push(o); }
  addEventListener(n, f) { this.listeners[n] = f; } setAttribute(n, v) { this.attributes[n] = v; }
  focus() {} scrollIntoView() {} querySelector() { return this.button ??= new Element("button"); }
}
global.location = { hash: "" }; global.history = { replaceState(a, b, to) { location.hash = to; } };
global.addEventListener = () => {}; global.getSelection = () => "";
global.Option = function (text, value) { return { text, value }; };
const byId = {};
const shown = JSON.parse(data).shown;
const heads = shown.map(name => Object.assign(new Element("th"), { dataset: { name } }));
global.document = {
  getElementById: id => byId[id] ??= Object.assign(new Element(id), id === "items-data" ? { textContent: data } : {}),
  createElement: tag => new Element(tag), querySelectorAll: () => heads,
};
new Function(script)();
const text = e => e.textContent || e.children.map(text).join("|");
const rows = () => byId["items-body"].children.filter(r => r.className === "row");
const column = name => rows().map(r => r.children[1 + shown.indexOf(name)].textContent);
const sort = name => heads[shown.indexOf(name)].button.listeners.click();
const out = { count: byId["items-count"].textContent, page: column("item_id").length };
sort("entropy_bits"); out.rising = column("entropy_bits");
sort("entropy_bits"); out.falling = column("entropy_bits");
byId["items-on"].listeners.click(); out.second = byId["items-count"].textContent;
byId["filter-regime"].value = "cot"; byId["filter-regime"].listeners.change();
out.regimes = [...new Set(column("regime"))]; out.filtered = byId["items-count"].textContent;
out.offered = byId["filter-regime"].children.map(o => o.value);
byId["filter-text"].value = " OUTPUT 37 "; byId["filter-text"].listeners.input();
out.found = column("item_id");
rows()[0].listeners.click(); out.detail = text(byId["items-body"].children[1]); out.address = location.hash;
console.log(JSON.stringify(out));
"""


def _items():
    names = ("regime", "item_id", "entropy_bits", "text")
    rows = [
        [regime, f"q{i}", None if i == 7 else 0.25 * ((i * 37) % 60), f"output {i} {HOSTILE}"]
        for regime in ("baseline", "cot")
        for i in range(40)
    ]
    columns = [{"name": n, "label": n} for n in names]
    return {"columns": columns, "rows": rows, "shown": list(names[:3]), "filters": ["regime"]}


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_table_of_items_sorts_filters_and_opens(tmp_path):
    made = page.page("title", ["lead"], [], [], _items(), ["closing"], [("seed", "0")])
    (tmp_path / "page.html").write_text(made)
    (tmp_path / "harness.js").write_text(HARNESS)
    done = subprocess.run(
        [NODE, str(tmp_path / "harness.js"), str(tmp_path / "page.html")], capture_output=True, text=True, check=True
    )
    out = json.loads(done.stdout)
    assert out["count"] == "80 of 80 states, page 1 of 4" and out["page"] == 25
    assert out["second"] == "80 of 80 states, page 2 of 4"
    values = [float(v) for v in out["rising"]]
    assert values == sorted(values) and [float(v) for v in out["falling"]] == sorted(map(float, out["falling"]))[::-1]
    assert out["regimes"] == ["cot"] and out["filtered"] == "40 of 80 states, page 1 of 2"
    assert out["offered"] == ["baseline", "cot"] and out["found"] == ["q37"]
    assert f"output 37 {HOSTILE}" in out["detail"] and out["detail"].count("output 37") == 2  # its regimes side by side
    assert out["address"] == "#state%3D77"


def test_hostile_text_cannot_leave_its_element():
    made = page.page(HOSTILE, [HOSTILE], [], [], _items(), [HOSTILE], [(HOSTILE, HOSTILE)])
    assert "<img" not in made and made.count("<script") == 2 == made.count("</script>")
