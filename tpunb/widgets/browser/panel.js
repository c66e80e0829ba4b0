// What every panel's page does: it reads traits, hears of their changes, says what went wrong, and ends.

const ALONE_MS = 8000; // of silence at the start, before it says that there may be no kernel

class Panel {
  constructor(model, root) {
    this.model = model;
    this.root = root;
    this.name = `tpunb-${page.next++}`; // of its parts, for labels
    this.undo = []; // when it ends
    this.alert = make("p", { class: "tpunb-alert", role: "alert", hidden: true });
  }

  get(name) { return this.model.get(name); }

  on(what, call) {
    this.model.on(what, call);
    this.undo.push(() => this.model.off(what, call));
  }

  complain(text) {
    this.alert.textContent = text;
    this.alert.hidden = !text;
  }

  // Say so where no kernel answers: it is busy, or the notebook was opened without it.
  greet() {
    const alone = "The kernel does not answer: it is busy, or this is a saved notebook. What is shown is as it was then.";
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
