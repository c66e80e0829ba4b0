// What the panels show, made of what the kernel says: no state, no kernel.

const percent = (part) => (part === null || part === undefined ? "–" : `${(100 * part).toFixed(1)} %`);
const number = (value) => value.toLocaleString("en-US");
// Digits, without what binary fractions add to them.
const exact = (value) => String(Math.round(value * 1e6) / 1e6);

const button = (text, label, call, extra = {}) =>
  make("button", { type: "button", class: "tpunb-button", title: label, onclick: call, ...extra }, text);

// The rows of the ribbon as Vega takes them, from the few letters in which they came.
function unpacked({ ribbon, ranks, numbers }, { edges: [low, high] }, { slices, lane, top, height }) {
  const many = (ribbon.step ?? ribbon.after).length;
  const digits = (text) => Array.from(text.length === many ? text : text.repeat(many), (digit) => parseInt(digit, 36));
  const rank = digits(ribbon.rank);
  const column = (call) => rank.map((_, i) => call(i));
  const drawn = { phase: column((i) => ranks.phase[rank[i]]), shade: column((i) => ranks.shade[rank[i]]),
    seen: digits(ribbon.seen) };
  if (ribbon.step !== undefined) {
    const { start, end, step } = ribbon;
    const y = ribbon.lane.map((at) => lane * at + top);
    return { numbers, ribbon: { ...drawn, start, end, step, y, y2: y.map((at) => at + height) } };
  }
  const width = (high - low) / slices;
  let slice = 0, reached = 0;
  const at = ribbon.after.map((more) => (slice += more));
  const until = ribbon.part.map((part, i) => (reached = ribbon.after[i] ? part : reached + part));
  const y = (call) => column((i) => lane * Math.floor(at[i] / slices) + top + (height * call(i)) / 100);
  const start = at.map((one) => low + (one % slices) * width);
  return { numbers, ribbon: { ...drawn, start, end: start.map((one) => one + width), part: ribbon.part,
    y: y((i) => until[i] - ribbon.part[i]), y2: y((i) => until[i]) } };
}

// The ribbon without Vega: until that is there, and where no kernel can send it.
function sketched({ ribbon, layout }, [low, high], { start, end, y, y2, shade }) {
  const across = (time) => ((1000 * (time - low)) / (high - low)).toFixed(1);
  const paths = layout.shades.map(() => []);
  start.forEach((from, i) => paths[shade[i]].push(`M${across(from)} ${y[i]}H${across(end[i])}V${y2[i]}H${across(from)}Z`));
  const look = { viewBox: `0 0 1000 ${ribbon.height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": ribbon.description, style: `width:calc(100% - 24px);height:${ribbon.height}px` };
  return make("svg", look, paths.map((parts, i) => make("path", { d: parts.join(""), fill: layout.shades[i] })));
}

const header = (names) => make("thead", {}, make("tr", {}, names.map((name) => make("th", { scope: "col" }, name))));

const table = (label, names, body, kind = "") =>
  make("table", { class: `tpunb-phases ${kind}`, "aria-label": label }, header(names), make("tbody", {}, body));

// Columns as a table of that name.
function tabled(columns, label) {
  const names = Object.keys(columns);
  const cell = (value) => make("td", {}, value === true ? "yes" : value === false || value === null ? "–" : String(value));
  return table(label, names.map((name) => name.replaceAll("_", " ")),
    rows(columns).map((row) => make("tr", {}, names.map((name) => cell(row[name])))));
}

// The figures of devices that any row has; without a device there are none.
const DEVICES = { idle: "Idle", mxu: "MXU" };
const ofDevices = (all, none) => Object.keys(DEVICES).filter((name) => all.some((row) => row[name] !== none));

// The head and the body of the phases' table; a phase is picked by its radio button. What is left out is counted, or
// listed by a click where it can be asked for.
function listed(phases, rest, chosen, name, pick, more) {
  const known = ofDevices(phases, null);
  const heads = ["Phase", "Marks", "Steps", "Share", "Cumulative", "Step (ms)", "Spread",
    ...known.map((name) => DEVICES[name])];
  const row = (p) => make("tr", { class: p.phase === chosen ? "tpunb-chosen" : null },
    make("th", { scope: "row" }, make("label", {},
      make("input", { type: "radio", name: `${name}-phase`, value: p.phase, checked: p.phase === chosen,
        onchange: () => pick(p.phase) }),
      make("span", { class: "tpunb-chip", "aria-hidden": "true", style: `background:${p.colour}` }), p.name)),
    [p.marks || "–", number(p.steps), percent(p.share), percent(p.until),
      p.step_ms.toLocaleString("en-US", { maximumSignificantDigits: 4 }), percent(p.spread), ...known.map((name) => percent(p[name])),
    ].map((text) => make("td", {}, text)));
  return [header(heads), make("tbody", {}, phases.map(row),
    rest ? make("tr", {}, make("td", { colspan: heads.length }, more
      ? make("button", { type: "button", class: "tpunb-button", onclick: more }, `Show ${number(rest)} more`)
      : `${number(rest)} more`)) : null)];
}

function operations(ops, side) {
  const most = Math.max(...ops.map(({ share }) => share), 1e-9);
  const row = ({ op, share, self_ms, count }) => make("tr", {}, make("th", { scope: "row", title: op }, op),
    make("td", {}, make("span", { class: "tpunb-bar", "aria-hidden": "true", style: `width:${(36 * share) / most}px` }),
      percent(share)),
    make("td", {}, self_ms.toLocaleString("en-US", { maximumSignificantDigits: 4 })), make("td", {}, number(count)));
  return table(`Top operations, ${side}`, ["Operation", "Self time", "ms", "Calls"], ops.map(row), "tpunb-ops");
}
