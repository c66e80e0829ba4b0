// The explorer's page: controls that set traits, and charts of what the kernel has grouped.

const WAIT_MS = 120; // without input, before the slower answers are asked for
const WHEEL_MS = 80; // without a turn of the wheel, before the timeline is zoomed
const BUSY_MS = 100; // without an answer, before the page says "working"

class Explorer extends Panel {
  constructor(model, root) {
    super(model, root);
    this.still = Boolean(model.get("_details")); // a saved page has no kernel
    this.build();
    this.changed = new Set();
    for (const part of ["_curve", "_axis", "_clusters"]) this.on(`change:${part}`, () => this.update(part));
    this.on("change:clustering", () => this.place());
    this.on("change:phase", () => this.selected());
    this.on("change:time_range", () => this.zoomed());
    this.on("change:error", () => this.complain(model.get("error")));
    this.undo.push(onTheme(() => { this.timeline.recolour(); this.second?.timeline.recolour(); }));
    this.undo.push(steady(this.slider, this.root));
    this.start();
  }

  // One message changes several traits in any order; they are shown together, in this order.
  update(part) {
    if (!this.changed.size) queueMicrotask(() => {
      const changed = new Set(this.changed);
      this.changed.clear();
      if (changed.has("_curve")) this.drawCurve();
      if (changed.has("_axis")) this.moved = true; // its phases are in this message or the next
      if (changed.has("_clusters")) this.regrouped();
    });
    this.changed.add(part);
  }

  // Set a trait; the kernel answers with new phases.
  set(name, value) {
    this.model.set(name, value);
    this.complain("");
    this.model.save_changes();
    this.waiting();
  }

  // ---- the page

  build() {
    const frame = this.get("_frame");
    const id = (part) => `${this.name}-${part}`;
    this.headline = make("p", { class: frame.answer ? "tpunb-quiet" : "tpunb-answer", role: "status" });
    this.busy = make("span", { class: "tpunb-busy", role: "status" });
    this.select = make("select", { id: id("method"), disabled: this.still,
      onchange: () => this.set("clustering", { method: this.select.value }) },
      frame.methods.map(({ name, title }) => make("option", { value: name }, title)));
    const pick = make("div", { class: "tpunb-pick" }, make("label", { for: id("method") }, "Method"), this.select, this.busy);
    const lines = frame.lines.map((line) => make("p", { class: "tpunb-line" }, line));
    const warnings = frame.warnings.map((line) => make("p", { class: "tpunb-warning", role: "note" }, line));

    this.rates = make("div", { class: "tpunb-rates-place" });
    this.timeline = this.chart("Timeline");
    this.hosts = frame.hosts ? this.chart("Hosts") : null;
    this.accounts = frame.accounts ? new Accounts(this) : null;
    const field = (part, label) => make("input", { type: "number", step: "any", id: id(part), "aria-label": label,
      disabled: this.still, oninput: () => { this.typing = true; }, onchange: () => this.typed() });
    this.from = field("from", "From (seconds)");
    this.until = field("until", "To (seconds)");
    this.whole = button("Whole run", "Show the whole run", () => this.set("time_range", null), { disabled: true });
    this.clear = button("Clear selection", "Clear the selected phase", () => this.pick(null), { disabled: true });
    const zoom = make("div", { class: "tpunb-zoom" }, ...this.still ? [this.clear] : [
      make("span", {}, "Time range (s):"), this.from, "to", this.until, this.whole, this.clear,
      make("span", {}, "Turn the wheel or drag to zoom; click a phase, an account or a mark.")]);
    this.runs = make("details", { ontoggle: () => this.listRuns() }, make("summary", {}, "Timeline table"), make("div"));

    this.graph = this.chart("Sweep curve");
    this.slider = make("input", { type: "range", id: id("slider"), class: "tpunb-slider", disabled: this.still,
      oninput: () => this.slid() });
    this.output = make("output", { for: id("slider"), "aria-live": "off" }); // the slider announces its value
    this.label = make("label", { for: id("slider") });
    this.sliding = make("div", {}, make("div", { class: "tpunb-rail" }, this.slider),
      make("div", { class: "tpunb-value" }, this.label, this.output));
    this.numbers = make("details", { ontoggle: () => this.tabulate() }, make("summary", {}, "Curve table"), make("div"));
    this.top = make("p", { class: "tpunb-quiet" });
    this.explained = make("p", { class: "tpunb-quiet" });
    this.table = make("div", { class: "tpunb-scroll" });
    this.facts = new PhaseFacts(this);
    this.second = frame.second ? new SecondRun(this) : null;
    this.buttons = new Buttons(this);
    this.advice = make("div");
    const found = make("details", { class: "tpunb-method", open: !frame.folded && !this.still },
      make("summary", {}, make("h4", { "aria-level": 2 }, "How phases were found")), pick, this.explained,
      make("section", { "aria-label": "Clustering" }, this.graph.host, this.sliding, this.numbers));
    this.root.replaceChildren(make("div", { class: "tpunb-page tpunb-explorer", role: "region",
      onkeydown: (event) => event.stopPropagation(), // the notebook's own keys: its arrows fold headings
      "aria-label": `Explorer of phases${frame.name ? `: ${frame.name}` : ""}` },
      frame.pictures ? make("style", {}, `[data-tpunb="${frame.pictures}"]{display:none}`) : null,
      make("header", {}, make("h3", {}, frame.name || "Phases of the run"), frame.answer ? null : this.headline),
      this.alert, frame.answer ? built(frame.answer) : null, ...warnings, this.rates, this.accounts?.host ?? null,
      this.timeline.host, zoom, this.accounts?.details ?? null, this.runs, this.hosts?.host ?? null, this.advice,
      make("section", { "aria-label": "Coverage and phases" }, make("h4", { "aria-level": 2 }, "Phases"),
        make("div", { class: "tpunb-sizes" }, frame.answer ? this.headline : null, this.top),
        make("div", { class: "tpunb-two tpunb-shares" }, make("div", {}, this.table, this.facts.host), found)),
      this.second?.host ?? null,
      lines.length ? make("details", {}, make("summary", {}, make("h4", { "aria-level": 2 }, "How this was measured")), ...lines) : null,
      this.buttons.host));
  }

  advise(todo) { this.advice.replaceChildren(built(todo)); }

  // Once: phases change no rates.
  async rate() {
    if (this.rated) return;
    this.rated = true;
    const { rates } = this.still ? { rates: this.get("_rates") } : await ask(this.model, "rates");
    this.rates.replaceChildren(built(rates));
  }

  chart(label) {
    const chart = new Chart(this.model, label);
    chart.failed = (error) => this.complain(`a chart could not be drawn: ${error.message}`);
    this.undo.push(() => chart.end());
    return chart;
  }

  start() {
    const frame = this.get("_frame"), { edges: [low, high], tables } = this.get("_axis"), phase = this.get("phase");
    this.zoomed();
    this.clear.disabled = phase === null;
    this.move();
    this.regrouped(true);
    const steps = this.steps();
    this.timeline.host.replaceChildren(sketched(frame, [low, high], steps.timeline));
    this.timeline.show(frame.timeline, { ...steps, ...tables }, { low, high, chosen: phase },
      { canvas: true, drawn: (view) => this.listen(view) });
    this.drawCurve();
    this.hosts?.show(frame.hosts);
    this.accounts?.start();
    this.greet();
  }

  // ---- the timeline

  steps() {
    const { tables, number: current } = this.get("_clusters");
    const hints = this.hints?.current === current ? this.hints.phases : {};
    return unpacked(JSON.parse(tables), this.get("_axis"), this.get("_frame").layout, hints);
  }

  // Kind and top operation of each phase, for the pointer on the timeline.
  async hint() {
    const { number: current } = this.get("_clusters");
    if (this.hints?.current === current) return;
    const { phases } = this.still ? { phases: this.get("_hints") } : await ask(this.model, "hints");
    this.hints = { current, phases };
    if (current === this.get("_clusters").number) this.timeline.put(this.steps());
  }

  // The wheel zooms around the time below the pointer; out of the whole run, the page scrolls.
  wheeled(event, view) {
    const [first, last] = this.get("_frame").whole;
    const [low, high] = this.aim ?? this.get("_axis").edges;
    if (!event.deltaY || (event.deltaY > 0 && low <= first && high >= last)) return;
    event.preventDefault();
    const at = view.scale("x").invert(event.offsetX - view.origin()[0]);
    const by = 1.25 ** Math.sign(event.deltaY);
    this.aim = [Math.max(first, at - (at - low) * by), Math.min(last, at + (high - at) * by)];
    clearTimeout(this.wheeling);
    this.wheeling = setTimeout(() => {
      const [from, to] = this.aim;
      this.aim = null;
      this.set("time_range", from <= first && to >= last ? null : [from, to]);
    }, WHEEL_MS);
  }

  // A drag over the timeline zooms; a click selects the phase below it.
  listen(view) {
    let drawn = null;
    this.ended?.();
    this.clickable(view, () => drawn === null);
    if (this.still) return;
    view.addSignalListener("brush_x", (_, value) => { drawn = Math.abs(value[1] - value[0]) > 4 ? value : drawn; });
    const end = async () => {
      await view.runAsync();
      if (!drawn) return;
      const range = drawn.map((x) => view.scale("x").invert(x)).sort((a, b) => a - b);
      setTimeout(() => { drawn = null; }); // after the click that ends the drag
      view.signal("brush_x", [0, 0]).runAsync();
      this.set("time_range", range);
    };
    window.addEventListener("pointerup", end);
    this.ended = () => window.removeEventListener("pointerup", end);
    view.addEventListener("dblclick", () => this.set("time_range", null));
    const canvas = this.timeline.host.querySelector("canvas");
    canvas?.addEventListener("wheel", (event) => this.wheeled(event, view), { passive: false });
  }

  clickable(view, meant) {
    view.addEventListener("click", (_, item) => {
      const { phase = null, account } = item?.datum ?? {};
      if (meant() && account) this.accounts?.pick(account);
      else if (meant() && phase !== null) this.pick(phase === this.get("phase") ? null : phase);
    });
  }

  listRuns() {
    if (!this.runs.open) return null;
    const turn = (this.listing = (this.listing ?? 0) + 1);
    return this.during(async () => {
      const table = this.still ? this.get("_runs") : (await ask(this.model, "runs")).table;
      if (turn === this.listing) this.runs.lastChild.replaceChildren(drawn(table));
    });
  }

  // Both ends are sent together, once they are in order.
  typed() {
    this.typing = false;
    const [low, high] = [this.from, this.until].map(({ value }) => Number(value));
    if (this.from.value === "" || this.until.value === "") this.move(); // no number: restore it
    else if (low < high) this.set("time_range", [low, high]);
    else this.complain(`The time range must be [from, to] in seconds, from before to. Got [${low}, ${high}] instead.`);
  }

  zoomed() { this.whole.disabled = this.get("time_range") === null; }

  // New rows on the timeline, and new edges if those have changed.
  move() {
    const { edges: [low, high], tables } = this.get("_axis");
    if (!this.typing) [this.from.value, this.until.value] = [exact(low), exact(high)];
    const [more, ends] = this.moved ? [tables, { low, high }] : [{}, {}];
    this.moved = false;
    return this.timeline.put({ ...this.steps(), ...more }, ends);
  }

  // ---- the method, its curve and its slider

  // The slider's value in the trait; null while it is of another method than the curve.
  position() {
    const { slider, method } = this.get("_curve"), clustering = this.get("clustering");
    return slider && clustering.method === method ? clustering[slider.parameter] ?? null : null;
  }

  drawCurve() {
    const { spec, slider, table } = this.get("_curve");
    this.sliding.hidden = !slider;
    this.numbers.hidden = !table;
    if (slider) {
      Object.assign(this.slider, { min: slider.least, max: slider.most, step: slider.step });
      this.label.textContent = slider.label;
    }
    this.place();
    this.tabulate();
    if (spec) this.graph.show(spec, {}, slider ? { at: this.position() } : {}, { drawn: () => this.align() });
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
    const { slider, method } = this.get("_curve");
    this.set("clustering", { method, [slider.parameter]: Number(this.slider.value) });
  }

  // The list and the slider as the trait has them; the rule follows the thumb before the kernel answers.
  place() {
    const { slider } = this.get("_curve"), at = this.position();
    this.select.value = this.get("clustering").method;
    if (at === null) return;
    if (Number(this.slider.value) !== at) this.slider.value = at;
    if ("at" in this.graph.signals) this.graph.put({}, { at }); // else its chart is still to be drawn
    this.output.textContent = exact(at); // which may be beyond the slider's ends
    this.slider.setAttribute("aria-valuetext", `${slider.label} ${this.output.textContent}`);
  }

  tabulate() {
    const { table } = this.get("_curve");
    if (table && this.numbers.open) this.numbers.lastChild.replaceChildren(drawn(table));
  }

  // ---- the phases

  regrouped(first = false) {
    const { headline, code } = this.get("_clusters");
    this.arrived();
    this.headline.textContent = headline;
    this.buttons.code.textContent = code;
    if (first) this.summed();
    else Promise.resolve(this.move()).then(() => this.follow()); // the timeline first
  }

  // What is below the timeline is drawn once that is on the screen, for the newest phases only.
  follow() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.below);
    this.frame = requestAnimationFrame(() => { this.below = setTimeout(() => this.summed()); });
  }

  summed() {
    this.top.textContent = this.get("_clusters").top;
    this.explained.setAttribute("aria-busy", "true");
    this.listPhases();
    this.rest();
  }

  listPhases() {
    const { number: current, table, rest } = this.get("_clusters");
    const every = this.every?.current === current ? this.every.table : null; // asked for, of these very phases
    const more = every || this.still || !rest ? null
      : button(`Show ${number(rest)} more`, "List all phases", () => this.listAll(current));
    const focused = this.table.contains(document.activeElement) ? document.activeElement.value : null;
    const chosen = this.get("phase"), { host } = this.facts;
    const options = { chosen, group: `${this.name}-phase`, more, pick: (phase) => this.pick(phase), card: host };
    this.table.replaceChildren(drawn(every ?? table, options));
    if (!this.table.contains(host)) this.table.after(host); // of a phase without a row
    if (focused !== null) (this.table.querySelector(`input[value="${focused}"]`) ?? this.table.querySelector("input"))?.focus();
  }

  listAll(current) {
    return this.during(async () => {
      this.every = { current, ...(await ask(this.model, "phases")) };
      this.listPhases();
    });
  }

  pick(phase) {
    this.model.set("phase", phase);
    if (!this.still) this.model.save_changes();
  }

  selected() {
    const phase = this.get("phase");
    this.clear.disabled = phase === null;
    this.timeline.put({}, { chosen: phase });
    this.second?.choose(phase);
    this.listPhases();
    const { table } = this.get("_clusters"), name = table.rows[table.phases.indexOf(phase)]?.[0] ?? `phase ${phase}`;
    this.buttons.say(phase === null ? "no phase selected" : `${name} selected`);
    this.rest();
  }

  // Slower answers are asked for when the input rests.
  rest() {
    clearTimeout(this.resting);
    this.facts.host.setAttribute("aria-busy", "true");
    this.resting = setTimeout(() => this.facts.ask(), this.still ? 0 : WAIT_MS);
  }

  showExplained(text) {
    this.explained.removeAttribute("aria-busy");
    this.explained.textContent = text;
  }

  // ---- waiting

  // Run what asks the kernel; "working" meanwhile, and its error in the panel.
  async during(work, after = BUSY_MS) {
    this.waiting(after);
    try { await work(); } catch (error) { this.complain(error.message); }
    this.arrived();
  }

  waiting(after = BUSY_MS) {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => { this.busy.textContent = "working …"; }, after);
  }

  // An answer came; the slider may have moved since.
  arrived() {
    this.rested();
    if (this.position() !== this.get("_clusters").position) this.waiting();
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
    for (const timer of [this.resting, this.silence, this.below, this.wheeling]) clearTimeout(timer);
    cancelAnimationFrame(this.frame);
    this.buttons.end();
    this.ended?.();
    super.end();
  }
}

// The page while the kernel groups: the timeline in one colour.
class Waiting extends Panel {
  constructor(model, root) {
    super(model, root);
    const frame = this.get("_frame"), axis = this.get("_axis");
    const { timeline } = unpacked(JSON.parse(this.get("_clusters").tables), axis, frame.layout);
    const text = make("p", { class: "tpunb-answer", role: "status" }, frame.pending);
    this.on("change:error", () => { text.hidden = Boolean(this.get("error")); this.complain(this.get("error")); });
    root.replaceChildren(make("div", { class: "tpunb-page tpunb-explorer", role: "region", "aria-busy": "true",
      "aria-label": `Explorer of phases${frame.name ? `: ${frame.name}` : ""}` },
      make("style", {}, `[data-tpunb="${frame.pictures}"]{display:none}`),
      make("header", {}, make("h3", {}, frame.name || "Phases of the run"), text), this.alert,
      frame.accounts ? make("div", { class: "tpunb-soon" }) : null, // the wall time by account
      make("div", { class: "tpunb-chart" }, sketched(frame, axis.edges, timeline))));
  }
}

function render({ model, el }) {
  let shown;
  const show = () => {
    shown?.end();
    shown = new (model.get("_frame").pending ? Waiting : Explorer)(model, el);
  };
  model.on("change:_frame", show);
  show();
  return () => { model.off("change:_frame", show); shown.end(); };
}

export default { render };
