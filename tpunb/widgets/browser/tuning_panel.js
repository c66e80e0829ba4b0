// The page of the tuning panel: trial start, parameters, trials as they finish, and code to apply.

const TICK_MS = 500; // between updates of the progress bar

class TuningPanel extends Panel {
  constructor(model, root) {
    super(model, root);
    this.build();
    this.on("change:_run", () => this.showRun());
    this.on("change:_start", () => this.showStart());
    this.on("change:error", () => this.complain(this.get("error")));
    for (const name of ["phase", "budget", "search"]) this.on(`change:${name}`, () => this.controls());
    this.showStart();
    this.showRun();
    this.complain(this.get("error"));
    this.greet();
  }

  set(name, value) {
    this.complain("");
    this.model.set(name, value);
    this.model.save_changes();
  }

  // ---- sections of the page

  build() {
    const { job, folder, pictures, refusal } = this.get("_frame");
    this.headline = make("p", { class: "tpunb-headline", role: "status" });
    this.failed = make("p", { class: "tpunb-alert", role: "alert", hidden: true });
    this.notes = make("div");
    this.rejected = make("section", { class: "tpunb-card tpunb-about", "aria-label": "Rejected values" });
    this.root.replaceChildren(make("div", { class: "tpunb-page tpunb-explorer tpunb-tuning", role: "region",
      onkeydown: (event) => event.stopPropagation(), // the notebook's own keys
      "aria-label": `Tuning of ${job}` },
      make("style", {}, `[data-tpunb="${pictures}"]{display:none}`),
      make("header", {}, make("div", {}, make("h3", {}, `Tuning of ${job}`), this.headline)),
      refusal ? make("p", { class: "tpunb-warning", role: "note" }, `This pipeline cannot be tuned: ${refusal}.`) : null,
      this.notes, this.alert, this.failed,
      make("div", { class: "tpunb-two" }, this.start(), this.tuning(folder)),
      this.remedies(), this.lines(), this.results(), this.parameters(), this.rejected));
  }

  // The phase, its checkpoint, its bottleneck.
  start() {
    const { phases } = this.get("_frame");
    const option = ({ phase, text }) => make("option", { value: phase }, text);
    this.phase = make("select", { id: `${this.name}-phase`, onchange: () => this.set("phase", Number(this.phase.value)) },
      phases.map(option));
    this.facts = make("dl");
    this.bounds = make("div");
    return make("section", { class: "tpunb-card", "aria-label": "Trial start" },
      make("h4", {}, "Trial start"),
      phases.length ? make("p", { class: "tpunb-pick" }, make("label", { for: this.phase.id }, "Phase"), this.phase) : null,
      this.facts, this.bounds);
  }

  // Search and budget, buttons, progress, messages.
  tuning(folder) {
    const { searches } = this.get("_frame");
    const id = (what) => `${this.name}-${what}`;
    this.search = make("select", { id: id("search"), onchange: () => this.set("search", this.search.value) },
      searches.map((name) => make("option", { value: name }, name)));
    this.budget = make("input", { type: "number", id: id("budget"), min: 1, step: "any",
      onchange: () => this.setBudget(Number(this.budget.value)) });
    this.runButton = button("Run", "Start trials in a thread of the kernel", () => this.request("run"));
    this.stopButton = button("Stop", "End after the current trial", () => this.request("stop"));
    this.applyButton = button("Code", "Show or hide the code to paste", () => this.show(this.code.hidden),
      { "aria-controls": id("code") });
    this.bar = make("progress", { "aria-label": "Budget used", max: 1, value: 0 });
    this.clock = make("span", { class: "tpunb-hint" });
    this.messages = make("ul", { "aria-label": "Messages" });
    return make("section", { class: "tpunb-card", "aria-label": "Tuning" }, make("h4", {}, "Tuning"),
      make("p", { class: "tpunb-pick" }, make("label", { for: id("search") }, "Search"), this.search,
        make("label", { for: id("budget") }, "Budget (s)"), this.budget),
      make("p", { class: "tpunb-pick" }, this.runButton, this.stopButton, this.applyButton,
        button("Freeze", "Replace the panel by tables and a picture, which a saved notebook shows without a kernel",
          () => this.request("freeze"))),
      make("p", { class: "tpunb-pick tpunb-time" }, this.bar, this.clock), this.messages,
      make("p", { class: "tpunb-hint" }, "Trials are written to the folder ", make("code", {}, folder), "."));
  }

  // Advice on the run, each with a button.
  remedies() {
    this.advice = make("ul");
    this.about = make("section", { class: "tpunb-card tpunb-about", "aria-label": "Remedies" },
      make("h4", {}, "Remedies of the run"), this.advice);
    return this.about;
  }

  parameters() {
    this.parameterTable = make("div", { class: "tpunb-scroll" });
    return make("section", { class: "tpunb-card tpunb-about", "aria-label": "Pipeline parameters" },
      make("h4", {}, "Pipeline parameters"), this.parameterTable);
  }

  results() {
    this.chart = new Chart(this.model, "Trials");
    this.chart.failed = (error) => this.complain(`the chart could not be drawn: ${error.message}`);
    this.undo.push(() => this.chart.end());
    this.trials = make("div", { class: "tpunb-scroll" });
    return make("div", { class: "tpunb-results" },
      make("section", { class: "tpunb-card", "aria-label": "Trial chart" }, make("h4", {}, "Trial chart"), this.chart.host),
      make("section", { class: "tpunb-card", "aria-label": "Trial table" }, make("h4", {}, "Trial table"),
        this.trials));
  }

  lines() {
    this.text = make("code", { class: "tpunb-code" });
    this.copying = make("span", { role: "status" });
    const copy = button("Copy", "Copy the code", () => this.copy());
    this.code = make("section", { class: "tpunb-card tpunb-about", id: `${this.name}-code`, hidden: true,
      "aria-label": "Code" }, make("h4", {}, "Code"), make("pre", {}, this.text),
      make("p", { class: "tpunb-pick" }, copy, this.copying),
      make("p", { class: "tpunb-hint" }, "Or leave the program as it is, and use ", make("code", {}, "panel.apply(data)"),
        ", which returns its dataset with these values."));
    return this.code;
  }

  // ---- state from the kernel

  showStart() {
    const { facts, bounds } = this.get("_start");
    this.facts.replaceChildren(...facts.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)]));
    this.bounds.replaceChildren(...titled(bounds));
    this.controls();
  }

  showRun() {
    const { headline, messages, notes, failed, chart, since } = this.get("_run");
    this.started = since === null ? null : performance.now() / 1000 - since;
    if (this.headline.textContent !== headline) this.headline.textContent = headline;
    this.notes.replaceChildren(...notes.map((text) => make("p", { class: "tpunb-line", role: "note" }, text)));
    this.failed.textContent = failed;
    this.failed.hidden = !failed;
    this.messages.replaceChildren(...messages.map((text) => make("li", {}, text)));
    if (chart) this.chart.show(chart);
    else this.chart.none("Trials appear here, each with its speed-up against the program as written.");
    this.listTables();
    this.controls();
    this.tick();
  }

  listTables() {
    const { parameters, trials, rejected, remedies } = this.get("_run");
    this.about.hidden = !remedies.length;
    this.tries = remedies.map((_, number) => button("Try it",
      "Run steps of the job in turns with and without it", () => this.request("try", { number })));
    this.advice.replaceChildren(...remedies.map(([text, saves, tried], number) => make("li", {}, `${text} `,
      make("span", { class: "tpunb-hint" }, saves === "–" ? "" : `saves at most ${saves} a step `), this.tries[number],
      tried === "–" ? null : make("p", { class: "tpunb-hint" }, `Tried: ${tried}.`))));
    const marked = (cells) => cells[parameters.columns.indexOf("Chosen")] !== "–";
    this.parameterTable.replaceChildren(drawn(parameters, { kind: "tpunb-parameters", marked }));
    this.trials.replaceChildren(trials.rows.length ? drawn(trials, { kind: "tpunb-trials" })
      : make("p", { class: "tpunb-hint" }, "No trials yet."));
    this.trials.scrollTop = this.trials.scrollHeight; // show the newest
    this.rejected.hidden = !rejected.rows.length;
    this.rejected.replaceChildren(make("h4", {}, rejected.caption), drawn(rejected, { kind: "tpunb-rejected" }));
  }

  // Enable the controls, and show their values.
  controls() {
    const { state, code } = this.get("_run");
    const active = state === "running" || state === "stopping";
    for (const control of [this.phase, this.search, this.budget, this.runButton, ...this.tries ?? []]) control.disabled = active;
    this.stopButton.disabled = state !== "running";
    this.applyButton.disabled = !code;
    if (this.text.textContent !== code) this.show(Boolean(code)); // open as soon as there is code to paste
    this.text.textContent = code;
    this.phase.value = this.get("phase");
    this.search.value = this.get("search");
    if (document.activeElement !== this.budget) this.budget.value = exact(this.get("budget"));
  }

  // Advance the progress bar between updates from the kernel.
  tick() {
    clearTimeout(this.ticking);
    this.bar.parentNode.hidden = this.started === null;
    if (this.started === null) return;
    const spent = performance.now() / 1000 - this.started, budget = this.get("budget");
    this.bar.value = Math.min(spent / budget, 1);
    this.clock.textContent = `${spent.toFixed(0)} s of ${exact(budget)} s`;
    this.ticking = setTimeout(() => this.tick(), TICK_MS);
  }

  // ---- actions

  setBudget(seconds) {
    if (seconds > 0) this.set("budget", seconds);
    else {
      this.complain(`The budget must be above 0 seconds. Got ${this.budget.value || "nothing"} instead.`);
      this.budget.value = exact(this.get("budget"));
    }
  }

  async request(name, content) {
    this.complain("");
    try {
      await ask(this.model, name, content);
    } catch (error) { this.complain(error.message); }
  }

  show(open) {
    this.code.hidden = !open;
    this.applyButton.setAttribute("aria-expanded", String(open));
  }

  async copy() {
    try {
      await copied(this.text.textContent);
      this.copying.textContent = "copied";
      this.copiedTimer = setTimeout(() => { this.copying.textContent = ""; }, 4000);
    } catch (error) { this.complain(error.message); }
  }

  end() {
    clearTimeout(this.ticking);
    clearTimeout(this.copiedTimer);
    super.end();
  }
}

function render({ model, el }) {
  const panel = new TuningPanel(model, el);
  return () => panel.end();
}

export default { render };
