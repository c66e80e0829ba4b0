// The tuning panel's page: where trials start, the knobs, the trials as they arrive, and what to apply.

const TICK_MS = 500; // of the bar of time

class TuningPanel extends Panel {
  constructor(model, root) {
    super(model, root);
    this.build();
    this.on("change:_run", () => this.stands());
    this.on("change:_start", () => this.starts());
    this.on("change:error", () => this.complain(this.get("error")));
    for (const name of ["phase", "budget", "search"]) this.on(`change:${name}`, () => this.controls());
    this.starts();
    this.stands();
    this.complain(this.get("error"));
    this.greet();
  }

  set(name, value) {
    this.complain("");
    this.model.set(name, value);
    this.model.save_changes();
  }

  // ---- what stands on the page

  build() {
    const { job, folder, refusal } = this.get("_frame");
    this.headline = make("p", { class: "tpunb-headline", role: "status" });
    this.failed = make("p", { class: "tpunb-alert", role: "alert", hidden: true });
    this.notes = make("div");
    this.refused = make("section", { class: "tpunb-card tpunb-about", "aria-label": "Refused, with the reasons" });
    this.root.replaceChildren(make("div", { class: "tpunb-explorer tpunb-tuning", role: "region",
      onkeydown: (event) => event.stopPropagation(), // the notebook's own keys
      "aria-label": `Tuning of ${job}` },
      make("header", {}, make("div", {}, make("h3", {}, `Tuning of ${job}`), this.headline)),
      refusal ? make("p", { class: "tpunb-warning", role: "note" }, `Nothing can be tried: ${refusal}.`) : null,
      this.notes, this.alert, this.failed,
      make("div", { class: "tpunb-two" }, this.whence(), this.work(folder)),
      this.applied(), this.results(), this.parameters(), this.refused));
  }

  // The phase, its checkpoint, what bounds it.
  whence() {
    const { phases } = this.get("_frame");
    const option = ({ phase, name, share, steps }) =>
      make("option", { value: phase }, `${name}: ${percent(share)} of the time, ${number(steps)} steps`);
    this.phase = make("select", { id: `${this.name}-phase`, onchange: () => this.set("phase", Number(this.phase.value)) },
      phases.map(option));
    this.facts = make("dl");
    this.bounds = make("ul");
    this.bounded = make("div", {}, make("h5", {}, "What bounds it"), this.bounds);
    return make("section", { class: "tpunb-card", "aria-label": "Where trials start" },
      make("h4", {}, "Where trials start"),
      phases.length ? make("p", { class: "tpunb-pick" }, make("label", { for: this.phase.id }, "Phase"), this.phase) : null,
      this.facts, this.bounded);
  }

  // What is tried and for how long; the buttons; what there is to tell.
  work(folder) {
    const { searches } = this.get("_frame");
    const id = (what) => `${this.name}-${what}`;
    this.search = make("select", { id: id("search"), onchange: () => this.set("search", this.search.value) },
      searches.map((word) => make("option", { value: word }, word)));
    this.budget = make("input", { type: "number", id: id("budget"), min: 1, step: "any",
      onchange: () => this.spend(Number(this.budget.value)) });
    this.go = button("Run", "Try values in a thread of the kernel", () => this.asked("run"));
    this.halt = button("Stop", "End it after the trial that runs now", () => this.asked("stop"));
    this.use = button("Apply", "Show the lines that give the program these values", () => this.show(this.lines.hidden),
      { "aria-controls": id("lines") });
    this.bar = make("progress", { "aria-label": "Time spent of the budget", max: 1, value: 0 });
    this.clock = make("span", { class: "tpunb-hint" });
    this.said = make("ul", { "aria-label": "What it tells" });
    return make("section", { class: "tpunb-card", "aria-label": "The tuning" }, make("h4", {}, "The tuning"),
      make("p", { class: "tpunb-pick" }, make("label", { for: id("search") }, "Search"), this.search,
        make("label", { for: id("budget") }, "Budget (s)"), this.budget),
      make("p", { class: "tpunb-pick" }, this.go, this.halt, this.use,
        button("Freeze", "Put tables and a picture in the panel's place, which the notebook shows without a kernel",
          () => this.asked("freeze"))),
      make("p", { class: "tpunb-pick tpunb-time" }, this.bar, this.clock), this.said,
      make("p", { class: "tpunb-hint" }, "Trials are written to the folder ", make("code", {}, folder), "."));
  }

  parameters() {
    this.knobs = make("div", { class: "tpunb-scroll" });
    return make("section", { class: "tpunb-card tpunb-about", "aria-label": "Parameters of the pipeline" },
      make("h4", {}, "Parameters of the pipeline"), this.knobs);
  }

  results() {
    this.chart = new Chart(this.model, "Trials");
    this.chart.failed = (error) => this.complain(`the chart could not be drawn: ${error.message}`);
    this.undo.push(() => this.chart.end());
    this.trials = make("div", { class: "tpunb-scroll" });
    return make("div", { class: "tpunb-results" },
      make("section", { class: "tpunb-card", "aria-label": "Trials as they ran" }, make("h4", {}, "Trials"), this.chart.host),
      make("section", { class: "tpunb-card", "aria-label": "Trials as a table" }, make("h4", {}, "Trials as a table"),
        this.trials));
  }

  applied() {
    this.code = make("code", { class: "tpunb-code" });
    this.copying = make("span", { role: "status" });
    const copy = button("Copy", "Copy the lines", () => this.copy());
    this.lines = make("section", { class: "tpunb-card tpunb-about", id: `${this.name}-lines`, hidden: true,
      "aria-label": "Lines to paste" }, make("h4", {}, "Lines to paste"), make("pre", {}, this.code),
      make("p", { class: "tpunb-pick" }, copy, this.copying),
      make("p", { class: "tpunb-hint" }, "Or, without a change of the program: ", make("code", {}, "panel.apply(data)"),
        " gives its dataset with these values."));
    return this.lines;
  }

  // ---- what the kernel says

  starts() {
    const { facts, bounds } = this.get("_start");
    this.facts.replaceChildren(...facts.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)]));
    this.bounds.replaceChildren(...bounds.map((text) => make("li", {}, text)));
    this.bounded.hidden = !bounds.length;
    this.controls();
  }

  stands() {
    const { headline, said, notes, failed, chart, since } = this.get("_run");
    this.begun = since === null ? null : performance.now() / 1000 - since;
    if (this.headline.textContent !== headline) this.headline.textContent = headline;
    this.notes.replaceChildren(...notes.map((text) => make("p", { class: "tpunb-line", role: "note" }, text)));
    this.failed.textContent = failed;
    this.failed.hidden = !failed;
    this.said.replaceChildren(...said.map((text) => make("li", {}, text)));
    if (chart) this.chart.show(chart);
    else this.chart.none("Trials arrive here: how many times as fast each was as the best before it.");
    this.listKnobs();
    this.listTrials();
    this.listRefused();
    this.controls();
    this.tick();
  }

  listKnobs() {
    const { chosen } = this.get("_run");
    const row = ({ name, place, parameter, present, verdict, why }) =>
      make("tr", { class: name in chosen ? "tpunb-chosen" : null }, make("th", { scope: "row" }, place),
        [parameter, present, chosen[name] ?? "–", verdict, why].map((text, at) =>
          make("td", { class: at === 2 && name in chosen ? "tpunb-won" : null }, text)));
    const heads = ["Place", "Parameter", "Present", "Chosen", "Verdict", "Why"];
    this.knobs.replaceChildren(table("Parameters of the pipeline", heads, this.get("_frame").knobs.map(row), "tpunb-knobs"));
  }

  listTrials() {
    const row = (one) => make("tr", {}, make("th", { scope: "row" }, String(one.trial)),
      [one.values, one.verdict, one.step, one.ratio, one.output, one.spent].map((text) => make("td", {}, text)));
    const heads = ["Trial", "Values", "Verdict", "Step", "Times as fast", "Output", "Spent"];
    const { trials } = this.get("_run");
    this.trials.replaceChildren(trials.length ? table("Trials", heads, trials.map(row), "tpunb-trials")
      : make("p", { class: "tpunb-hint" }, "No trial yet."));
    this.trials.scrollTop = this.trials.scrollHeight; // the newest is seen
  }

  listRefused() {
    const { refused } = this.get("_run");
    this.refused.hidden = !refused.length;
    this.refused.replaceChildren(make("h4", {}, "Refused, with the reasons"),
      make("ul", {}, refused.map(([values, why]) => make("li", {}, make("strong", {}, values), `: ${why}`))));
  }

  // Which controls are in force, and where they stand.
  controls() {
    const { state, code } = this.get("_run");
    const works = state === "running" || state === "stopping";
    for (const control of [this.phase, this.search, this.budget, this.go]) control.disabled = works;
    this.halt.disabled = state !== "running";
    this.use.disabled = !code;
    this.code.textContent = code;
    if (!code) this.show(false);
    this.phase.value = this.get("phase");
    this.search.value = this.get("search");
    if (document.activeElement !== this.budget) this.budget.value = exact(this.get("budget"));
  }

  // The bar of time, by the page's own clock between two words of the kernel.
  tick() {
    clearTimeout(this.ticking);
    this.bar.parentNode.hidden = this.begun === null;
    if (this.begun === null) return;
    const spent = performance.now() / 1000 - this.begun, budget = this.get("budget");
    this.bar.value = Math.min(spent / budget, 1);
    this.clock.textContent = `${spent.toFixed(0)} s of ${exact(budget)} s`;
    this.ticking = setTimeout(() => this.tick(), TICK_MS);
  }

  // ---- what the hand does

  spend(seconds) {
    if (seconds > 0) this.set("budget", seconds);
    else {
      this.complain(`The budget must be above 0 seconds. Got ${this.budget.value || "nothing"} instead.`);
      this.budget.value = exact(this.get("budget"));
    }
  }

  async asked(what) {
    this.complain("");
    try {
      await ask(this.model, what);
    } catch (error) { this.complain(error.message); }
  }

  show(open) {
    this.lines.hidden = !open;
    this.use.setAttribute("aria-expanded", String(open));
  }

  async copy() {
    try {
      await copied(this.code.textContent);
      this.copying.textContent = "copied";
      this.quiet = setTimeout(() => { this.copying.textContent = ""; }, 4000);
    } catch (error) { this.complain(error.message); }
  }

  end() {
    clearTimeout(this.ticking);
    clearTimeout(this.quiet);
    super.end();
  }
}

function render({ model, el }) {
  const panel = new TuningPanel(model, el);
  return () => panel.end();
}

export default { render };
