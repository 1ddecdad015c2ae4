// A film: the frames of one run or of several, drawn cell by cell; messages travel from cell to cell.
// The colours of chunks (`tone`) and of kinds are part of the data.
const still = matchMedia("(prefers-reduced-motion: reduce)");

function make(parent, tag, looks = "", text = "") {
  const made = document.createElement(tag);
  made.className = looks;
  made.textContent = text;
  parent.append(made);
  return made;
}

function paint(cell, content, size) {
  const { element, fill, words } = cell;
  element.className = `cell ${content ? content[3] : "empty"}`;
  if (!content) return;
  const [sum, tone, parts] = content, { clientWidth: width, clientHeight: height } = element;
  const fits = (text) => Math.min(1.28 * width / Math.max(text.length, 2), 0.8 * height);
  const text = parts?.length > 2 && fits(sum) < 20 ? `${parts.length}/${size}` : sum;    // its stripes say which
  element.style.setProperty("--hue", tone);
  const held = "color-mix(in srgb, var(--hue) 62%, light-dark(#fff, #16181c))", lacks = "color-mix(in srgb, var(--hue) 9%, transparent)";
  const stops = parts ? Array.from({ length: size }, (_, part) =>
    `${parts.includes(part) ? held : lacks} ${100 * part / size}% ${100 * (part + 1) / size}%`) : [held, held];
  fill.style.setProperty("--parts", content[3].includes("blank") ? "transparent, transparent" : stops.join());
  fill.style.setProperty("--turn", width * 1.2 < height ? "0deg" : "90deg");
  words.textContent = text;
  words.hidden = fits(text) < 10;
  words.style.setProperty("--chars", Math.max(text.length, 2));
}

function build(stage, panel, alone) {
  const root = make(stage, "div", `panel ${alone ? "alone" : ""}`), groups = new Map();
  root.style.gridTemplateColumns = `max-content max-content repeat(${panel.ranks}, minmax(0, 1fr))`;
  panel.rows.forEach(([group], row) => groups.set(group, [...(groups.get(group) ?? []), row]));
  const lines = panel.rows.map(([group], row) => row + 3 + [...groups.keys()].indexOf(group)), end = lines.at(-1) + 1;
  root.style.gridTemplateRows = `auto auto ${[...groups.values()].map((rows) => `repeat(${rows.length}, minmax(12px, 1fr))`).join(" 4px ")} auto auto`;
  const place = (element, row, column) => { element.style.gridRow = row; if (column) element.style.gridColumn = column; return element; };
  const title = place(make(root, "h3", "", `${panel.title} `), 1), words = make(title, "span");
  for (let rank = 0; rank < panel.ranks; rank++) place(make(root, "div", "rank", panel.ranks > 8 || !alone ? rank : `rank ${rank}`), 2, rank + 3);
  panel.rows.forEach(([, name], row) => place(make(root, "div", "unit", name), lines[row]));
  for (const [group, rows] of groups) {
    if (!group) continue;
    const label = place(make(root, "div", "group"), `${lines[rows[0]]} / span ${rows.length}`);
    label.style.setProperty("--kind", panel.kinds[group]);
    make(label, "b", "", group);
  }
  const used = panel.rows.map(() => []);
  const cells = Array.from({ length: panel.ranks }, (_, rank) => panel.rows.flatMap((_, row) => {
    const line = place(make(root, "div", "row"), lines[row], rank + 3);
    used[row].push(line);
    return Array.from({ length: panel.across }, () => {
      const element = make(line, "div", "cell empty");
      return { element, fill: make(element, "i"), words: make(element, "b") };
    });
  }));
  const names = panel.frames[0].bars[0].map(([name]) => name);
  names.forEach((name, line) => place(make(root, "div", "name", name), end + line));
  const bars = cells.map((_, rank) => names.map((_, line) => place(make(root, "div", "bar"), end + line, rank + 3)));
  const states = [];
  for (const frame of panel.frames) {    // of each frame the page has only what changed
    const state = (states.at(-1) ?? cells.map((of) => of.map(() => null))).map((of) => [...of]);
    for (const [rank, cell, content] of frame.cells) state[rank][cell] = content;
    states.push(state);
  }
  return { ...panel, root, words, cells, used, bars, states };
}

function start(film) {
  const data = JSON.parse(film.dataset.film), find = (what) => film.querySelector(what), stage = find(".stage");
  const panels = data.panels.map((panel) => build(stage, { ...panel, kinds: data.kinds }, data.panels.length === 1));
  const slider = find("input"), last = data.steps.length - 1, speed = () => Number(find("select").value);
  const arcs = stage.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
  arcs.classList.add("arcs");
  film.classList.toggle("several", panels.length > 1);
  const named = new Set(panels.flatMap((panel) => panel.rows.map(([group]) => group)));
  const beside = new Set(panels.flatMap((panel) => panel.frames.flatMap((frame) => frame.bars[0].flatMap(([, , parts]) => parts.filter(([kind, share]) => share && kind !== "sent" && !named.has(kind)).map(([kind]) => kind)))));
  for (const kind of beside) make(find(".say"), "span", "chip", kind).style.setProperty("--kind", data.kinds[kind]);
  let now = 0, playing = 0, flights = [];
  slider.max = last;
  data.steps.forEach((step, number) => { if (step.wrong) make(find(".ticks"), "u").style.left = `${100 * number / Math.max(last, 1)}%`; });

  const box = (element) => {
    const outer = stage.getBoundingClientRect(), inner = element.getBoundingClientRect();
    return { x: inner.x - outer.x, y: inner.y - outer.y, width: inner.width, height: inner.height };
  };

  function arc(panel, [from, left, to, reached, added, content]) {
    const one = box(panel.cells[from][left].element), other = box(panel.cells[to][reached].element);
    const side = one.x < other.x ? -1 : 1, y1 = one.y + one.height * 0.22, y2 = other.y + other.height * 0.22;
    const x1 = one.x + one.width * (0.5 - side * 0.4), x2 = other.x + other.width * (0.5 + side * 0.44);
    const path = document.createElementNS(arcs.namespaceURI, "path"), lift = Math.min(Math.abs(x2 - x1) * 0.12, 46);
    path.setAttribute("d", `M${x1},${y1} Q${(x1 + x2) / 2},${(y1 + y2) / 2 - 2 * lift} ${x2},${y2} m${side * 9},-7 L${x2},${y2} l${side * 9},6`);
    path.style.stroke = `color-mix(in srgb, ${content?.[1] ?? "currentColor"} 75%, light-dark(#000, #fff))`;
    arcs.append(path);
    if (!added || other.width < 22) return;
    const plus = arcs.appendChild(document.createElementNS(arcs.namespaceURI, "text"));
    plus.setAttribute("x", x2 + side * 12);
    plus.setAttribute("y", y2 - 4);
    plus.textContent = "⊕";
  }

  function fly(panel, [from, left, to, reached, , content]) {
    const one = box(panel.cells[from][left].element), other = box(panel.cells[to][reached].element);
    const token = make(stage, "div"), dx = other.x - one.x, dy = other.y - one.y, lift = Math.min(Math.abs(dx) * 0.12, 46);
    Object.assign(token.style, { left: `${one.x}px`, top: `${one.y}px`, width: `${one.width}px`, height: `${one.height}px`, position: "absolute" });
    paint({ element: token, fill: make(token, "i"), words: make(token, "b") }, content, panel.whole);
    token.classList.add("token");
    const path = [[0, 0], [dx / 2, dy / 2 - lift], [dx, dy]].map(([x, y]) => ({ transform: `translate(${x}px, ${y}px)` }));
    return { token, done: token.animate(path, { duration: 800 / speed(), easing: "ease-in-out" }).finished };
  }

  function show(number, moving = false) {
    now = Math.max(0, Math.min(last, number));
    flights.forEach(({ token }) => token.remove());
    flights = [];
    const step = data.steps[now], late = [];
    arcs.replaceChildren();
    arcs.setAttribute("viewBox", `0 0 ${stage.clientWidth} ${stage.clientHeight}`);
    arcs.setAttribute("preserveAspectRatio", "none");
    find(".event").textContent = step.words;
    find(".notes").textContent = step.notes.join(" · ");
    find("output").textContent = `${now} / ${last}`;
    slider.value = now;
    slider.setAttribute("aria-valuetext", step.words);
    panels.forEach((panel, place) => {
      const frame = panel.frames[step.at[place]], state = panel.states[step.at[place]], fresh = step.new[place];
      const flown = fresh && moving && !still.matches ? frame.moves : [];
      const reached = new Set(flown.map(([, , to, cell]) => `${to},${cell}`));
      panel.root.classList.toggle("waits", !fresh);
      panel.words.textContent = fresh ? frame.words : "waits";
      flights.push(...flown.map((move) => fly(panel, move)));
      panel.cells.forEach((cells, rank) => cells.forEach((cell, index) => {
        const update = () => paint(cell, state[rank][index], panel.whole);
        if (reached.has(`${rank},${index}`)) late.push(update, () => cell.element.animate([{ transform: "scale(1.05)" }, {}], 350 / speed()));
        else update();
      }));
      panel.used.forEach((lines, row) => lines.forEach((line) => line.classList.toggle("used", fresh && frame.uses.includes(row))));
      frame.bars.forEach((lines, rank) => lines.forEach(([name, figure, parts], line) => {
        const bar = panel.bars[rank][line];
        bar.title = figure;
        while (bar.children.length < parts.length) make(bar, "i");
        if (!bar.querySelector("b")) make(bar, "b");
        [...bar.querySelectorAll("i")].forEach((part, index) => {
          part.style.setProperty("--share", `${100 * parts[index][1] / data.longest[name]}%`);
          part.style.setProperty("--kind", data.kinds[parts[index][0]]);
        });
        bar.querySelector("b").textContent = figure;
      }));
      if (fresh) frame.moves.forEach((move) => arc(panel, move));
    });
    const shown = flights;
    if (flights.length) Promise.all(flights.map(({ done }) => done)).then(() => {
      if (shown !== flights) return;
      flights.forEach(({ token }) => token.remove());
      late.forEach((update) => update());
    }, () => {});
  }

  const go = (by) => show(now + by, by === 1);
  function event(by) {
    let number = now + by;
    while (number > 0 && number < last && !data.steps[number].begins) number += by;
    show(number);
  }
  function pause() { clearTimeout(playing); playing = 0; find("[data-play]").textContent = "▶"; }
  function play() {
    if (now === last) return pause();
    go(1);
    find("[data-play]").textContent = "❚❚";
    playing = setTimeout(play, 1500 / speed());
  }
  const toggle = () => { if (playing) pause(); else { if (now === last) show(0); play(); } };

  document.addEventListener("keydown", (pressed) => {
    if (pressed.target.closest("select, details") || pressed.ctrlKey || pressed.metaKey || pressed.altKey) return;
    const acts = { ArrowRight: () => go(1), ArrowLeft: () => go(-1), PageDown: () => go(1), PageUp: () => go(-1), Home: () => show(0), End: () => show(last) };
    const act = pressed.shiftKey ? { ArrowRight: () => event(1), ArrowLeft: () => event(-1) }[pressed.key] : acts[pressed.key];
    const space = pressed.key === " " && !pressed.target.closest("button");
    if (!act && !space) return;
    pressed.preventDefault();
    if (space) return toggle();
    pause();
    act();
  });
  for (const button of film.querySelectorAll("[data-by]")) button.addEventListener("click", () => { pause(); go(Number(button.dataset.by)); });
  find("[data-play]").addEventListener("click", toggle);
  slider.addEventListener("input", () => { pause(); show(Number(slider.value)); });
  let touched = null;
  stage.addEventListener("pointerdown", (at) => { touched = at.pointerType === "mouse" ? null : at.clientX; });
  stage.addEventListener("pointerup", (at) => {
    if (touched !== null && Math.abs(at.clientX - touched) > 30) { pause(); go(at.clientX < touched ? 1 : -1); }
    touched = null;
  });

  function layout() {
    const small = innerWidth < 700, count = panels.length, rows = Math.max(...panels.map((panel) => panel.rows.length));
    film.style.height = small && count > 1 ? "auto" : `${Math.max(380, innerHeight - film.getBoundingClientRect().top - scrollY - 6)}px`;
    const room = (columns) => Math.min(innerWidth / columns / 36, innerHeight / Math.ceil(count / columns) / (rows + 5) * 0.64);
    const columns = small ? 1 : [1, 2, 3, 4].filter((number) => number <= count).reduce((best, number) => (room(number) > room(best) ? number : best));
    stage.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    stage.style.gridAutoRows = small && count > 1 ? "330px" : "minmax(0, 1fr)";
    film.style.setProperty("--label", `${Math.max(10, Math.min(30, room(columns)))}px`);
    for (const panel of panels) {    // as many chunks abreast as make cells squarest
      const { clientWidth: width, clientHeight: height } = panel.used[0][0];
      const least = (abreast) => Math.min(width / abreast, height / Math.ceil(panel.across / abreast) * 1.3);
      const abreast = Array.from({ length: panel.across }, (_, number) => number + 1).reduce((best, number) => (least(number) >= least(best) ? number : best));
      panel.root.style.setProperty("--abreast", abreast);
    }
    show(now);
  }
  addEventListener("resize", layout);
  addEventListener("beforeprint", () => {    // a strip of the last frame of each event
    const before = now, strip = find(".strip");
    strip.replaceChildren();
    data.steps.forEach((step, number) => {
      if (number < last && !data.steps[number + 1].begins) return;
      show(number);
      const figure = make(strip, "figure");
      make(figure, "figcaption", "", `${number}. ${step.words}`);
      figure.append(stage.cloneNode(true));
    });
    show(before);
  });
  now = data.first;
  layout();
}

for (const film of document.querySelectorAll("[data-film]")) start(film);
