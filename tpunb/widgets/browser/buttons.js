// What leaves the panel: its line of Python, files, and pictures in its place.

class Buttons {
  constructor(explorer) {
    this.explorer = explorer;
    this.code = make("code", { class: "tpunb-code" });
    this.said = make("span", { role: "status" });
    const files = [["html", "Save HTML", "this page in one file"], ["png", "PNG", "the ribbon as a PNG"],
      ["svg", "SVG", "the ribbon as an SVG"], ["trace", "Chrome trace", "the phases for Perfetto"]];
    const asking = [...files.map(([kind, text, label]) => button(text, `Save ${label}`, () => this.save(kind))),
      button("Freeze", "Put pictures in the panel's place, which the notebook shows without a kernel", () => this.freeze())];
    this.host = make("footer", {},
      button("Copy as code", "Copy the line of Python that gives this cut", () => this.copy()), this.code,
      explorer.still ? [] : asking, this.said);
  }

  async copy() {
    try {
      await copied(this.code.textContent);
      this.say("copied");
    } catch (error) { this.explorer.complain(error.message); }
  }

  async save(kind) {
    this.explorer.waiting(0);
    try {
      const { name, type, buffers } = await ask(this.explorer.model, "export", { kind });
      download(name, type, buffers[0]);
      this.say(`saved ${name}`);
    } catch (error) { this.explorer.complain(error.message); }
    this.explorer.arrived();
  }

  freeze() { ask(this.explorer.model, "freeze").catch((error) => this.explorer.complain(error.message)); }

  say(text) {
    this.said.textContent = text;
    this.end();
    this.saying = setTimeout(() => { this.said.textContent = ""; }, 4000);
  }

  end() { clearTimeout(this.saying); }
}
