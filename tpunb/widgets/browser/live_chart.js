// One chart.

function render({ model, el }) {
  const chart = new Chart(model, "");
  const alert = make("p", { role: "alert", hidden: true });
  chart.failed = (error) => {
    alert.textContent = `the chart could not be drawn: ${error.message}`;
    alert.hidden = false;
  };
  const picture = model.get("_picture"); // until Vega is loaded, or without a kernel
  if (picture) chart.host.innerHTML = picture; // drawn by the kernel, its texts escaped
  el.replaceChildren(chart.host, alert);
  const tables = () => model.get("tables"), signals = () => model.get("signals");
  const draw = () => chart.show(model.get("spec"), { ...tables() }, { ...signals() }, { canvas: model.get("canvas") });
  const put = async (...what) => {
    try {
      await chart.put(...what);
      alert.hidden = true;
    } catch (error) { chart.failed(error); }
  };
  const handlers = [["change:spec", draw], ["change:tables", () => put(tables())],
    ["change:signals", () => put({}, signals())]];
  for (const [what, call] of handlers) model.on(what, call);
  const stop = onTheme(() => chart.recolour());
  draw();
  return () => {
    for (const [what, call] of handlers) model.off(what, call);
    stop();
    chart.end();
  };
}

export default { render };
