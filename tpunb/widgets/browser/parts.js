// Parts of the panels, made from the kernel's values: no state, no kernel.

const number = (value) => value.toLocaleString("en-US");
// A number without binary rounding errors.
const exact = (value) => String(Math.round(value * 1e6) / 1e6);

const button = (text, label, call, extra = {}) =>
  make("button", { type: "button", class: "tpunb-button", title: label, onclick: call, ...extra }, text);

// The rows of the timeline as Vega takes them, from their compact form.
function unpacked({ timeline, ranks, numbers }, { edges: [low, high] }, { slices, lane, top, height }, hints = {}) {
  const many = (timeline.step ?? timeline.after).length;
  const places = (text) => Array.from(text.length === many ? text : text.repeat(many), (digit) => parseInt(digit, 36));
  const rank = places(timeline.rank);
  const column = (call) => rank.map((_, i) => call(i));
  const drawn = { phase: column((i) => ranks.phase[rank[i]]), shade: column((i) => ranks.shade[rank[i]]),
    name: column((i) => ranks.name[rank[i]]), more: column((i) => hints[ranks.phase[rank[i]]] ?? ""), traced: places(timeline.traced) };
  if (timeline.step !== undefined) {
    const { start, end, step } = timeline;
    const y = timeline.lane.map((at) => lane * at + top);
    return { numbers, timeline: { ...drawn, start, end, step, y, y2: y.map((at) => at + height) } };
  }
  const width = (high - low) / slices;
  let slice = 0, reached = 0;
  const at = timeline.after.map((more) => (slice += more));
  const until = timeline.part.map((part, i) => (reached = timeline.after[i] ? part : reached + part));
  const y = (call) => column((i) => lane * Math.floor(at[i] / slices) + top + (height * call(i)) / 100);
  const start = at.map((one) => low + (one % slices) * width);
  return { numbers, timeline: { ...drawn, start, end: start.map((one) => one + width), part: timeline.part,
    y: y((i) => until[i] - timeline.part[i]), y2: y((i) => until[i]) } };
}

// The timeline without Vega: until it is loaded, or where no kernel can send it.
function sketched({ timeline, layout }, [low, high], { start, end, y, y2, shade }) {
  const across = (time) => ((1000 * (time - low)) / (high - low)).toFixed(1);
  const paths = layout.shades.map(() => []);
  start.forEach((from, i) => paths[shade[i]].push(`M${across(from)} ${y[i]}H${across(end[i])}V${y2[i]}H${across(from)}Z`));
  const look = { viewBox: `0 0 1000 ${timeline.height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": timeline.description, style: `width:calc(100% - 24px);height:${timeline.height}px` };
  return make("svg", look, paths.map((parts, i) => make("path", { d: parts.join(""), fill: layout.shades[i] })));
}

// A table of the kernel; a list if it has one column. `pick` selects the phase of a row; `more` is the name of the last row.
function drawn({ caption, columns, rows, left, colours, bars, phases, hints }, options = {}) {
  const { chosen = null, pick = null, group = "", more = null, marked = () => false, kind = "", card = null } = options;
  if (columns.length === 1) return make("ol", { "aria-label": caption }, rows.map(([text]) => {
    const [first, ...code] = text.split("\n");
    return make("li", {}, first, code.length ? pasted(code.join("\n")) : null);
  }));
  const side = (at) => (left[at] ? "tpunb-text" : null);
  const first = ([text], i) => {
    const phase = phases[i] ?? null, [name, below] = text.split("\n");
    const chip = colours[i] ? make("span", { class: "tpunb-chip", "aria-hidden": "true", style: `background:${colours[i]}` }) : null;
    const radio = () => make("input", { type: "radio", name: group, value: phase, checked: phase === chosen, onchange: () => pick(phase) });
    const shown = pick && phase !== null ? make("label", {}, radio(), chip, name) : [chip, pick && more ? more : name];
    return make("th", { scope: "row", class: side(0), title: text }, shown, below ? make("div", { class: "tpunb-where" }, below) : null);
  };
  const bar = (i) => make("span", { class: "tpunb-bar", "aria-hidden": "true" }, make("i", { style:
      `margin-left:${100 * bars[i][0]}%;width:${100 * bars[i][1]}%${colours[i] ? `;background:${colours[i]}` : ""}` }));
  const opened = phases.includes(chosen) ? phases.indexOf(chosen) : chosen === null ? phases.findIndex((phase) => phase >= 0) : -1;
  const cell = (attributes, ...children) => make("td", attributes, children);
  const row = (cells, i) => [make("tr", { class: (pick && phases[i] === chosen) || marked(cells) ? "tpunb-chosen" : null }, first(cells, i),
    cells.slice(1).map((text, at) => cell({ class: side(at + 1) },
      at === 0 && bars[i] !== undefined ? [bar(i), make("b", {}, text)] : text))),
  card && i === opened ? make("tr", { class: "tpunb-open" }, cell({ colspan: columns.length }, card)) : null];
  return make("table", { class: `tpunb-phases ${kind}`, "aria-label": caption },
    make("thead", {}, make("tr", {}, columns.map((name, at) =>
      make("th", { scope: "col", class: side(at), title: hints[at] || null }, name)))),
    make("tbody", {}, rows.map(row)));
}

// A tree of the kernel: text, or a tag, its attributes and its children; what has text to copy copies it.
function built(node) {
  if (typeof node === "string") return node;
  const [tag, attributes, ...children] = node, text = attributes["data-copy"];
  const element = make(tag, attributes, children.map(built));
  if (text !== undefined) element.addEventListener("click", () => copied(text).then(() => { element.textContent = "Copied"; }, () => {}));
  return element;
}

// Code to paste, with a button that copies it.
function pasted(code) {
  const look = { type: "button", class: "tpunb-copy", "data-copy": code, "aria-label": "Copy this code" };
  return built(["div", { class: "tpunb-paste" }, ["pre", {}, ["code", {}, code]], ["button", look, "Copy"]]);
}

// Tables with their captions as headings.
const titled = (tables, kind) => tables.flatMap((each) => [make("h5", { "aria-level": 3 }, each.caption), drawn(each, { kind })]);

// Keep a control where it is on the screen while it changes the height of what is above it; returns how to end that.
function steady(control, around) {
  let top = null, kept = false; // whether the next event of a scroll is of this function
  const free = () => { top = null; };
  const keep = () => {
    if (top === null || document.activeElement !== control) return;
    const by = control.getBoundingClientRect().top - top, node = scroller(control), before = node.scrollTop;
    if (Math.abs(by) >= 1) node.scrollBy(0, by);
    kept = kept || node.scrollTop !== before;
  };
  const here = () => { keep(); top = control.getBoundingClientRect().top; };
  const scrolled = () => { if (kept) kept = false; else free(); };
  control.addEventListener("focus", free);
  control.addEventListener("input", here);
  addEventListener("scroll", scrolled, { capture: true, passive: true });
  const watch = new ResizeObserver(keep);
  watch.observe(around);
  return () => { watch.disconnect(); removeEventListener("scroll", scrolled, { capture: true }); };
}

function scroller(node) {
  if (!node) return document.scrollingElement;
  const scrolls = node.scrollHeight > node.clientHeight && /auto|scroll/.test(getComputedStyle(node).overflowY);
  return scrolls ? node : scroller(node.parentElement);
}
