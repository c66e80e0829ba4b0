// Shared by all widgets. No network: Vega comes from the kernel, once for each page.

const page = (globalThis.__tpunb ??= { vega: null, asked: 0, next: 0 });
const AGAIN_MS = 10_000; // before another kernel is asked for Vega
const A_DAY = 86_400; // seconds: a busy kernel answers after its cell

// An element. Strings are text, never markup: names in a profile are not trusted.
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  // Notebook 7 takes arrows and Enter before a control gets them, except where the control itself opts out
  if (["button", "input", "select", "summary"].includes(tag)) element.setAttribute("data-lm-suppress-shortcuts", "");
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// Ask the kernel: the answer's content and buffers, or an Error with its message.
function ask(model, question, content = {}, seconds = 120) {
  const id = `${Date.now()}-${page.next++}`;
  return new Promise((resolve, reject) => {
    const stop = (then, value) => {
      clearTimeout(timer);
      model.off("msg:custom", receive);
      then(value);
    };
    const receive = (reply, buffers) => {
      if (reply?.answer !== id) return;
      if (reply.error) stop(reject, new Error(reply.error));
      else stop(resolve, { ...reply, buffers: buffers ?? [] });
    };
    const timer = setTimeout(() => stop(reject, new Error("the kernel does not answer")), seconds * 1000);
    model.on("msg:custom", receive);
    model.send({ ask: question, id, with: content });
  });
}

function vega(model) {
  if (globalThis.tpunbVega) return Promise.resolve(globalThis.tpunbVega);
  const now = Date.now();
  if (!page.vega || now - page.asked > AGAIN_MS) { // its kernel may be gone or busy: ask another
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

// Columns from the kernel as rows for Vega; numbers too large for JSON are text.
function rows(columns) {
  const names = Object.keys(columns);
  const all = new Array(columns[names[0]]?.length ?? 0);
  for (let i = 0; i < all.length; i++) {
    const row = (all[i] = {});
    for (const name of names) row[name] = columns[name][i];
  }
  return all;
}

// A chart: drawn once for a spec, then only its rows and signals change, so that nothing flickers.
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
    this.view = null; // of another spec: rows and signals wait for the new one
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
    if (!this.spec || wide < 50) return; // hidden; drawn when it is shown
    const { puts, spec: wanted } = this;
    let spec = fitted(structuredClone(wanted), wide);
    this.ink = getComputedStyle(this.host).color;
    if (this.canvas) spec = JSON.parse(JSON.stringify(spec).replaceAll("currentColor", this.ink)); // a canvas has no currentColor
    spec.datasets = { ...spec.datasets, ...Object.fromEntries(Object.entries(this.tables).map(([k, v]) => [k, rows(v)])) };
    for (const param of spec.params ?? []) if (param.name in this.signals) param.value = this.signals[param.name];
    const place = make("div");
    place.style.visibility = "hidden"; // the old chart stays until the new one is complete
    place.style.position = "absolute";
    this.host.append(place);
    const embedded = await vegaEmbed(place, spec, { actions: false, renderer: this.canvas ? "canvas" : "svg" });
    if (wanted !== this.spec) { // replaced meanwhile
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
    if (puts !== this.puts) this.put(this.tables, this.signals); // they came during the drawing
  }

  // Redraw a canvas once the text around it has another colour; style sheets load with a delay.
  recolour() {
    this.timers = [0, 200, 600, 1500, 4000].map((wait) =>
      setTimeout(() => { if (this.canvas && this.spec && getComputedStyle(this.host).color !== this.ink) this.draw(); }, wait));
  }

  // New rows and values of signals; the others stay.
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

  // A reason in place of the chart.
  none(reason) {
    this.spec = this.view = null;
    this.host.replaceChildren(make("p", { class: "tpunb-hint" }, reason));
  }

  // The plot's left edge in the host and its width, in points.
  plot() {
    const frame = this.host.querySelector("g.role-scope path.background") ?? this.host.querySelector("path.background");
    if (!frame) return null;
    const [plot, host] = [frame.getBoundingClientRect(), this.host.getBoundingClientRect()];
    return { left: plot.left - host.left, width: plot.width };
  }

  end() {
    this.spec = null; // cancels a drawing in progress
    for (const timer of this.timers) clearTimeout(timer);
    this.watch.disconnect();
    this.embedded?.finalize();
  }
}

// A spec as wide as its host: each plot, with room for the axis and the text beside it.
function fitted(spec, wide) {
  const room = spec.usermeta?.room ?? 76;
  for (const part of [spec, ...(spec.vconcat ?? [])])
    if (typeof part.width === "number") part.width = Math.max(120, Math.min(part.usermeta?.most ?? 1400, wide - room));
  return spec;
}

// Call when the page's theme changes.
function onTheme(call) {
  const watch = new MutationObserver(call);
  for (const element of [document.body, document.documentElement])
    watch.observe(element, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-theme", "theme", "class"] });
  const dark = matchMedia("(prefers-color-scheme: dark)"); // for a page outside a notebook
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
  } catch { // an insecure page has no clipboard
    const field = make("textarea", { style: "position:fixed;opacity:0" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw new Error("the browser does not let this page copy: the line is shown beside the button");
  }
}
