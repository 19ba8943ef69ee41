// Adds to htmx: a button stops a scan, and "/" moves the focus to the first field.
"use strict";

document.addEventListener("click", (event) => {
  const stop = event.target.closest("[data-stop]");
  if (stop === null) return;
  const row = stop.closest("[data-scan]");
  htmx.trigger(row, "htmx:abort");
  // Without its attributes the row sends no further requests; its link still works.
  const still = row.cloneNode(true);
  for (const name of ["data-scan", "hx-get", "hx-trigger", "hx-target", "hx-swap"]) still.removeAttribute(name);
  still.querySelector("[data-stop]").remove();
  row.replaceWith(still);
  htmx.process(still);
  still.querySelector("a").focus();
});

// A page that the browser cached for "Back" has a form that was already sent; a reloaded form has a new id.
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

// The last hour of a queue: each event of the stream has the whole hour, for charts, figures, or a note on new messages.
const charts = document.querySelector("[data-live]");
if (charts !== null) {
  const MAX_RETRIES = 5, RETRY_MILLISECONDS = 5000, STEP = 10, LINE = 16;
  const notice = document.querySelector("[data-ended]");
  const depth = document.querySelector("[data-depth]"), fresh = document.querySelector("[data-fresh]");
  const places = [...charts.querySelectorAll("[role=img]")], spans = [...document.querySelectorAll("[data-span]")];
  let source = null, plots = [], figures = null, retries = 0, timer = null, since = null, known = 0;

  // A canvas cannot use colours that depend on the scheme, so an element computes them.
  const colour = (name) => {
    charts.style.color = `var(${name})`;
    const found = getComputedStyle(charts).color;
    charts.style.color = "";
    return found;
  };
  // Times are in UTC, as in the tables.
  const time = (at) => new Date(at * 1e3).toISOString().slice(11, 19);
  const few = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const rate = (value) => (value > 0 && value < 1 ? `${Math.round(value * 60)}/min` : `${few.format(value)}/s`);
  const kinds = [
    { lines: [["sent", "sent", "--green"], ["taken", "taken", "--claimed"]], text: rate, unit: "/s", least: 1 },
    { lines: [["depth", "", "--retrying"]], text: (value) => few.format(value), unit: "", least: 4 },
  ];

  const seconds = () => Number(spans.find((one) => one.ariaPressed === "true").dataset.span);
  const data = (kind) => {
    const first = -seconds() / STEP;
    return [figures.at.slice(first), ...kind.lines.map(([name]) => figures[name].slice(first))];
  };
  const last = (values) => values.findLast((value) => value !== null) ?? null;

  // Labels at the ends of the lines show the values under the pointer, or else the last values.
  const label = (kind) => (plot) => {
    const { ctx, bbox } = plot, ratio = devicePixelRatio, at = plot.cursor.idx ?? null;
    const marks = kind.lines.map(([, title, variable], index) => {
      const values = plot.data[index + 1];
      return { title, variable, value: at === null ? last(values) : values[at], end: last(values) };
    }).filter((mark) => mark.end !== null).map((mark) => ({ ...mark, top: plot.valToPos(mark.end, "y", true) }));
    marks.sort((one, other) => one.top - other.top);
    let lowest = -Infinity;
    ctx.save();
    ctx.font = `600 ${12 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    for (const mark of marks) {
      mark.top = Math.max(Math.min(mark.top, bbox.top + bbox.height - (LINE / 2) * ratio * marks.length), lowest + LINE * ratio);
      lowest = mark.top;
      ctx.fillStyle = colour(mark.variable);
      ctx.fillText(`${mark.value === null ? "–" : kind.text(mark.value)} ${mark.title}`.trim(), bbox.left + bbox.width + 6 * ratio, mark.top);
    }
    if (at !== null) {
      ctx.fillStyle = colour("--quiet");
      ctx.textAlign = "right";
      ctx.fillText(time(plot.data[0][at]), bbox.left + bbox.width, bbox.top - 8 * ratio);
    }
    ctx.restore();
  };

  const describe = (kind, place) => {
    const told = kind.lines.map(([name, title]) => {
      const values = figures[name].slice(-seconds() / STEP).filter((value) => value !== null);
      return values.length ? `${title || "messages"}: ${kind.text(values.at(-1))} now, ${kind.text(Math.max(...values))} at most` : `${title || "messages"}: not counted yet`;
    });
    place.ariaLabel = `The last ${seconds() / 60} minutes. ${told.join("; ")}.`;
  };

  const draw = () => {
    plots.forEach((plot) => plot.destroy());
    plots = places.map((place, index) => {
      const kind = kinds[index];
      const axis = { stroke: colour("--quiet"), font: "12px system-ui, sans-serif", grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
      const series = kind.lines.map(([name, title, variable]) => {
        const stroke = colour(variable);
        return { label: title, stroke, fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.14)"), width: 2, spanGaps: name === "depth", points: { show: name === "depth", size: 4 } };
      });
      const options = {
        tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"), width: Math.max(240, place.clientWidth), height: 200,
        cursor: { drag: { setScale: false }, y: false }, legend: { show: false }, padding: [18, kind.lines.length > 1 ? 92 : 52, 0, 0],
        hooks: { draw: [label(kind)], setCursor: [(plot) => plot.redraw(false, false)] },
        axes: [
          { ...axis, size: 28, space: 56, values: (_, splits) => splits.map((at) => time(at).slice(0, 5)), incrs: [60, 120, 300, 600, 900, 1800] },
          { ...axis, size: 56, values: (_, splits) => splits.map((value) => few.format(value) + kind.unit) },
        ],
        series: [{}, ...series],
        scales: { x: { range: () => [figures.at.at(-1) - seconds(), figures.at.at(-1)] }, y: { range: (_, low, high) => [0, Math.max(kind.least, high * 1.1)] } },
      };
      describe(kind, place);
      return new uPlot(options, data(kind), place);
    });
  };

  const end = () => {
    source.close();
    charts.dataset.state = "ended";
    if (notice !== null) notice.hidden = false;
    if (retries < MAX_RETRIES) timer = setTimeout(listen, RETRY_MILLISECONDS * ++retries);
  };

  const tell = () => {
    for (const [name, text] of Object.entries(figures.tiles ?? {})) {
      const shown = document.querySelector(`[data-tile=${name}]`);
      if (shown === null) continue;
      shown.textContent = text;
      if (["claimed", "retrying", "dead"].includes(name)) shown.closest(".tile").classList.toggle(name, text !== "0");
    }
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
      else plots.forEach((plot, index) => { plot.setData(data(kinds[index])); describe(kinds[index], places[index]); });
      tell();
      charts.dataset.state = "live";
      if (notice !== null) notice.hidden = true;
      retries = 0;
    });
    source.addEventListener("bye", end);
    // The browser reconnects by itself after a lost connection, but not after a response that is not a stream.
    source.addEventListener("error", (event) => { if (event.target.readyState === EventSource.CLOSED) end(); });
  };

  // Keep the span in the address, for reloads and links.
  for (const button of spans) button.addEventListener("click", (event) => {
    event.preventDefault();
    spans.forEach((one) => { one.ariaPressed = String(one === button); });
    const address = new URL(location.href);
    address.searchParams.set(button.name, button.value);
    history.replaceState(null, "", address);
    if (figures !== null) draw();
  });

  // Browsers limit connections per host, so a hidden page closes its stream.
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
