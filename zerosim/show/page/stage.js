"use strict";
// A step of a stage to step through: what every rank does in each event, and what it then holds.

(() => {
  const step = JSON.parse(document.getElementById("data").textContent).step;
  const part = (name) => document.getElementById(`step-${name}`);
  const play = part("play"), slider = part("event"), drawing = part("drawing");
  const kinds = Object.entries(step.kinds), last = step.moments.length - 1;
  const LEFT = 64, TOP = 8, RIGHT = 16, WIDEST = 40, NARROWEST = 14, STRIP = 24,
    ROOMIEST = step.ranks > 8 ? 16 : step.ranks > 4 ? 30 : 48;
  let timer = null, cellWidth = WIDEST, bars = ROOMIEST, lane = 0;

  function svg(name, attributes, words) {
    const found = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    if (words !== undefined) found.textContent = words;
    return found;
  }

  const kB = (bytes) => (bytes / 1000).toFixed(1);
  const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);
  const x = (event) => LEFT + event * cellWidth;
  const y = (rank) => TOP + rank * lane;

  function cell(picture, number, event, rank, now) {
    const group = svg("g", { class: number === now ? "event now" : number > now ? "event later" : "event" });
    group.addEventListener("click", () => { stop(); show(number); });
    group.appendChild(svg("rect", { x: x(number) + 1, y: y(rank), width: cellWidth - 2, height: STRIP - 4, rx: 3,
      fill: event.colour, "fill-opacity": event.paler ? 0.5 : 0.85, stroke: event.edge }));
    group.appendChild(svg("text", { x: x(number) + cellWidth / 2, y: y(rank) + 14, class: event.paler ? "" : "on" }, event.letter));
    let below = y(rank) + STRIP + bars;
    const held = event.ranks[rank].held_bytes;
    for (const [kind, { colour, edge }] of kinds) {
      const height = (held[kind] ?? 0) * bars / step.most;
      below -= height;
      group.appendChild(svg("rect", { x: x(number) + 3, y: below, width: cellWidth - 6, height, fill: colour, stroke: edge, class: kind }));
    }
    group.appendChild(svg("title", {}, `rank ${rank}, ${event.words}: holds ${kB(total(held))} kB`));
    picture.appendChild(group);
  }

  function arrow(picture, number, source, to) {
    const from = y(source) + STRIP / 2 + 4, end = y(to) + STRIP / 2 - 6, up = end < from ? -1 : 1;
    const reach = 18 + 8 * Math.abs(to - source), way = x(number) + cellWidth + reach > x(last + 1) + RIGHT ? -1 : 1;
    const at = way > 0 ? x(number) + cellWidth : x(number), far = at + way * reach;
    picture.appendChild(svg("path", { class: "arrow", d: `M${at} ${from}C${far} ${from} ${far} ${end} ${at + way * 8} ${end}` }));
    picture.appendChild(svg("path", { class: "head", d: `M${at + way} ${end}l${way * 9} ${-4 * up}v${8 * up}z` }));
  }

  function show(now) {
    bars = document.body.classList.contains("projector") ? Math.min(ROOMIEST, 26) : ROOMIEST;
    lane = STRIP + bars + 12;
    cellWidth = Math.max(NARROWEST, Math.min(WIDEST, (drawing.clientWidth - LEFT - RIGHT) / (last + 1)));
    const event = step.moments[now], width = x(last + 1) + RIGHT, height = y(step.ranks) + 4;
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
    picture.appendChild(svg("title", {}, `${step.title}; ${event.words}`));
    picture.appendChild(svg("rect", { x: x(now) - 1, y: 2, width: cellWidth + 2, height: height - 4, rx: 5, class: "cursor" }));
    for (let rank = 0; rank < step.ranks; rank++) {
      picture.appendChild(svg("text", { x: LEFT - 10, y: y(rank) + 15, class: "name" }, `rank ${rank}`));
      picture.appendChild(svg("path", { class: "floor", d: `M${LEFT} ${y(rank) + STRIP + bars}H${x(last + 1)}` }));
      step.moments.forEach((each, number) => cell(picture, number, each, rank, now));
    }
    event.ranks.forEach((did, rank) => Object.keys(did.sent_bytes).forEach((to) => arrow(picture, now, rank, Number(to))));
    drawing.replaceChildren(picture);
    slider.value = now;
    part("heading").textContent = `${now + 1} of ${last + 1}: ${event.words}`;
    part("rows").replaceChildren(...event.ranks.map((did, rank) => row(did, rank)));
  }

  const headings = [...document.querySelectorAll("#step thead th")].map((each) => each.textContent);

  function row(did, rank) {
    const found = document.createElement("tr");
    const sent = Object.entries(did.sent_bytes).map(([to, bytes]) => `${kB(bytes)} to rank ${to}`).join(", ");
    const cells = [`rank ${rank}`, sent || "–", ...kinds.map(([kind]) => kB(did.held_bytes[kind] ?? 0)), kB(total(did.held_bytes))];
    cells.forEach((words, number) => {
      const each = document.createElement(number ? "td" : "th");
      each.textContent = words;
      if (number) each.dataset.heading = headings[number];
      found.appendChild(each);
    });
    return found;
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "play";
  }

  const now = () => Number(slider.value);

  function go(event) {
    stop();
    show(Math.max(0, Math.min(last, event)));
  }

  function start() {
    if (now() === last) show(0);
    play.textContent = "stop";
    timer = setInterval(() => {
      show(Math.min(last, now() + 1));
      if (now() === last) stop();
    }, 900);
  }

  const keys = {
    ArrowRight: () => go(now() + 1), ArrowLeft: () => go(now() - 1), Home: () => go(0), End: () => go(last),
    " ": () => (timer === null ? start() : stop()), p: () => { document.body.classList.toggle("projector"); show(now()); play.parentElement.scrollIntoView(); },
  };
  keys.PageDown = keys.ArrowRight;
  keys.PageUp = keys.ArrowLeft;
  if (location.hash === "#projector") document.body.classList.add("projector");
  slider.max = last;
  slider.addEventListener("input", () => go(now()));
  play.addEventListener("click", keys[" "]);
  document.addEventListener("keydown", (event) => {
    const key = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!key || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === " " && event.target.tagName === "BUTTON") return;
    key();
    event.preventDefault();
  });
  show(step.first);
  addEventListener("resize", () => show(now()));
})();
