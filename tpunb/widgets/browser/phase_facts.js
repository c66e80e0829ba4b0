// What the kernel tells of the phase that stands out, or of the longest.

class PhaseFacts {
  constructor(explorer) {
    this.explorer = explorer;
    this.host = make("section", { class: "tpunb-card tpunb-about", "aria-label": "The phase that stands out" });
    this.reasons = make("div");
  }

  // First what is quickly told, then the reasons, each in an answer of its own: a move in between has its turn.
  async ask() {
    const { explorer } = this;
    const cut = explorer.get("_cut").number, phase = explorer.get("phase");
    const passed = () => cut !== explorer.get("_cut").number || phase !== explorer.get("phase"); // another is on its way
    explorer.waiting();
    try {
      const figures = await this.told("figures");
      if (passed()) return;
      this.show(figures, phase === null);
      const reasons = await this.told("reasons");
      if (passed()) return;
      this.explain(reasons);
      await explorer.listRuns();
      if (!passed()) await explorer.second?.compare();
    } catch (error) {
      explorer.complain(error.message);
    }
    if (passed()) return;
    this.host.removeAttribute("aria-busy");
    explorer.arrived();
  }

  async told(what) {
    const { explorer } = this;
    if (!explorer.still) return ask(explorer.model, what);
    const { phases, longest } = explorer.get("_details");
    const kept = phases[explorer.get("phase") ?? longest];
    if (!kept) throw new Error("This file tells of the longest phases only.");
    return kept;
  }

  show({ name, facts, ops }, longest) {
    const bars = (side) => (ops[side].length ? [make("h5", {}, `Top operations, ${side}`), operations(ops[side], side)] : []);
    this.host.replaceChildren(make("h4", {}, longest ? `${name}, the longest` : name),
      make("div", { class: "tpunb-columns" },
        make("div", {}, make("dl", {}, facts.map(([key, value]) => [make("dt", {}, key), make("dd", {}, value)]))),
        make("div", {}, bars("device"), bars("host")), this.reasons));
  }

  explain({ apart, advice, homogeneity }) {
    const list = (title, texts) => (texts.length ? [make("h5", {}, title),
      make("ul", {}, texts.map((text) => make("li", {}, text)))] : []);
    this.reasons.replaceChildren(...list("What sets it apart", apart), ...list("What would save time", advice));
    this.explorer.trust(homogeneity);
  }
}
