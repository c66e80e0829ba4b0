// Parts of the panels, made from the kernel's values: no state, no kernel.

const percent = (part) => (part === null || part === undefined ? "–" : `${(100 * part).toFixed(1)} %`);
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

const header = (names) => make("thead", {}, make("tr", {}, names.map((name) => make("th", { scope: "col" }, name))));

const table = (label, names, body, kind = "") =>
  make("table", { class: `tpunb-phases ${kind}`, "aria-label": label }, header(names), make("tbody", {}, body));

// Columns as a table.
function tabled(columns, label) {
  const names = Object.keys(columns);
  const cell = (value) => make("td", {}, value === true ? "yes" : value === false || value === null ? "–" : String(value));
  return table(label, names.map((name) => name.replaceAll("_", " ")),
    rows(columns).map((row) => make("tr", {}, names.map((name) => cell(row[name])))));
}

// Columns that are shown where any row has a value: without a device there are none.
const DEVICES = { idle: "Idle (% of step time)", mxu: "MXU (% of peak)" };
const ofDevices = (all, none) => Object.keys(DEVICES).filter((name) => all.some((row) => row[name] !== none));

const share = (part) => (part === null || part === undefined ? "–" : (100 * part).toFixed(1)); // its head has the base
const digits = (value) => value === null ? "–" : value.toLocaleString("en-US", { maximumSignificantDigits: 4 });

// The head and the body of the phases' table; a radio button selects a phase. The others are counted, and listed on click.
function listed(phases, rest, chosen, name, pick, more) {
  const measured = ofDevices(phases, null);
  const heads = ["Phase", "Id", "Steps", "% productive", "Cumulative %", "Step (ms)", "CV (% of mean)",
    ...measured.map((column) => DEVICES[column])];
  const row = (p) => make("tr", { class: p.phase === chosen ? "tpunb-chosen" : null },
    make("th", { scope: "row" }, make("label", {},
      make("input", { type: "radio", name: `${name}-phase`, value: p.phase, checked: p.phase === chosen,
        onchange: () => pick(p.phase) }),
      make("span", { class: "tpunb-chip", "aria-hidden": "true", style: `background:${p.colour}` }), p.name)),
    [String(p.phase), number(p.steps), share(p.share), share(p.phase < 0 ? null : p.until), digits(p.step_ms), share(p.step_time_cv),
      ...measured.map((column) => share(p[column]))].map((text) => make("td", {}, text)));
  return [header(heads), make("tbody", {}, phases.map(row),
    rest ? make("tr", {}, make("td", { colspan: heads.length },
      more ? button(`Show ${number(rest)} more`, "List all phases", more) : `${number(rest)} more`)) : null)];
}

function operations(ops, side) {
  const most = Math.max(...ops.map((op) => op.share), 1e-9);
  const row = (op) => make("tr", {}, make("th", { scope: "row", title: [op.op, op.where].filter(Boolean).join("\n") }, op.op,
    op.where ? make("div", { class: "tpunb-where" }, op.where) : null),
    make("td", {}, make("span", { class: "tpunb-bar", "aria-hidden": "true", style: `width:${(36 * op.share) / most}px` }),
      share(op.share)),
    make("td", {}, digits(op.self_ms)), make("td", {}, number(op.count)));
  return table(`Top operations, ${side}`, ["Operation", "% of self time", "Self (ms)", "Calls"], ops.map(row), "tpunb-ops");
}

// Keep a control where it is on the screen while it changes the height of what is above it; returns how to end that.
function steady(control, around) {
  let top = null, own = false; // whether the next event of a scroll is of this function
  const free = () => { top = null; };
  const keep = () => {
    if (top === null || document.activeElement !== control) return;
    const by = control.getBoundingClientRect().top - top, node = scroller(control), before = node.scrollTop;
    if (Math.abs(by) >= 1) node.scrollBy(0, by);
    own = own || node.scrollTop !== before;
  };
  const here = () => { keep(); top = control.getBoundingClientRect().top; };
  const scrolled = () => { if (own) own = false; else free(); };
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
