// Facts of the selected phase, or of the longest.

class PhaseFacts {
  constructor(explorer) {
    this.explorer = explorer;
    this.host = make("section", { class: "tpunb-about", "aria-label": "Selected phase" });
    this.ops = make("div");
    this.reasons = make("div");
  }

  // Figures first, then the slower reasons, each in an answer of its own: the slider can move in between.
  async ask() {
    const { explorer } = this;
    const current = explorer.get("_clusters").number, phase = explorer.get("phase");
    const passed = () => current !== explorer.get("_clusters").number || phase !== explorer.get("phase");
    explorer.waiting();
    try {
      const figures = await this.answer("figures");
      if (passed()) return; // the next question is on its way
      this.show(figures, phase === null);
      const reasons = await this.answer("reasons");
      if (passed()) return;
      this.explain(reasons);
      await explorer.rate();
      await (explorer.accounts ? explorer.accounts.ask() : this.advise());
      await explorer.hint();
      await explorer.listRuns();
      if (!passed()) await explorer.second?.compare();
    } catch (error) {
      explorer.complain(error.message);
    }
    if (passed()) return;
    this.host.removeAttribute("aria-busy");
    explorer.arrived();
  }

  // A run without a record of its wall time has advice on its phases alone.
  async advise() {
    const { explorer } = this;
    explorer.advise(explorer.still ? explorer.get("_advice") : (await ask(explorer.model, "accounts")).advice);
  }

  async answer(question) {
    const { explorer } = this;
    if (!explorer.still) return ask(explorer.model, question);
    const { phases, longest } = explorer.get("_details");
    const kept = phases[explorer.get("phase") ?? longest];
    if (!kept) throw new Error("This file holds the longest phases only.");
    return kept;
  }

  show({ name, large, facts, ops }, longest) {
    const pair = ([key, value, base]) => make("div", {}, make("dt", {}, key), make("dd", {}, value, base ? make("span", {}, base) : null));
    const first = large.map(([key]) => key);
    this.host.replaceChildren(make("h4", { "aria-level": 2 }, longest ? `${name} (longest)` : name),
      make("dl", { class: "tpunb-large" }, large.map(pair)),
      make("dl", { class: "tpunb-facts" }, facts.rows.filter(([key]) => !first.includes(key)).map(([key, value]) => pair([key, value]))),
      this.ops, this.reasons);
    this.list(ops);
  }

  list(ops) {
    this.ops.replaceChildren(...titled(ops, "tpunb-ops"));
  }

  explain({ ops, lists, explained }) {
    this.list(ops); // now with their source lines
    this.reasons.replaceChildren(...titled(lists));
    this.explorer.showExplained(explained);
    this.host.style.minHeight = `${this.host.offsetHeight}px`; // what is below, as the slider, stays where it is
  }
}
