// The panel's buttons: its line of Python, files, and pictures in its place.

class Buttons {
  constructor(explorer) {
    this.explorer = explorer;
    this.code = make("code", { class: "tpunb-code" });
    this.status = make("span", { role: "status" });
    const files = [["html", "Save HTML", "this page in one file"], ["png", "PNG", "the timeline as a PNG"],
      ["svg", "SVG", "the timeline as an SVG"], ["trace", "Chrome trace", "the phases for Perfetto"]];
    const asking = [...files.map(([kind, text, label]) => button(text, `Save ${label}`, () => this.save(kind))),
      button("Open trace", "Write the raw events of a step of this phase, and say how to open them", () => this.openTrace()),
      button("Make static", "Replace the panel by pictures, which a notebook shows without a kernel", () => this.toStatic())];
    this.trace = make("p", { class: "tpunb-line tpunb-trace", role: "status", hidden: true });
    this.host = make("footer", {}, button("Copy code", "Copy the line of Python that gives these phases", () => this.copy()),
      this.code, explorer.still ? [] : asking, this.status, this.trace);
  }

  async copy() {
    try {
      await copied(this.code.textContent);
      this.say("copied");
    } catch (error) { this.explorer.complain(error.message); }
  }

  save(kind) {
    return this.explorer.during(async () => {
      const { name, type, buffers } = await ask(this.explorer.model, "export", { kind });
      download(name, type, buffers[0]);
      this.say(`saved ${name}`);
    }, 0);
  }

  openTrace() {
    this.trace.hidden = true;
    return this.explorer.during(async () => {
      this.trace.textContent = (await ask(this.explorer.model, "open_trace")).text;
      this.trace.hidden = false;
    }, 0);
  }

  toStatic() { ask(this.explorer.model, "to_static").catch((error) => this.explorer.complain(error.message)); }

  say(text) {
    this.status.textContent = text;
    this.end();
    this.saying = setTimeout(() => { this.status.textContent = ""; }, 4000);
  }

  end() { clearTimeout(this.saying); }
}
