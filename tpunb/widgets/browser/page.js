// What every widget of tpunb does in the page. No network: Vega comes from the kernel, once a page.

const page = (globalThis.__tpunb ??= { vega: null, asked: 0, next: 0 });
const AGAIN_MS = 10_000; // after which another kernel is asked for Vega
const A_DAY = 86_400; // seconds: a kernel that runs a cell answers when that has ended

// An element. Children that are no elements are text, never markup: names in a profile are not trusted.
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  // Notebook 7 takes arrows and Enter for itself before a control hears them, unless the very control says no
  if (["button", "input", "select", "summary"].includes(tag)) element.setAttribute("data-lm-suppress-shortcuts", "");
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// Ask the kernel; the answer's content and buffers, or an Error in its words.
function ask(model, what, content = {}, seconds = 120) {
  const id = `${Date.now()}-${page.next++}`;
  return new Promise((resolve, reject) => {
    const stop = (then, value) => {
      clearTimeout(timer);
      model.off("msg:custom", heard);
      then(value);
    };
    const heard = (reply, buffers) => {
      if (reply?.answer !== id) return;
      if (reply.error) stop(reject, new Error(reply.error));
      else stop(resolve, { ...reply, buffers: buffers ?? [] });
    };
    const timer = setTimeout(() => stop(reject, new Error("the kernel does not answer")), seconds * 1000);
    model.on("msg:custom", heard);
    model.send({ ask: what, id, with: content });
  });
}

function vega(model) {
  if (globalThis.tpunbVega) return Promise.resolve(globalThis.tpunbVega);
  const now = Date.now();
  if (!page.vega || now - page.asked > AGAIN_MS) { // its kernel may be gone or busy: another's is asked then
    page.asked = now;
    const mine = ask(model, "vega", {}, A_DAY).then(async ({ buffers }) => {
      if (!globalThis.tpunbVega) {
        const url = URL.createObjectURL(new Blob([buffers[0]], { type: "text/javascript" }));
        try { await import(url); } finally { URL.revokeObjectURL(url); }
      }
      return globalThis.tpunbVega;
    });
    page.vega = page.vega ? Promise.any([page.vega, mine]) : mine;
    page.vega.catch(() => { page.vega = null; });
  }
  return page.vega;
}

// Columns, as the kernel sends them, to the rows that Vega takes; numbers too large for JSON's readers are text.
function rows(columns) {
  const names = Object.keys(columns);
  const all = new Array(columns[names[0]]?.length ?? 0);
  for (let i = 0; i < all.length; i++) {
    const row = (all[i] = {});
    for (const name of names) row[name] = columns[name][i];
  }
  return all;
}

// A chart in the page: drawn once for a spec, then only its rows and signals change, so nothing flickers.
class Chart {
  constructor(model, label) {
    this.model = model;
    this.host = make("div", { class: "tpunb-chart", role: "figure", "aria-label": label });
    this.tables = {};
    this.signals = {};
    this.wide = 0;
    this.puts = 0;
    this.timers = [];
    this.turn = Promise.resolve();
    this.watch = new ResizeObserver(() => {
      const wide = this.host.clientWidth;
      if (this.spec && wide > 50 && Math.abs(wide - this.wide) > 8) this.draw();
    });
    this.watch.observe(this.host);
  }

  show(spec, tables = {}, signals = {}, { drawn = () => {}, canvas = false } = {}) {
    Object.assign(this, { spec, drawn, canvas });
    this.view = null; // what is still to be seen is of another spec: rows and signals wait for the new one
    this.tables = tables;
    this.signals = signals;
    this.host.setAttribute("aria-label", spec.description ?? "");
    return this.draw();
  }

  draw() {
    this.turn = this.turn.then(() => this.embed()).catch((error) => this.failed?.(error));
    return this.turn;
  }

  async embed() {
    const { vegaEmbed } = await vega(this.model);
    const wide = this.host.clientWidth;
    if (!this.spec || wide < 50) return; // out of sight; drawn when it comes in
    const { puts, spec: own } = this;
    let spec = fitted(structuredClone(own), wide);
    this.ink = getComputedStyle(this.host).color;
    if (this.canvas) spec = JSON.parse(JSON.stringify(spec).replaceAll("currentColor", this.ink)); // it knows no other
    spec.datasets = { ...spec.datasets, ...Object.fromEntries(Object.entries(this.tables).map(([k, v]) => [k, rows(v)])) };
    for (const param of spec.params ?? []) if (param.name in this.signals) param.value = this.signals[param.name];
    const place = make("div");
    place.style.visibility = "hidden"; // the old picture stays until the new one is whole
    place.style.position = "absolute";
    this.host.append(place);
    const embedded = await vegaEmbed(place, spec, { actions: false, renderer: this.canvas ? "canvas" : "svg" });
    if (own !== this.spec) { // another chart is wanted by now
      embedded.finalize();
      place.remove();
      return;
    }
    this.embedded?.finalize();
    this.wide = wide;
    this.embedded = embedded;
    place.style.visibility = place.style.position = "";
    this.host.replaceChildren(place);
    this.view = embedded.view;
    this.drawn(this.view);
    if (puts !== this.puts) this.put(this.tables, this.signals); // they came while it was drawn
  }

  // Draw a canvas anew once the text around it has another colour; style sheets come when they come.
  recolour() {
    this.timers = [0, 200, 600, 1500, 4000].map((wait) =>
      setTimeout(() => { if (this.canvas && this.spec && getComputedStyle(this.host).color !== this.ink) this.draw(); }, wait));
  }

  // New rows, new values of signals, or both; what is not named stays.
  put(tables, signals = {}) {
    Object.assign(this.tables, tables);
    Object.assign(this.signals, signals);
    this.puts += 1;
    const { view } = this;
    if (!view) return null;
    for (const [name, columns] of Object.entries(tables))
      view.change(name, view.changeset().remove(() => true).insert(rows(columns)));
    for (const [name, value] of Object.entries(signals)) view.signal(name, value);
    return view.runAsync();
  }

  // Nothing to draw, and why.
  none(why) {
    this.spec = this.view = null;
    this.host.replaceChildren(make("p", { class: "tpunb-hint" }, why));
  }

  // Where the plot lies in the host: its left edge and its width, in points.
  plot() {
    const frame = this.host.querySelector("g.role-scope path.background") ?? this.host.querySelector("path.background");
    if (!frame) return null;
    const [own, whole] = [frame.getBoundingClientRect(), this.host.getBoundingClientRect()];
    return { left: own.left - whole.left, width: own.width };
  }

  end() {
    this.spec = null; // a drawing that is under way is not wanted any more
    for (const timer of this.timers) clearTimeout(timer);
    this.watch.disconnect();
    this.embedded?.finalize();
  }
}

// A spec as wide as its place: every plot in it, with room left for the axis and what stands beside.
function fitted(spec, wide) {
  const room = spec.usermeta?.room ?? 76;
  for (const part of [spec, ...(spec.vconcat ?? [])])
    if (typeof part.width === "number") part.width = Math.max(120, Math.min(part.usermeta?.most ?? 1400, wide - room));
  return spec;
}

// Whether the page is dark, and a call when that changes.
function onTheme(call) {
  const watch = new MutationObserver(call);
  for (const element of [document.body, document.documentElement])
    watch.observe(element, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-theme", "theme", "class"] });
  const dark = matchMedia("(prefers-color-scheme: dark)"); // what a page by itself follows
  dark.addEventListener("change", call);
  return () => {
    watch.disconnect();
    dark.removeEventListener("change", call);
  };
}

function download(name, type, bytes) {
  const url = URL.createObjectURL(new Blob([bytes], { type }));
  const link = make("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page that is not served securely has no clipboard
    const field = make("textarea", { style: "position:fixed;opacity:0" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw new Error("the browser does not let this page copy: the line is shown beside the button");
  }
}
