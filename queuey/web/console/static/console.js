// What pages do beside what htmx does: a scan can be stopped, and "/" leads to the first field.
"use strict";

document.addEventListener("click", (event) => {
  const stop = event.target.closest("[data-stop]");
  if (stop === null) return;
  const row = stop.closest("[data-scan]");
  htmx.trigger(row, "htmx:abort");
  // Without its attributes the row asks no more; its link still goes on.
  const still = row.cloneNode(true);
  for (const name of ["data-scan", "hx-get", "hx-trigger", "hx-target", "hx-swap"]) still.removeAttribute(name);
  still.querySelector("[data-stop]").remove();
  row.replaceWith(still);
  htmx.process(still);
  still.querySelector("a").focus();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
  const field = document.querySelector("[data-first]");
  if (field === null) return;
  event.preventDefault();
  field.focus();
});

// Charts of the last hour: each event of the stream has all of it.
const charts = document.querySelector("[data-live]");
if (charts !== null) {
  let source = null, plots = [], figures = null;

  // A canvas takes no colour that depends on the scheme, so an element has it worked out.
  const colour = (name) => {
    charts.style.color = `var(${name})`;
    const found = getComputedStyle(charts).color;
    charts.style.color = "";
    return found;
  };
  const lines = [
    ["Messages a second", [["sent", "--link"], ["taken", "--warn"]], ["sent", "read or claimed"]],
    ["Messages in the queue", [["depth", "--link"]], ["messages"]],
  ];

  const draw = () => {
    plots.forEach((plot) => plot.destroy());
    plots = lines.map(([title, series, labels], index) => {
      const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      const one = ([name, variable], number) => ({ label: labels[number], stroke: colour(variable), width: 2, spanGaps: name === "depth", points: { show: name === "depth", size: 4 } });
      const options = {
        title, width: Math.max(260, charts.children[index].clientWidth), height: 200, cursor: { drag: { setScale: false } },
        axes: [axis, { ...axis, size: 60 }], series: [{}, ...series.map(one)], scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      };
      return new uPlot(options, [figures.at, ...series.map(([name]) => figures[name])], charts.children[index]);
    });
  };

  const listen = () => {
    source = new EventSource(charts.dataset.live);
    source.addEventListener("chart", (event) => {
      figures = JSON.parse(event.data);
      if (plots.length === 0) draw();
      else plots.forEach((plot, index) => plot.setData([figures.at, ...lines[index][1].map(([name]) => figures[name])]));
      charts.dataset.state = "live";
    });
    source.addEventListener("bye", () => source.close());
  };

  // A browser has few connections to a host, so a page that nobody sees has none.
  document.addEventListener("visibilitychange", () => {
    source.close();
    if (!document.hidden) listen();
  });
  const again = () => { if (figures !== null) draw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("resize", again);
  listen();
}
