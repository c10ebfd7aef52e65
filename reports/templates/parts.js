"use strict";
function unfold() {
  let mark = "";
  try { mark = decodeURIComponent(location.hash.slice(1)); } catch { return; }
  const target = mark && document.getElementById(mark);
  if (!target || !target.closest) return;
  for (let part = target.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();
