// The wall time by account: a bar whose parts select; the selected one's time on the timeline, its details and stalls.

class Accounts {
  constructor(explorer) {
    this.explorer = explorer;
    this.host = built(explorer.get("_frame").accounts.bar);
    this.parts = [...this.host.querySelectorAll("[data-account]")];
    for (const part of this.parts) part.addEventListener("click", () => this.pick(part.dataset.account));
    this.details = make("section", { class: "tpunb-card tpunb-about", "aria-label": "Selected account", hidden: true });
    explorer.on("change:account", () => this.selected());
  }

  get chosen() { return this.explorer.get("account"); }

  start() {
    this.explorer.advise(this.explorer.get("_frame").accounts.advice);
    this.selected();
    this.shown = this.key();
  }

  key() { return [this.explorer.get("_clusters").number, ...this.explorer.get("_axis").edges, this.chosen].join(); }

  // One that is under half a percent has no part.
  pick(account) {
    if (!this.parts.some((part) => part.dataset.account === account)) return;
    const { model, still } = this.explorer;
    model.set("account", account === this.chosen ? null : account);
    if (!still) model.save_changes();
  }

  selected() {
    for (const part of this.parts) part.setAttribute("aria-pressed", part.dataset.account === this.chosen);
    if (this.chosen) this.explorer.during(() => this.ask());
    else this.mark({});
  }

  // Advice on these phases, and the selected account in the time range that is shown.
  async ask() {
    const { explorer, chosen } = this, asked = this.key();
    if (explorer.still) return this.mark(explorer.get("_accounts")[chosen] ?? {});
    if (asked === this.shown) return null;
    const answer = await ask(explorer.model, "accounts", { account: chosen });
    if (asked !== this.key()) return null; // the next question is on its way
    this.shown = asked;
    explorer.advise(answer.advice);
    return this.mark(answer.selected ?? {});
  }

  mark({ heading, hue = null, marks = {}, tables }) {
    if (!hue) this.shown = null;
    this.explorer.timeline.put({ marks }, { hue });
    this.details.hidden = !hue;
    if (!hue) return;
    this.details.replaceChildren(make("h4", { "aria-level": 2 }, heading), make("div", { class: "tpunb-columns tpunb-spent" },
      tables.map((each) => make("div", { class: "tpunb-scroll" }, drawn(each)))));
  }
}
