// The explorer's page: a control for each trait, and pictures of what the kernel has cut.

const WAIT_MS = 120; // of rest, before what takes longer is asked for
const BUSY_MS = 100; // of silence, before the page says that it waits

class Explorer extends Panel {
  constructor(model, root) {
    super(model, root);
    this.still = model.get("_details") !== undefined && model.get("_details") !== null; // a saved page: no kernel
    this.build();
    this.news = new Set();
    for (const part of ["_curve", "_scene", "_cut"]) this.on(`change:${part}`, () => this.hear(part));
    for (const parameter of ["min_samples", "k", "threshold", "ops"]) this.on(`change:${parameter}`, () => this.back());
    this.on("change:phase", () => this.chosen());
    this.on("change:window", () => this.window());
    this.on("change:method", () => { this.select.value = this.get("method"); });
    this.on("change:error", () => this.complain(model.get("error")));
    this.undo.push(onTheme(() => { this.ribbon.recolour(); this.second?.ribbon.recolour(); }));
    this.start();
  }

  // What changes in one message is told in any order; it is shown in this one.
  hear(part) {
    if (!this.news.size) queueMicrotask(() => {
      const news = new Set(this.news);
      this.news.clear();
      if (news.has("_curve")) this.curve();
      if (news.has("_scene")) this.moved = true; // a new cut is beside it, or follows
      if (news.has("_cut")) this.cut();
    });
    this.news.add(part);
  }

  // Change a trait; the kernel's answer is a new cut.
  set(traits) {
    for (const [name, value] of Object.entries(traits)) this.model.set(name, value);
    this.complain("");
    this.model.save_changes();
    this.waiting();
  }

  // ---- what stands on the page

  build() {
    const frame = this.get("_frame");
    const id = (what) => `${this.name}-${what}`;
    this.title = make("h3", {}, frame.name || "Phases of the run");
    this.headline = make("p", { class: "tpunb-headline", role: "status" });
    this.busy = make("span", { class: "tpunb-busy", role: "status" });
    this.select = make("select", { id: id("method"), disabled: this.still,
      onchange: () => this.set({ method: this.select.value }) },
      frame.methods.map(({ word, title }) => make("option", { value: word }, title)));
    const head = make("header", {}, make("div", {}, this.title, this.headline),
      make("div", { class: "tpunb-pick" }, this.busy, make("label", { for: id("method") }, "Method"), this.select));
    const lines = frame.lines.map((line) => make("p", { class: "tpunb-line" }, line));
    const warnings = frame.warnings.map((line) => make("p", { class: "tpunb-warning", role: "note" }, line));

    this.ribbon = this.chart("Ribbon of the run");
    const field = (what, label) => make("input", { type: "number", step: "any", id: id(what), "aria-label": label,
      disabled: this.still, oninput: () => { this.typing = true; }, onchange: () => this.typed() });
    this.from = field("from", "Show from (seconds)");
    this.until = field("until", "Show until (seconds)");
    this.all = button("Whole run", "Show the whole run again", () => this.set({ window: null }), { disabled: true });
    this.quietly = button("Clear selection", "Let no phase stand out", () => this.pick(null), { disabled: true });
    const zoom = make("div", { class: "tpunb-zoom" }, make("span", {}, "Shown, in seconds:"), this.from, "to", this.until,
      this.all, this.quietly,
      make("span", { class: "tpunb-hint" }, this.still ? "" : "drag over the ribbon to zoom, click a phase to select it"));

    this.graph = this.chart("Curve of the method");
    this.slider = make("input", { type: "range", id: id("slider"), class: "tpunb-slider", disabled: this.still,
      oninput: () => this.slid() });
    this.output = make("output", { for: id("slider"), "aria-live": "off" }); // the slider says it
    this.knob = make("label", { for: id("slider") });
    this.sliding = make("div", {}, make("div", { class: "tpunb-rail" }, this.slider),
      make("div", { class: "tpunb-told" }, this.knob, this.output));
    this.numbers = make("details", { ontoggle: () => this.tabulate() },
      make("summary", {}, "The curve as a table"), make("div"));
    this.runs = make("details", { ontoggle: () => this.listRuns() },
      make("summary", {}, "The ribbon as a table"), make("div"));
    const left = make("section", { class: "tpunb-card", "aria-label": "Method and its curve" },
      make("h4", {}, "How it is cut"), this.graph.host, this.sliding, this.numbers);

    this.shares = this.chart("Coverage");
    this.top = make("p", { class: "tpunb-top" });
    this.table = make("table", { class: "tpunb-phases", "aria-label": "Phases, longest first" });
    const right = make("section", { class: "tpunb-card", "aria-label": "Coverage and phases" },
      make("h4", {}, "Coverage"), this.top, this.shares.host, make("div", { class: "tpunb-scroll" }, this.table));
    this.about = new PhaseFacts(this);

    this.second = frame.second ? new SecondRun(this) : null;
    this.buttons = new Buttons(this);
    this.root.replaceChildren(make("div", { class: "tpunb-explorer", role: "region",
      onkeydown: (event) => event.stopPropagation(), // the notebook's own keys: its arrows fold headings
      "aria-label": `Explorer of phases${frame.name ? `: ${frame.name}` : ""}` },
      head, ...warnings, ...lines, this.alert, this.ribbon.host, zoom, this.runs,
      make("div", { class: "tpunb-two" }, left, right), this.about.host, this.second?.host ?? null, this.buttons.host));
  }

  chart(label) {
    const chart = new Chart(this.model, label);
    chart.failed = (error) => this.complain(`a chart could not be drawn: ${error.message}`);
    this.undo.push(() => chart.end());
    return chart;
  }

  start() {
    this.select.value = this.get("method");
    this.window();
    this.quietly.disabled = this.get("phase") === null;
    this.scene();
    this.cut(true);
    this.draw();
    this.greet();
  }

  draw() {
    this.ribbon.host.replaceChildren(sketched(this.get("_frame"), this.get("_scene").edges, this.steps().ribbon));
    const frame = this.get("_frame"), cut = this.get("_cut");
    const [low, high] = this.get("_scene").edges;
    this.ribbon.show(frame.ribbon, { ...this.steps(), ...this.get("_scene").tables },
      { low, high, chosen: this.get("phase") }, { canvas: true, drawn: (view) => this.listen(view) });
    this.shares.show(frame.coverage, { phases: this.covered() },
      { chosen: this.get("phase"), top3: 100 * cut.top3 }, { drawn: (view) => this.clickable(view) });
    this.curve();
  }

  // ---- the ribbon

  steps() { return unpacked(JSON.parse(this.get("_cut").tables), this.get("_scene"), this.get("_frame").layout); }

  // A stretch drawn over the ribbon is what it shows next; a click picks the phase under it.
  listen(view) {
    let drawn = null;
    this.ended?.();
    this.clickable(view, () => drawn === null);
    if (this.still) return;
    view.addSignalListener("brush_x", (_, value) => { drawn = Math.abs(value[1] - value[0]) > 4 ? value : drawn; });
    const end = async () => {
      await view.runAsync();
      if (!drawn) return;
      const [low, high] = drawn.map((x) => view.scale("x").invert(x)).sort((a, b) => a - b);
      setTimeout(() => { drawn = null; }); // after the click that ends it
      view.signal("brush_x", [0, 0]).runAsync();
      this.set({ window: [low, high] });
    };
    window.addEventListener("pointerup", end);
    this.ended = () => window.removeEventListener("pointerup", end);
    view.addEventListener("dblclick", () => this.set({ window: null }));
  }

  clickable(view, meant = () => true) {
    view.addEventListener("click", (_, item) => {
      const phase = item?.datum?.phase;
      if (meant() && phase !== undefined && phase !== null) this.pick(phase === this.get("phase") ? null : phase);
    });
  }

  async listRuns() {
    if (!this.runs.open) return;
    const turn = (this.listing = (this.listing ?? 0) + 1);
    this.waiting();
    try {
      const table = this.still ? this.get("_runs") : (await ask(this.model, "runs")).table;
      if (turn === this.listing) this.runs.lastChild.replaceChildren(tabled(table, "Runs of steps of one phase"));
    } catch (error) { this.complain(error.message); }
    this.arrived();
  }

  // Both ends are sent together, once they make a window.
  typed() {
    this.typing = false;
    const [low, high] = [this.from, this.until].map(({ value }) => Number(value));
    if (this.from.value === "" || this.until.value === "") this.scene(); // no number: as it was
    else if (low < high) this.set({ window: [low, high] });
    else this.complain(`The window must be [from, to] in seconds, from before to. Got [${low}, ${high}] instead.`);
  }

  window() {
    this.all.disabled = this.get("window") === null;
  }

  // What the ribbon shows: new rows, and where they begin and end if that has changed.
  scene() {
    const { edges: [low, high], tables } = this.get("_scene");
    if (!this.typing) [this.from.value, this.until.value] = [exact(low), exact(high)];
    const [more, ends] = this.moved ? [tables, { low, high }] : [{}, {}];
    this.moved = false;
    return this.ribbon.put({ ...this.steps(), ...more }, ends);
  }

  // ---- the method, its curve and its slider

  curve() {
    const { spec, knob, table } = this.get("_curve");
    this.sliding.hidden = !knob;
    this.numbers.hidden = !table;
    if (knob) {
      Object.assign(this.slider, { min: knob.least, max: knob.most, step: knob.step });
      this.slider.value = this.get(knob.parameter);
      this.knob.textContent = knob.label;
    }
    this.tell();
    this.tabulate();
    if (spec) this.graph.show(spec, {}, knob ? { at: this.get(knob.parameter) } : {}, { drawn: () => this.align() });
    else this.graph.none("This method has no curve.");
  }

  // The slider's thumb goes along the axis of the curve.
  align() {
    const plot = this.graph.plot();
    if (!plot) return;
    const thumb = 16;
    this.slider.style.marginLeft = `${plot.left - thumb / 2}px`;
    this.slider.style.width = `${plot.width + thumb}px`;
  }

  slid() {
    const { knob, method } = this.get("_curve");
    const at = Number(this.slider.value);
    this.graph.put({}, { at }); // the rule follows the thumb, whatever the kernel does meanwhile
    this.set({ [knob.parameter]: at, method });
    this.tell();
  }

  // Set in the kernel, or refused there: the thumb goes where the method is.
  back() {
    const { knob } = this.get("_curve");
    const at = knob && this.get(knob.parameter);
    if (!knob || at === null || Number(this.slider.value) === at) return;
    this.slider.value = at;
    this.graph.put({}, { at });
    this.tell();
  }

  tell() {
    const { knob } = this.get("_curve");
    if (!knob) return;
    this.output.textContent = exact(this.get(knob.parameter)); // which may lie beyond the slider's ends
    this.slider.setAttribute("aria-valuetext", `${knob.label} ${this.output.textContent}`);
  }

  tabulate() {
    const { table } = this.get("_curve");
    if (table && this.numbers.open) this.numbers.lastChild.replaceChildren(tabled(table, "The curve"));
  }

  // ---- the phases

  cut(first = false) {
    const cut = this.get("_cut");
    this.arrived();
    this.headline.textContent = cut.headline;
    this.buttons.code.textContent = cut.code;
    if (first) this.summed();
    else Promise.resolve(this.scene()).then(() => this.follow()); // the ribbon is what the hand follows
  }

  // What stands below the ribbon is drawn once that is on the screen: of several new cuts, the newest.
  follow() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.below);
    this.frame = requestAnimationFrame(() => { this.below = setTimeout(() => this.summed()); });
  }

  // Coverage and phases of the newest cut.
  summed() {
    const cut = this.get("_cut");
    this.shares.put({ phases: this.covered() }, { top3: 100 * cut.top3 });
    const where = cut.phases.length > 3 ? " in the 3 longest" : cut.phases.length > 1 ? " in them all" : " in the one phase";
    this.top.replaceChildren(make("strong", {}, `${percent(cut.top3)} of the time`), where, this.alike ??= make("span"));
    this.alike.setAttribute("aria-busy", "true");
    this.listPhases();
    this.rest();
  }

  covered() {
    const phases = this.get("_cut").phases;
    const column = (call) => phases.map(call);
    return { name: column((p) => p.name), colour: column((p) => p.colour), phase: column((p) => p.phase),
      share: column((p) => 100 * p.share), until: column((p) => 100 * p.until) };
  }

  listPhases() {
    const { number: cut, phases, rest } = this.get("_cut");
    const every = this.every?.cut === cut ? this.every.phases : null; // asked for, of this very cut
    const shown = every ?? phases;
    const more = every || this.still ? null : () => this.listAll(cut);
    const held = this.table.contains(document.activeElement) ? document.activeElement.value : null;
    this.table.replaceChildren(...listed(shown, phases.length + rest - shown.length, this.get("phase"), this.name,
      (phase) => this.pick(phase), more));
    if (held !== null) (this.table.querySelector(`input[value="${held}"]`) ?? this.table.querySelector("input"))?.focus();
  }

  async listAll(cut) {
    this.waiting();
    try {
      this.every = { cut, ...(await ask(this.model, "phases")) };
      this.listPhases();
    } catch (error) { this.complain(error.message); }
    this.arrived();
  }

  pick(phase) {
    this.model.set("phase", phase);
    if (!this.still) this.model.save_changes();
  }

  chosen() {
    const phase = this.get("phase");
    this.quietly.disabled = phase === null;
    this.ribbon.put({}, { chosen: phase });
    this.shares.put({}, { chosen: phase });
    this.second?.choose(phase);
    this.listPhases();
    this.buttons.say(phase === null ? "no phase selected" : `phase ${phase} selected`);
    this.rest();
  }

  // What takes longer is asked for when the hand rests.
  rest() {
    clearTimeout(this.resting);
    this.about.host.setAttribute("aria-busy", "true");
    this.resting = setTimeout(() => this.about.ask(), this.still ? 0 : WAIT_MS);
  }

  // How far the coverage can be trusted.
  trust(homogeneity) {
    this.alike.removeAttribute("aria-busy");
    this.alike.textContent = `, homogeneity ${homogeneity.toFixed(2)} (1: the steps of a phase are all alike)`;
  }

  // ---- how it stands

  waiting(after = BUSY_MS) {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => { this.busy.textContent = "working …"; }, after);
  }

  // An answer came; the hand may be further by now than what it answers.
  arrived() {
    const { knob } = this.get("_curve");
    this.rested();
    if (knob && this.get("_cut").at !== this.get(knob.parameter)) this.waiting();
  }

  rested() {
    clearTimeout(this.silence);
    this.busy.textContent = "";
  }

  complain(text) {
    super.complain(text);
    if (text) this.rested();
  }

  end() {
    for (const timer of [this.resting, this.silence, this.below]) clearTimeout(timer);
    cancelAnimationFrame(this.frame);
    this.buttons.end();
    this.ended?.();
    super.end();
  }
}

function render({ model, el }) {
  const explorer = new Explorer(model, el);
  return () => explorer.end();
}

export default { render };
