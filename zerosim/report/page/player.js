"use strict";
// A collective to step through: what every rank holds after each round, and what was on its way.

(() => {
  const schedules = JSON.parse(document.getElementById("data").textContent).schedules;
  const part = (name) => document.getElementById(`schedule-${name}`);
  const choice = part("name"), play = part("play"), slider = part("round"), drawing = part("drawing");
  const TOP = 34, LEFT = 84, SIDE = 74, ROOMY = 8;
  let timer = null, worded = null;

  function svg(name, attributes, words) {
    const found = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    if (words !== undefined) found.textContent = words;
    return found;
  }

  function cellsAt(schedule, round) {
    const found = new Map();
    schedule.states.slice(0, round + 1).forEach((state, since) => {
      for (const cell of state.cells) found.set(`${cell.rank} ${cell.place}`, { ...cell, since });
    });
    return [...found.values()];
  }

  function show(round) {
    const schedule = schedules[Number(choice.value)];
    const state = schedule.states[round];
    const words = worded ?? schedule.ranks <= ROOMY;
    const ROW = words ? 30 : 20, GAP = words ? 54 : 22, SCALE = schedule.ranks <= ROOMY ? 1.2 : 1;
    const longest = Math.max(...schedule.states.flatMap((each) => each.cells.map((cell) => cell.text.length)), 4);
    const cell = words ? longest * 7.4 + 16 : 34;
    const left = (rank) => LEFT + SIDE + rank * (cell + GAP);
    const middle = (place) => TOP + place * ROW + ROW / 2 - 2;
    const tone = (place) => schedule.tones[place % schedule.tones.length];
    const width = left(schedule.ranks) - GAP + SIDE, height = TOP + Math.max(schedule.places.length, 1) * ROW + 8;
    const picture = svg("svg", { width: width * SCALE, height: height * SCALE, viewBox: `0 0 ${width} ${height}`, role: "img" });
    picture.appendChild(svg("title", {}, `${schedule.about}; ${state.heading}`));
    for (let rank = 0; rank < schedule.ranks; rank++) {
      picture.appendChild(svg("text", { x: left(rank) + cell / 2, y: 18, class: "name" }, words ? `rank ${rank}` : `${rank}`));
    }
    schedule.places.forEach((name, place) => {
      picture.appendChild(svg("text", { x: LEFT + SIDE - 58, y: middle(place) + 4, class: "place" }, name));
    });
    for (const each of cellsAt(schedule, round)) {
      const fresh = round > 0 && each.since === round, empty = each.text === "·";
      const group = svg("g", { class: fresh ? "cell fresh" : "cell" });
      group.addEventListener("pointerenter", () => tell(each, schedule));
      group.addEventListener("click", () => tell(each, schedule));
      group.appendChild(svg("rect", {
        x: left(each.rank), y: TOP + each.place * ROW, width: cell, height: ROW - 5, rx: 4,
        fill: empty || !words ? "#f4f4f4" : tone(each.place).ground, stroke: fresh ? tone(each.place).line : "#b0b0b0",
        "stroke-width": fresh ? 2.5 : 0.8,
      }));
      if (!words && each.share > 0) {
        group.appendChild(svg("rect", {
          x: left(each.rank), y: TOP + each.place * ROW, width: cell * each.share, height: ROW - 5, rx: 4,
          fill: each.share === 1 ? tone(each.place).line : tone(each.place).ground, class: "share",
        }));
      }
      if (!empty && words) {
        const text = svg("text", { x: left(each.rank) + cell / 2, y: middle(each.place) + 4 }, each.text);
        if (fresh) text.setAttribute("font-weight", "700");
        group.appendChild(text);
      }
      group.appendChild(svg("title", {}, `rank ${each.rank}, ${schedule.places[each.place]}: ${each.holds}`));
      picture.appendChild(group);
    }
    for (const message of state.messages) {
      const lands = message.lands.length ? message.lands : message.chunks;
      lands.forEach((place, at) => {
        const from = message.chunks[at] ?? place;
        arrow(picture, message, middle(from), middle(place), { left, cell, line: tone(place).line, last: schedule.ranks - 1 });
      });
    }
    drawing.replaceChildren(picture);
    slider.value = round;
    part("heading").textContent = `${state.heading} of ${schedule.states.length - 1}`;
    if (round === 0) part("heading").textContent = state.heading;
    part("words").textContent = state.messages.length
      ? `${state.messages.map((message) => message.words).join("; ")}.`
      : round === 0 ? `${schedule.about}. What every rank brings.` : "";
  }

  function tell(cell, schedule) {
    part("detail").textContent = `rank ${cell.rank}, ${schedule.places[cell.place]}: ${cell.holds}`;
  }

  function arrow(picture, message, start, end, { left, cell, line, last }) {
    const head = (x, y, towards) => {
      const back = towards * 8;
      return svg("path", { d: `M${x} ${y}l${-back} -4v8z`, fill: line });
    };
    const path = (d) => svg("path", { d, class: "arrow", stroke: line, pathLength: 1 });
    const right = left(message.source) + cell;
    if (message.source === last && message.to === 0 && last > 0) {
      picture.append(path(`M${right} ${start}h44`), head(right + 50, start, 1));
      picture.append(svg("text", { x: right + 30, y: start - 6, class: "stub" }, "to 0"));
      picture.append(path(`M${left(0) - 50} ${end}h44`), head(left(0), end, 1));
    } else if (message.to > message.source) {
      const tip = left(message.to);
      picture.append(path(`M${right} ${start}C${right + 30} ${start} ${tip - 34} ${end} ${tip - 7} ${end}`), head(tip, end, 1));
    } else {
      const tip = left(message.to) + cell, tail = left(message.source);
      picture.append(path(`M${tail} ${start}C${tail - 30} ${start} ${tip + 34} ${end} ${tip + 7} ${end}`), head(tip, end, -1));
    }
  }

  const last = () => schedules[Number(choice.value)].states.length - 1;

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "play";
  }

  function go(round) {
    show(Math.max(0, Math.min(last(), round)));
  }

  function start() {
    if (Number(slider.value) === last()) go(0);
    play.textContent = "stop";
    timer = setInterval(() => {
      go(Number(slider.value) + 1);
      if (Number(slider.value) === last()) stop();
    }, 1100);
  }

  function choose() {
    stop();
    slider.max = last();
    show(schedules[Number(choice.value)].first);
  }

  choice.addEventListener("change", choose);
  slider.addEventListener("input", () => { stop(); go(Number(slider.value)); });
  play.addEventListener("click", () => (timer === null ? start() : stop()));
  const keys = {
    ArrowRight: () => { stop(); go(Number(slider.value) + 1); },
    ArrowLeft: () => { stop(); go(Number(slider.value) - 1); },
    Home: () => { stop(); go(0); },
    End: () => { stop(); go(last()); },
    " ": () => play.click(),
    p: () => document.body.classList.toggle("projector"),
    d: () => { worded = !(worded ?? schedules[Number(choice.value)].ranks <= ROOMY); go(Number(slider.value)); },
  };
  keys.PageDown = keys.ArrowRight;
  keys.PageUp = keys.ArrowLeft;
  if (location.hash === "#projector") keys.p();
  const alone = document.querySelectorAll("main section").length === 1;
  (alone ? document : drawing).addEventListener("keydown", (event) => {
    const of = event.target.tagName, key = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!key || event.ctrlKey || event.metaKey || event.altKey) return;
    if (of === "SELECT" || (event.key === " " && (of === "BUTTON" || of === "SUMMARY"))) return;
    key();
    event.preventDefault();
  });
  choose();
})();
