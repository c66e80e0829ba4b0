// What `slider.py` puts into the page before all else: it sees keys, sockets and pictures, and changes none.

(() => {
  const now = () => performance.now();
  const wire = { bytes: 0, most: 0 }; // since a move was last expected
  const size = (data) => (typeof data === "string" ? new TextEncoder().encode(data).length : data.byteLength ?? data.size);
  let painted = () => {};

  window.WebSocket = class extends WebSocket {
    constructor(...given) {
      super(...given);
      this.addEventListener("message", ({ data }) => {
        wire.bytes += size(data);
        if (size(data) > wire.most) Object.assign(wire, { most: size(data), heard: now() });
      });
    }
    send(data) {
      wire.bytes += size(data);
      wire.sent ??= now();
      super.send(data);
    }
  };
  const fill = CanvasRenderingContext2D.prototype.fill;
  CanvasRenderingContext2D.prototype.fill = function (...given) {
    fill.apply(this, given);
    painted(this.canvas);
  };

  // A canvas is read from a copy: to read the canvas itself changes how Chromium paints it.
  function pixels(canvas) {
    const { width, height } = canvas;
    if (!width || !height) return new Uint32Array(0);
    const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    return new Uint32Array(copy.getImageData(0, 0, width, height).data.buffer);
  }

  const found = ({ root, ribbon }) => [...document.querySelectorAll(`${root} ${ribbon}`)].find(
    (one) => one.clientHeight > 0 && one.checkVisibility({ visibilityProperty: true }));
  const drawn = (svg) => (svg?.clientHeight > 0 ? svg.querySelectorAll(".mark-rect path").length : 0);

  // How much stands in a picture: the pixels that are not transparent, or the bars.
  function paint(picture) {
    if (!(picture instanceof HTMLCanvasElement)) return drawn(picture);
    return pixels(picture).reduce((sum, pixel) => sum + (pixel >>> 24 > 0), 0);
  }

  // What a picture looks like, in a number.
  function look(picture) {
    const parts = picture instanceof HTMLCanvasElement ? pixels(picture) : new TextEncoder().encode(picture?.innerHTML);
    return parts.reduce((sum, part) => (Math.imul(sum, 31) + part) | 0, 0);
  }

  // Call `then` once the cut has changed that a panel shows; to be asked each time that something is painted or added.
  // A panel that bears a line of code must have changed that before; another must have drawn its picture anew.
  function onCut(panel, then) {
    const place = document.querySelector(panel.root), line = panel.line && place.querySelector(panel.line);
    const before = { text: line?.textContent, picture: found(panel) };
    const fresh = (picture) => (line ? line.textContent !== before.text : picture !== before.picture && paint(picture) > 0);
    painted = (picture) => { if (place.contains(picture) && fresh(picture)) then(); };
    const added = new MutationObserver(() => { const picture = found(panel); if (fresh(picture)) then(); });
    if (!line) added.observe(place, { childList: true, subtree: true });
    return {
      said: () => (line && line.textContent === before.text ? `the line is still ${before.text}` : "the ribbon was not painted"),
      end: () => { painted = () => {}; added.disconnect(); },
    };
  }

  window.bench = {
    // Make `move` a promise of what the next key brings, in milliseconds after it was pressed.
    expect(panel, limit_s) {
      this.end?.();
      Object.assign(wire, { bytes: 0, most: 0, sent: undefined, heard: undefined });
      const before = look(found(panel));
      let pressed = null, last = null;
      this.listed = null;
      addEventListener("keydown", (event) => { pressed = event.timeStamp; }, { capture: true, once: true });
      const table = panel.table && document.querySelector(`${panel.root} ${panel.table}`);
      this.rows?.disconnect();
      this.rows = new MutationObserver(() => requestAnimationFrame(() => { this.listed ??= now() - pressed; }));
      if (table) for (const one of [table, table.parentElement]) this.rows.observe(one, { childList: true }); // rows, or all of it
      this.move = new Promise((resolve, reject) => {
        const finish = () => {
          const times = { sent: wire.sent, heard: wire.heard, painted: last, frame: now() };
          this.end();
          for (const name in times) times[name] -= pressed;
          resolve({ ...times, changed: look(found(panel)) !== before });
        };
        const cut = onCut(panel, () => {
          if (pressed === null) return;
          if (last === null) requestAnimationFrame(finish);
          last = now();
        });
        const timer = setTimeout(() => {
          this.end();
          reject(new Error(pressed === null ? "no key came" : `no new cut within ${limit_s} s: ${cut.said()}`));
        }, 1000 * limit_s);
        this.end = () => { cut.end(); clearTimeout(timer); };
      });
      this.move.catch(() => {}); // who waits for it hears of it
    },

    // Resolves to the bytes on the wire once nothing has changed for a while and the kernel is idle.
    quiet({ root }, rest_ms, limit_s) {
      const place = document.querySelector(root), begun = now();
      const watch = new MutationObserver(() => { last = now(); });
      let last = begun;
      watch.observe(place, { subtree: true, childList: true, characterData: true, attributes: true });
      return new Promise((resolve, reject) => {
        const timer = setInterval(() => {
          const status = window.jupyterapp?.shell.currentWidget.sessionContext.session.kernel.status ?? "idle";
          const late = now() - begun > 1000 * limit_s;
          if (status !== "idle" || place.querySelector("[aria-busy=true]")) last = now();
          if (now() - last < rest_ms && !late) return;
          clearInterval(timer);
          watch.disconnect();
          if (late) reject(new Error(`no rest within ${limit_s} s; the kernel is ${status}`));
          else requestAnimationFrame(() => resolve(wire.bytes)); // after those that were asked for before
        }, 20);
      });
    },

    // Look at each animation frame, until `looked` is called.
    look(panel) {
      const place = document.querySelector(panel.root), whole = paint(found(panel));
      const least = found(panel) instanceof HTMLCanvasElement ? whole / 2 : 1; // the bars of an SVG come and go with its phases
      const cut = () => (panel.line ? place.querySelector(panel.line).textContent : found(panel));
      const told = { frames: 0, blank: 0, cuts: 0 };
      let going = true, before = cut();
      const frame = () => {
        if (!going) return;
        const bare = panel.coverage && !place.querySelector(panel.coverage)?.clientHeight;
        const now = cut();
        told.frames += 1;
        told.cuts += now !== before;
        told.blank += bare || whole === 0 || paint(found(panel)) < least;
        before = now;
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
      this.looked = () => { going = false; return told; };
    },
  };
})();
