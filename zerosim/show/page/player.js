"use strict";
// A collective to step through: what every rank holds after each round, and what was on its way.

(() => {
  const schedules = JSON.parse(document.getElementById("data").textContent).schedules;
  const part = (name) => document.getElementById(`schedule-${name}`);
  const choice = part("name"), play = part("play"), slider = part("round"), drawing = part("drawing");
  const TOP = 34, ROOMY = 8, SMALLEST = 0.7, ZOOM = 2.1;
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

  // The first that fits the page: words in wide cells, words in narrow cells, wide cells without words, narrow ones.
  function layout(schedule) {
    const longest = Math.max(...schedule.states.flatMap((each) => each.cells.map((cell) => cell.text.length)), 4) * 7.4;
    const wide = { label: 100, side: 74 }, narrow = { label: 30, side: 24 };
    const few = schedule.ranks <= ROOMY, room = drawing.clientWidth;
    const width = (each) => each.label - 16 + each.side * 2 + schedule.ranks * (each.cell + each.gap) - each.gap;
    const candidates = [
      { words: true, row: 30, gap: 54, cell: longest + 16, ...wide }, { words: true, row: 30, gap: 18, cell: longest + 4, ...narrow },
      { words: false, row: 20, gap: 22, cell: 34, ...wide }, { words: false, row: 20, gap: 8, cell: Math.max(12, Math.min(34, (room - 62) / schedule.ranks - 8)), ...narrow },
    ].filter((each) => each.words ? worded ?? few : !worded);
    const projected = document.body.classList.contains("projector"), smallest = projected ? 1 : SMALLEST;
    const best = candidates.find((each) => width(each) * smallest <= room) ?? candidates.at(-1);
    const scale = Math.max(smallest, Math.min(few ? 1.2 : 1, room / width(best)));
    const lowest = Math.min(best.row, (innerHeight / ZOOM - 110) / schedule.places.length);
    return { ...best, row: projected && !best.words ? Math.max(13, lowest) : best.row, scale, width: width(best) };
  }

  function show(round) {
    const schedule = schedules[Number(choice.value)];
    const state = schedule.states[round];
    const { words, row, gap, cell, label, side, scale, width } = layout(schedule);
    const left = (rank) => label - 16 + side + rank * (cell + gap);
    const middle = (place) => TOP + place * row + row / 2 - 2;
    const tone = (place) => schedule.tones[place % schedule.tones.length];
    const height = TOP + Math.max(schedule.places.length, 1) * row + 8;
    const picture = svg("svg", { width: width * scale, height: height * scale, viewBox: `0 0 ${width} ${height}`, role: "img" });
    picture.appendChild(svg("title", {}, `${schedule.about}; ${state.heading}`));
    for (let rank = 0; rank < schedule.ranks; rank++) {
      picture.appendChild(svg("text", { x: left(rank) + cell / 2, y: 18, class: "name" }, words ? `rank ${rank}` : `${rank}`));
    }
    schedule.places.forEach((name, place) => {
      picture.appendChild(svg("text", { x: label, y: middle(place) + 4, class: "place" }, label < 100 ? name.replace("chunk ", "") : name));
    });
    for (const each of cellsAt(schedule, round)) {
      const fresh = round > 0 && each.since === round, empty = each.text === "·";
      const group = svg("g", { class: fresh ? "cell fresh" : "cell" });
      group.addEventListener("pointerenter", () => tell(each, schedule));
      group.addEventListener("click", () => tell(each, schedule));
      group.appendChild(svg("rect", {
        x: left(each.rank), y: TOP + each.place * row, width: cell, height: row - 5, rx: 4,
        fill: empty || !words ? "#f4f4f4" : tone(each.place).ground, stroke: fresh ? tone(each.place).line : "#7d7d7d",
        "stroke-width": fresh ? 2.5 : 0.8,
      }));
      if (!words && each.share > 0) {
        group.appendChild(svg("rect", {
          x: left(each.rank), y: TOP + each.place * row, width: cell * each.share, height: row - 5, rx: 4,
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
        arrow(picture, message, middle(from), middle(place), { left, cell, gap, side, line: tone(place).line, last: schedule.ranks - 1 });
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

  function arrow(picture, message, start, end, { left, cell, gap, side, line, last }) {
    const head = (x, y, towards) => {
      const back = towards * 8;
      return svg("path", { d: `M${x} ${y}l${-back} -4v8z`, fill: line });
    };
    const path = (d) => svg("path", { d, class: "arrow", stroke: line, pathLength: 1 });
    const right = left(message.source) + cell, stub = side * 0.6, bend = Math.min(30, gap);
    if (message.source === last && message.to === 0 && last > 0) {
      picture.append(path(`M${right} ${start}h${stub}`), head(right + stub + 6, start, 1));
      if (stub > 30) picture.append(svg("text", { x: right + stub / 2 + 8, y: start - 6, class: "stub" }, "to 0"));
      picture.append(path(`M${left(0) - stub - 6} ${end}h${stub}`), head(left(0), end, 1));
    } else if (message.to > message.source) {
      const tip = left(message.to);
      picture.append(path(`M${right} ${start}C${right + bend} ${start} ${tip - bend - 4} ${end} ${tip - 7} ${end}`), head(tip, end, 1));
    } else {
      const tip = left(message.to) + cell, tail = left(message.source);
      picture.append(path(`M${tail} ${start}C${tail - bend} ${start} ${tip + bend + 4} ${end} ${tip + 7} ${end}`), head(tip, end, -1));
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
    p: () => { document.body.classList.toggle("projector"); go(Number(slider.value)); play.parentElement.scrollIntoView(); },
    d: () => { worded = !(worded ?? schedules[Number(choice.value)].ranks <= ROOMY); go(Number(slider.value)); },
  };
  keys.PageDown = keys.ArrowRight;
  keys.PageUp = keys.ArrowLeft;
  if (location.hash === "#projector") document.body.classList.add("projector");
  const alone = document.querySelectorAll("main section").length === 1;
  (alone ? document : drawing).addEventListener("keydown", (event) => {
    const of = event.target.tagName, key = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!key || event.ctrlKey || event.metaKey || event.altKey) return;
    if (of === "SELECT" || (event.key === " " && (of === "BUTTON" || of === "SUMMARY"))) return;
    key();
    event.preventDefault();
  });
  choose();
  addEventListener("resize", () => go(Number(slider.value)));
})();
