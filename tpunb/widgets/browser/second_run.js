// The run that a run is compared with, below it: its timeline in the same colours, and what changed since.

class SecondRun {
  constructor(explorer) {
    this.explorer = explorer;
    this.allowed = false; // whether runs of different models may be compared
    this.host = make("section", { class: "tpunb-card tpunb-second", "aria-label": "Comparison" });
    this.title = make("h4", { "aria-level": 2 }, "Comparison");
    this.status = make("div", {}, make("p", { class: "tpunb-hint" }, "comparing …"));
    this.run = make("h5", { "aria-level": 3 });
    this.timeline = explorer.chart("Timeline of the other run");
    this.ratios = explorer.chart("Step times by phase");
    this.body = make("div", { hidden: true });
    this.rows = make("div", { class: "tpunb-scroll" });
    this.runs = make("details", {}, make("summary", {}, "Other timeline table"), make("div"));
    this.body.append(this.run, this.timeline.host, this.runs, this.rows, this.ratios.host);
    this.host.append(this.title, this.status, this.body);
  }

  async compare() {
    const { model, still } = this.explorer;
    const current = model.get("_clusters").number;
    if (current === this.current) return;
    this.host.setAttribute("aria-busy", "true");
    try {
      const answer = still ? model.get("_compared")
        : await ask(model, "compare", { allow_different_models: this.allowed });
      if (answer.error) throw new Error(answer.error);
      this.current = current;
      this.show(answer);
    } catch (error) {
      this.refuse(error.message);
    }
    this.host.removeAttribute("aria-busy");
  }

  // The phase of the other run that matches the selected one.
  choose(phase) {
    this.timeline.put({}, { chosen: phase === null ? null : this.matched?.get(phase) ?? null });
  }

  refuse(reason) {
    const anyway = () => {
      this.allowed = true;
      this.compare();
    };
    this.body.hidden = true;
    this.status.replaceChildren(make("p", { class: "tpunb-warning", role: "note" }, reason),
      ...(this.explorer.still || this.allowed ? [] : [button("Compare anyway", "Compare different models", anyway)]));
  }

  show({ name, timeline, edges, layout, tables, runs, axis, chart, table, matches }) {
    this.title.textContent = table.caption;
    this.status.replaceChildren();
    this.rows.replaceChildren(drawn(table, { kind: "tpunb-pairs" }));
    this.run.textContent = name;
    this.runs.firstChild.textContent = runs.caption;
    this.runs.lastChild.replaceChildren(drawn(runs));
    this.body.hidden = false;
    this.matched = new Map(matches);
    this.timeline.show(timeline, { ...unpacked(tables, { edges }, layout), ...axis },
      { low: edges[0], high: edges[1], chosen: null }, { canvas: true });
    this.choose(this.explorer.get("phase"));
    this.ratios.host.hidden = !chart;
    if (chart) this.ratios.show(chart);
  }
}
