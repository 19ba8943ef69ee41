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

// A page that the browser has kept, for "Back", has a form that was sent; a new one has a number of its own.
window.addEventListener("pageshow", (event) => {
  if (event.persisted && document.querySelector("[name=act_id]") !== null) location.reload();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
  const field = document.querySelector("[data-first]");
  if (field === null) return;
  event.preventDefault();
  field.focus();
});

// The last hour of a queue: each event of the stream has all of it, for charts, for a number, or to tell that there is more.
const charts = document.querySelector("[data-live]");
if (charts !== null) {
  const MAX_RETRIES = 5, RETRY_MILLISECONDS = 5000;
  const notice = document.querySelector("[data-ended]");
  const depth = document.querySelector("[data-depth]"), fresh = document.querySelector("[data-fresh]");
  let source = null, plots = [], figures = null, retries = 0, timer = null, since = null, known = 0;

  // A canvas takes no colour that depends on the scheme, so an element has it worked out.
  const colour = (name) => {
    charts.style.color = `var(${name})`;
    const found = getComputedStyle(charts).color;
    charts.style.color = "";
    return found;
  };
  // Tables have their times in UTC too.
  const time = (at) => new Date(at * 1e3).toISOString().slice(11, 19);
  const lines = [
    ["Messages a second (times in UTC)", [["sent", "--link"], ["taken", "--warn"]], ["sent", "read or claimed"]],
    ["Messages in the queue (times in UTC)", [["depth", "--link"]], ["messages"]],
  ];

  const draw = () => {
    if (!charts.matches(".charts")) return;
    plots.forEach((plot) => plot.destroy());
    plots = lines.map(([title, series, labels], index) => {
      const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      const one = ([name, variable], number) => ({ label: labels[number], stroke: colour(variable), width: 2, spanGaps: name === "depth", points: { show: name === "depth", size: 4 } });
      const options = {
        title, tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"), width: Math.max(260, charts.children[index].clientWidth), height: 200, cursor: { drag: { setScale: false } },
        axes: [{ ...axis, values: (_, splits) => splits.map((at) => time(at).slice(0, 5)) }, { ...axis, size: 60 }],
        series: [{ value: (_, at) => (at === null ? "" : time(at)) }, ...series.map(one)],
        scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      };
      return new uPlot(options, [figures.at, ...series.map(([name]) => figures[name])], charts.children[index]);
    });
  };

  const end = () => {
    source.close();
    charts.dataset.state = "ended";
    if (notice !== null) notice.hidden = false;
    if (retries < MAX_RETRIES) timer = setTimeout(listen, RETRY_MILLISECONDS * ++retries);
  };

  const tell = () => {
    const now = figures.depth.at(-1), begin = since ?? figures.at.at(-1);
    if (depth !== null && now !== null) depth.textContent = now.toLocaleString("en");
    if (fresh === null) return;
    const sent = figures.sent.filter((_, index) => figures.at[index] >= begin).reduce((sum, one) => sum + one, 0);
    if (since === null) [since, known] = [begin, sent];
    fresh.hidden = fresh.hidden && sent <= known;
  };

  const listen = () => {
    source = new EventSource(charts.dataset.live);
    source.addEventListener("chart", (event) => {
      figures = JSON.parse(event.data);
      if (plots.length === 0) draw();
      else plots.forEach((plot, index) => plot.setData([figures.at, ...lines[index][1].map(([name]) => figures[name])]));
      tell();
      charts.dataset.state = "live";
      if (notice !== null) notice.hidden = true;
      retries = 0;
    });
    source.addEventListener("bye", end);
    // After a lost connection the browser tries again by itself; after an answer that is no stream it does not.
    source.addEventListener("error", (event) => { if (event.target.readyState === EventSource.CLOSED) end(); });
  };

  // A browser has few connections to a host, so a page that nobody sees has none.
  document.addEventListener("visibilitychange", () => {
    source?.close();
    clearTimeout(timer);
    retries = 0;
    if (!document.hidden) listen();
  });
  const again = () => { if (figures !== null) draw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("resize", again);
  if (!document.hidden) listen();
}
