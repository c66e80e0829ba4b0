// Base of the panels: reads traits, listens to their changes, shows errors, and ends.

const ALONE_MS = 8000; // without an answer at the start, before the page says that there may be no kernel

class Panel {
  constructor(model, root) {
    this.model = model;
    this.root = root;
    this.name = `tpunb-${page.next++}`; // prefix of its parts' ids
    this.undo = []; // called at the end
    this.alert = make("p", { class: "tpunb-alert", role: "alert", hidden: true });
  }

  get(name) { return this.model.get(name); }

  on(event, call) {
    this.model.on(event, call);
    this.undo.push(() => this.model.off(event, call));
  }

  complain(text) {
    this.alert.textContent = text;
    this.alert.hidden = !text;
  }

  // A message where no kernel answers.
  greet() {
    const alone = "The kernel does not answer: it is busy, or this is a saved notebook. The panel shows its last state.";
    const timer = setTimeout(() => this.complain(alone), ALONE_MS);
    this.undo.push(() => clearTimeout(timer));
    vega(this.model).then(() => {
      clearTimeout(timer);
      if (this.alert.textContent === alone) this.complain("");
    }).catch(() => {});
  }

  end() {
    for (const call of this.undo) call();
  }
}
