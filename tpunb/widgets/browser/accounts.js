// The wall time by account: a bar whose parts select; the selected one's time on the timeline, its details and stalls.

class Accounts {
  constructor(explorer) {
    this.explorer = explorer;
    this.verdict = make("p", { class: "tpunb-headline" });
    this.bar = explorer.chart("Wall time by account");
    this.keys = make("div", { class: "tpunb-zoom", role: "group", "aria-label": "Accounts" });
    this.host = make("section", { "aria-label": "Wall time by account" }, this.verdict, this.bar.host, this.keys);
    this.details = make("section", { class: "tpunb-card tpunb-about", "aria-label": "Selected account", hidden: true });
    explorer.on("change:account", () => this.selected());
  }

  get chosen() { return this.explorer.get("account"); }

  start() {
    const { spec, ...accounts } = this.explorer.get("_frame").accounts;
    this.bar.show(spec, {}, { account: this.chosen }, { drawn: (view) => view.addEventListener("click",
      (_, item) => { if (item?.datum?.account) this.pick(item.datum.account); }) });
    this.show(accounts);
    this.selected();
    this.shown = this.key();
  }

  key() { return [this.explorer.get("_clusters").number, ...this.explorer.get("_axis").edges, this.chosen].join(); }

  pick(account) {
    const { model, still } = this.explorer;
    model.set("account", account === this.chosen ? null : account);
    if (!still) model.save_changes();
  }

  show({ lines, parts, advice }) {
    this.explorer.advise(advice);
    const [, answer, remedy] = (lines[0] ?? "").match(/^(.*?[.])((?: [A-Z].*)?)$/s) ?? [null, lines[0] ?? "", ""];
    const inline = (text) => text.split(/`([^`]+)`/).map((part, at) => (at % 2 ? make("code", {}, part) : part));
    this.verdict.replaceChildren(make("span", { class: "tpunb-answer" }, inline(answer)), ...inline(remedy));
    this.bar.put({ accounts: parts });
    const key = ({ account, colour, time, about }) => make("button", { type: "button", class: "tpunb-button", title: about,
      "aria-pressed": String(account === this.chosen), onclick: () => this.pick(account) },
    make("span", { class: "tpunb-chip", "aria-hidden": "true", style: `background:${colour}` }), ` ${account} · ${time}`);
    const focused = [...this.keys.children].indexOf(document.activeElement);
    this.keys.replaceChildren(...rows(parts).map(key));
    this.keys.children[focused]?.focus();
    this.parts = parts;
  }

  selected() {
    this.bar.put({}, { account: this.chosen });
    rows(this.parts).forEach(({ account }, i) => this.keys.children[i].setAttribute("aria-pressed", account === this.chosen));
    if (this.chosen) this.explorer.during(() => this.ask());
    else this.mark({});
  }

  // The bar of these phases, and the selected account in the time range that is shown.
  async ask() {
    const { explorer, chosen } = this, asked = this.key();
    if (explorer.still) return this.mark(explorer.get("_accounts")[chosen] ?? {});
    if (asked === this.shown) return null;
    const answer = await ask(explorer.model, "accounts", { account: chosen });
    if (asked !== this.key()) return null; // the next question is on its way
    this.shown = asked;
    this.show(answer);
    return this.mark(answer.selected ?? {});
  }

  mark({ heading, hue = null, marks = {}, tables }) {
    if (!hue) this.shown = null;
    this.explorer.timeline.put({ marks }, { hue });
    this.details.hidden = !hue;
    if (!hue) return;
    this.details.replaceChildren(make("h4", {}, heading), make("div", { class: "tpunb-columns tpunb-spent" },
      tables.map((each) => make("div", { class: "tpunb-scroll" }, drawn(each)))));
  }
}
