// A second run below the first: its ribbon in the first one's colours, and what changed, phase by phase.

class SecondRun {
  constructor(explorer) {
    this.explorer = explorer;
    this.unlike = false; // whether runs of other models may be compared
    this.host = make("section", { class: "tpunb-card tpunb-second", "aria-label": "Comparison" });
    this.title = make("h4", {}, "Beside another run");
    this.said = make("div", {}, make("p", { class: "tpunb-hint" }, "comparing …"));
    this.ribbon = explorer.chart("Ribbon of the other run");
    this.ratios = explorer.chart("Step times by phase");
    this.body = make("div", { hidden: true });
    this.rows = make("div", { class: "tpunb-scroll" });
    this.runs = make("details", {}, make("summary", {}, "The other ribbon as a table"), make("div"));
    this.body.append(this.ribbon.host, this.runs, this.rows, this.ratios.host);
    this.host.append(this.title, this.said, this.body);
  }

  async compare() {
    const { model, still } = this.explorer;
    const cut = model.get("_cut").number;
    if (cut === this.cut) return;
    this.host.setAttribute("aria-busy", "true");
    try {
      const told = still ? model.get("_compared") : await ask(model, "compare", { unlike: this.unlike });
      if (told.error) throw new Error(told.error);
      this.cut = cut;
      this.show(told);
    } catch (error) {
      this.refuse(error.message);
    }
    this.host.removeAttribute("aria-busy");
  }

  // The phase of this run that was matched with the one that stands out.
  choose(phase) {
    this.ribbon.put({}, { chosen: phase === null ? null : this.matched?.get(phase) ?? null });
  }

  refuse(why) {
    const anyway = () => {
      this.unlike = true;
      this.compare();
    };
    this.body.hidden = true;
    this.said.replaceChildren(make("p", { class: "tpunb-warning", role: "note" }, why),
      ...(this.explorer.still || this.unlike ? [] :
        [make("button", { type: "button", class: "tpunb-button", onclick: anyway }, "Compare all the same")]));
  }

  show({ title, told, ribbon, edges, layout, tables, runs, scene, chart, pairs }) {
    const known = ofDevices(pairs, "–");
    const heads = ["Phase", "Marks", "Step", "Ratio, with its interval",
      ...known.map((name) => DEVICES[name]), "Gained", "Lost"];
    const row = (p) => make("tr", {}, make("th", { scope: "row" }, p.name),
      [p.marks, p.step, p.ratio, ...known.map((name) => p[name]), p.gained.join(", ") || "–", p.lost.join(", ") || "–"]
        .map((text) => make("td", {}, text)));
    this.title.textContent = `Beside ${title}: ${told}`;
    this.said.replaceChildren();
    this.rows.replaceChildren(table("Phases of both runs", heads, pairs.map(row), "tpunb-pairs"));
    this.runs.lastChild.replaceChildren(tabled(runs, "Runs of steps of one phase of the other run"));
    this.body.hidden = false;
    this.matched = new Map(pairs.map((p) => [p.phase, p.other]));
    this.ribbon.show(ribbon, { ...unpacked(tables, { edges }, layout), ...scene },
      { low: edges[0], high: edges[1], chosen: null }, { canvas: true });
    this.choose(this.explorer.get("phase"));
    this.ratios.host.hidden = !chart;
    if (chart) this.ratios.show(chart);
  }
}
