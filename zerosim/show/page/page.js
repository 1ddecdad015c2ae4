"use strict";
// Pictures that Vega draws: one window of time for all of them, what a mark is, and the way of a message.

const page = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const drawings = new Map();

function records(name) {
  const columns = page.values[name];
  const keys = Object.keys(columns);
  const count = keys.length ? columns[keys[0]].length : 0;
  return Array.from({ length: count }, (_, at) => Object.fromEntries(keys.map((key) => [key, columns[key][at]])));
}

async function draw(place) {
  const sources = JSON.parse(place.dataset.data);
  const datasets = Object.fromEntries(Object.entries(sources).map(([name, values]) => [name, records(values)]));
  const spec = { ...page.specs[place.dataset.spec] };
  spec.data = spec.data.map((each) => (each.name in datasets ? { ...each, values: datasets[each.name] } : each));
  const { view } = await vegaEmbed(place, { ...spec, description: place.ariaLabel }, {
    mode: "vega", actions: false, renderer: "svg", hover: false, defaultStyle: false, loader: { http: false },
    tooltip: (_, event, item, value) => pointAt(place, event, item, value),
  });
  const drawing = { view, place, sources, spans: datasets.spans || [] };
  drawings.set(place, drawing);
  if (place.classList.contains("timed")) joinWindow(drawing);
}

// What is pointed at

function milliseconds(ns) {
  return (ns / 1e6).toLocaleString("en", { maximumFractionDigits: 4 });
}

function told(span) {
  const what = span.what.replace("_", "-"), beside = span.channel > 1 ? ", second channel" : "";
  const lines = [`rank ${span.rank}, ${span.kind}${beside}`, what + (span.unit === "no unit" ? "" : ` of ${span.unit}`)];
  if (span.peer !== null) lines.push(`${span.kind.endsWith("in") ? "from" : "to"} rank ${span.peer}`);
  if (span.bytes) lines.push(`${span.bytes.toLocaleString("en")} bytes`);
  if (span.waited_ns) lines.push(`waited ${milliseconds(span.waited_ns)} ms before anything came`);
  const took = milliseconds(span.end_ns - span.begin_ns);
  lines.push(`${milliseconds(span.begin_ns)}–${milliseconds(span.end_ns)} ms: ${took} ms`);
  return lines.join("\n");
}

function showTip(words, x, y) {
  tip.textContent = words;
  tip.hidden = false;
  tip.style.left = "0";
  const right = window.scrollX + document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(x + 14, right))}px`;
  tip.style.top = `${y + 16}px`;
}

function hideTip() {
  tip.hidden = true;
}

function pointAt(place, event, item, value) {
  if (!item || value === null || value === undefined || value === "") {
    hideTip();
    look(place, -1);
    return;
  }
  const drawing = drawings.get(place);
  const at = event.touches ? event.touches[0] : event;
  if (place.dataset.spec === "timeline") {
    look(place, item.datum.number);
    showTip(told(drawing.spans[item.datum.number]), at.pageX, at.pageY);
  } else if (place.dataset.spec === "memory") {
    showTip(heldAt(drawing, event), at.pageX, at.pageY);
  } else {
    showTip(Object.entries(value).map(([key, found]) => `${key}: ${found}`).join("\n"), at.pageX, at.pageY);
  }
}

function heldAt(drawing, event) {
  const box = drawing.place.querySelector("svg").getBoundingClientRect();
  const ns = drawing.view.scale("x").invert(event.clientX - box.left - drawing.view.origin()[0]);
  const curve = records(drawing.sources.curve);
  const since = Math.max(...curve.filter((each) => each.ns <= ns).map((each) => each.ns), 0);
  const kinds = curve.filter((each) => each.ns === since).slice(-5);
  const total = kinds.reduce((sum, each) => sum + each.bytes, 0);
  return [`at ${milliseconds(ns)} ms: ${total.toLocaleString("en")} bytes`,
    ...kinds.reverse().map((each) => `${each.kind}: ${each.bytes.toLocaleString("en")}`)].join("\n");
}

function look(place, number) {
  const drawing = drawings.get(place);
  if (!drawing || !drawing.spans.length) return;
  const link = number < 0 ? -1 : drawing.spans[number].link;
  drawing.current = number;
  drawing.view.signal("current", number).signal("picked", link).run();
}

// The window of time, the same for all

const timed = () => [...drawings.values()].filter((each) => each.place.classList.contains("timed"));
const shown = { begin: 0, end: 1, until: 1 };

function showWindow(begin, end) {
  const width = Math.min(shown.until, Math.max(200, end - begin));
  shown.begin = Math.max(0, Math.min(begin, shown.until - width));
  shown.end = shown.begin + width;
  for (const each of timed()) each.view.signal("begin", shown.begin).signal("end", shown.end).run();
  const words = `${milliseconds(shown.begin)}–${milliseconds(shown.end)} ms`;
  for (const each of document.querySelectorAll(".window")) each.textContent = words;
}

function zoom(factor, around) {
  const middle = around === undefined ? (shown.begin + shown.end) / 2 : around;
  showWindow(middle - (middle - shown.begin) * factor, middle + (shown.end - middle) * factor);
}

function pan(share) {
  const by = (shown.end - shown.begin) * share;
  showWindow(shown.begin + by, shown.end + by);
}

const moves = {
  in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.25), right: () => pan(0.25),
  all: () => showWindow(0, shown.until),
};

function timeAt(drawing, event) {
  const box = drawing.place.querySelector("svg").getBoundingClientRect();
  return drawing.view.scale("x").invert(event.clientX - box.left - drawing.view.origin()[0]);
}

function listen(drawing) {
  const { place } = drawing;
  place.addEventListener("wheel", (event) => {
    if (document.activeElement !== place && !event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), timeAt(drawing, event));
  }, { passive: false });
  let from = null;
  place.addEventListener("pointerdown", (event) => {
    from = { x: event.clientX, begin: shown.begin, end: shown.end };
    place.focus({ preventScroll: true });
  });
  place.addEventListener("pointermove", (event) => {
    if (from === null || Math.abs(event.clientX - from.x) < 3) return;
    const perPixel = (from.end - from.begin) / drawing.view.width();
    const by = (from.x - event.clientX) * perPixel;
    hideTip();
    showWindow(from.begin + by, from.end + by);
  });
  window.addEventListener("pointerup", () => { from = null; });
  place.addEventListener("pointerleave", hideTip);
  place.addEventListener("keydown", (event) => key(drawing, event));
}

const keys = {
  "+": moves.in, "=": moves.in, "-": moves.out, "0": moves.all, ArrowLeft: moves.left, ArrowRight: moves.right,
};

function key(drawing, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const steps = { n: 1, p: -1 };
  const lanes = { ArrowDown: 1, ArrowUp: -1 };
  if (keys[event.key]) keys[event.key]();
  else if (event.key === "Escape") { hideTip(); look(drawing.place, -1); }
  else if (event.key in steps && drawing.spans.length) walk(drawing, steps[event.key]);
  else if (event.key in lanes && drawing.spans.length) changeLane(drawing, lanes[event.key]);
  else return;
  event.preventDefault();
}

function walk(drawing, by) {
  const count = drawing.spans.length;
  const current = drawing.current ?? -1;
  const first = Math.max(0, drawing.spans.findIndex((span) => span.end_ns > shown.begin));
  select(drawing, current < 0 ? first : Math.max(0, Math.min(count - 1, current + by)));
}

function changeLane(drawing, by) {
  const here = drawing.spans[drawing.current];
  if (!here) { walk(drawing, 0); return; }
  const lane = (span) => `${span.rank} ${span.lane}`;
  const order = [...new Set(drawing.spans.map(lane))];
  const wanted = order[order.indexOf(lane(here)) + by];
  if (wanted === undefined) return;
  const apart = (span) => Math.abs(span.begin_ns - here.begin_ns);
  const others = drawing.spans.filter((span) => lane(span) === wanted);
  select(drawing, others.reduce((best, span) => (apart(span) < apart(best) ? span : best)).number);
}

function select(drawing, number) {
  const span = drawing.spans[number];
  if (span.begin_ns < shown.begin || span.end_ns > shown.end) {
    const middle = (span.begin_ns + span.end_ns) / 2;
    const half = Math.max(shown.end - shown.begin, 1.2 * (span.end_ns - span.begin_ns)) / 2;
    showWindow(middle - half, middle + half);
  }
  look(drawing.place, number);
  const box = drawing.place.querySelector("svg").getBoundingClientRect();
  const [left, top] = drawing.view.origin();
  const x = drawing.view.scale("x")((span.begin_ns + span.end_ns) / 2);
  const y = drawing.view.scale("y")(span.rank * page.lanes.height + page.lanes.tops[span.lane] + 20);
  showTip(told(span), window.scrollX + box.left + left + x, window.scrollY + box.top + top + y);
}

// Numbers behind a click

function fill(details) {
  if (!details.open || details.querySelector("table")) return;
  const columns = JSON.parse(details.dataset.columns);
  const table = document.createElement("table");
  const line = (cells, name) => {
    const row = document.createElement("tr");
    for (const words of cells) row.appendChild(document.createElement(name)).textContent = words ?? "";
    return row;
  };
  table.createTHead().appendChild(line(Object.values(columns), "th"));
  const body = table.createTBody();
  for (const each of records(details.dataset.of)) {
    body.appendChild(line(Object.keys(columns).map((name) => {
      return typeof each[name] === "number" ? each[name].toLocaleString("en", { maximumSignificantDigits: 21 }) : each[name];
    }), "td"));
  }
  details.appendChild(table);
}

for (const details of document.querySelectorAll("details.numbers")) {
  details.addEventListener("toggle", () => fill(details));
}

// Which rows are shown

for (const box of document.querySelectorAll("input[data-row]")) {
  box.addEventListener("change", () => {
    document.getElementById(`row-${box.dataset.row}`).hidden = !box.checked;
    window.dispatchEvent(new Event("resize"));
  });
}

for (const button of document.querySelectorAll("[data-zoom]")) {
  button.addEventListener("click", () => moves[button.dataset.zoom]());
}

// One picture after the other, from the top; what is read first is there first

const waiting = [...document.querySelectorAll(".drawing")];

function joinWindow(drawing) {
  if (shown.until === 1) {
    shown.until = drawing.view.signal("end");
    shown.end = shown.until;
  } else if (shown.begin > 0 || shown.end < shown.until) {
    showWindow(shown.begin, shown.end);
  }
  listen(drawing);
}

async function drawAll() {
  while (waiting.length) {
    await draw(waiting.shift());
    await new Promise((resolve) => { setTimeout(resolve, 0); });
  }
  document.documentElement.dataset.drawn = "all";
}

drawAll();
