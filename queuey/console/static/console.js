// Adds to htmx: a button that stops a scan, and "/" as a shortcut to the first field.
"use strict";

document.addEventListener("click", (event) => {
  const stopButton = event.target.closest("[data-stop]");
  if (stopButton === null) return;
  const row = stopButton.closest("[data-scan]");
  htmx.trigger(row, "htmx:abort");
  // Without its attributes the row sends no further requests; its link still works.
  const stoppedRow = row.cloneNode(true);
  for (const name of ["data-scan", "hx-get", "hx-trigger", "hx-target", "hx-swap"]) stoppedRow.removeAttribute(name);
  stoppedRow.querySelector("[data-stop]").remove();
  row.replaceWith(stoppedRow);
  htmx.process(stoppedRow);
  stoppedRow.querySelector("a").focus();
});

// A page restored from the back/forward cache has a form that was already sent; reloading gives the form a new id.
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

// Live figures of a queue. Each event has the data of the last hour, for the charts, tiles and note on new messages.
const panel = document.querySelector("[data-live]");
if (panel !== null) {
  const MAX_RETRIES = 5, RETRY_MILLISECONDS = 5000, STEP_SECONDS = 10, LINE_PIXELS = 16;
  const endedNotice = document.querySelector("[data-ended]");
  const depthElement = document.querySelector("[data-depth]"), newMessagesNote = document.querySelector("[data-fresh]");
  const plotElements = [...panel.querySelectorAll("[role=img]")], spanButtons = [...document.querySelectorAll("[data-span]")];
  let source = null, plots = [], figures = null, retries = 0, retryTimer = null, firstTime = null, firstSent = 0;

  // A canvas cannot use colours that depend on the scheme, so an element computes them.
  const computeColour = (variable) => {
    panel.style.color = `var(${variable})`;
    const colour = getComputedStyle(panel).color;
    panel.style.color = "";
    return colour;
  };
  // Formats seconds since 1970 in UTC, like the tables.
  const formatTime = (seconds) => new Date(seconds * 1e3).toISOString().slice(11, 19);
  const compactNumber = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const formatRate = (value) => (value > 0 && value < 1 ? `${Math.round(value * 60)}/min` : `${compactNumber.format(value)}/s`);
  // Each line is [field of the figures, title, CSS variable]; the y axis ends at `minTop` or higher.
  const charts = [
    { lines: [["sent", "sent", "--green"], ["taken", "taken", "--claimed"]], format: formatRate, unit: "/s", minTop: 1 },
    { lines: [["depth", "", "--retrying"]], format: (value) => compactNumber.format(value), unit: "", minTop: 4 },
  ];

  const spanSeconds = () => Number(spanButtons.find((button) => button.ariaPressed === "true").dataset.span);
  const plotData = (chart) => {
    const first = -spanSeconds() / STEP_SECONDS;
    return [figures.at.slice(first), ...chart.lines.map(([field]) => figures[field].slice(first))];
  };
  const lastValue = (values) => values.findLast((value) => value !== null) ?? null;

  // Returns a uPlot hook that labels the ends of the lines with the values under the pointer, or else the last values.
  const labelDrawer = (chart) => (plot) => {
    const { ctx, bbox } = plot, ratio = devicePixelRatio, index = plot.cursor.idx ?? null;
    const labels = chart.lines.map(([, title, variable], line) => {
      const values = plot.data[line + 1];
      return { title, variable, value: index === null ? lastValue(values) : values[index], end: lastValue(values) };
    }).filter((label) => label.end !== null).map((label) => ({ ...label, top: plot.valToPos(label.end, "y", true) }));
    labels.sort((a, b) => a.top - b.top);
    let previousTop = -Infinity;
    ctx.save();
    ctx.font = `600 ${12 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    for (const label of labels) {
      label.top = Math.max(Math.min(label.top, bbox.top + bbox.height - (LINE_PIXELS / 2) * ratio * labels.length), previousTop + LINE_PIXELS * ratio);
      previousTop = label.top;
      ctx.fillStyle = computeColour(label.variable);
      ctx.fillText(`${label.value === null ? "–" : chart.format(label.value)} ${label.title}`.trim(), bbox.left + bbox.width + 6 * ratio, label.top);
    }
    if (index !== null) {
      ctx.fillStyle = computeColour("--quiet");
      ctx.textAlign = "right";
      ctx.fillText(formatTime(plot.data[0][index]), bbox.left + bbox.width, bbox.top - 8 * ratio);
    }
    ctx.restore();
  };

  // Sets the text alternative of a chart.
  const describeChart = (chart, element) => {
    const descriptions = chart.lines.map(([field, title]) => {
      const values = figures[field].slice(-spanSeconds() / STEP_SECONDS).filter((value) => value !== null);
      return values.length ? `${title || "messages"}: ${chart.format(values.at(-1))} now, ${chart.format(Math.max(...values))} at most` : `${title || "messages"}: not counted yet`;
    });
    element.ariaLabel = `The last ${spanSeconds() / 60} minutes. ${descriptions.join("; ")}.`;
  };

  const drawCharts = () => {
    plots.forEach((plot) => plot.destroy());
    plots = plotElements.map((element, index) => {
      const chart = charts[index];
      const axis = { stroke: computeColour("--quiet"), font: "12px system-ui, sans-serif", grid: { stroke: computeColour("--line"), width: 1 }, ticks: { show: false } };
      const series = chart.lines.map(([field, title, variable]) => {
        const stroke = computeColour(variable);
        return { label: title, stroke, fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.14)"), width: 2, spanGaps: field === "depth", points: { show: field === "depth", size: 4 } };
      });
      const options = {
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"), width: Math.max(240, element.clientWidth), height: 200,
        cursor: { drag: { setScale: false }, y: false }, legend: { show: false }, padding: [18, chart.lines.length > 1 ? 92 : 52, 0, 0],
        hooks: { draw: [labelDrawer(chart)], setCursor: [(plot) => plot.redraw(false, false)] },
        axes: [
          { ...axis, size: 28, space: 56, values: (_, splits) => splits.map((seconds) => formatTime(seconds).slice(0, 5)), incrs: [60, 120, 300, 600, 900, 1800] },
          { ...axis, size: 56, values: (_, splits) => splits.map((value) => compactNumber.format(value) + chart.unit) },
        ],
        series: [{}, ...series],
        scales: { x: { range: () => [figures.at.at(-1) - spanSeconds(), figures.at.at(-1)] }, y: { range: (_, low, high) => [0, Math.max(chart.minTop, high * 1.1)] } },
      };
      describeChart(chart, element);
      return new uPlot(options, plotData(chart), element);
    });
  };

  const handleEnd = () => {
    source.close();
    panel.dataset.state = "ended";
    if (endedNotice !== null) endedNotice.hidden = false;
    if (retries < MAX_RETRIES) retryTimer = setTimeout(connect, RETRY_MILLISECONDS * ++retries);
  };

  const showFigures = () => {
    for (const [name, text] of Object.entries(figures.tiles ?? {})) {
      const tile = document.querySelector(`[data-tile=${name}]`);
      if (tile === null) continue;
      tile.textContent = text;
      if (["claimed", "retrying", "dead"].includes(name)) tile.closest(".tile").classList.toggle(name, text !== "0");
    }
    const depth = figures.depth.at(-1), start = firstTime ?? figures.at.at(-1);
    if (depthElement !== null && depth !== null) depthElement.textContent = depth.toLocaleString("en");
    if (newMessagesNote === null) return;
    const sent = figures.sent.filter((_, index) => figures.at[index] >= start).reduce((sum, value) => sum + value, 0);
    if (firstTime === null) [firstTime, firstSent] = [start, sent];
    newMessagesNote.hidden = newMessagesNote.hidden && sent <= firstSent;
  };

  const connect = () => {
    source = new EventSource(panel.dataset.live);
    source.addEventListener("chart", (event) => {
      figures = JSON.parse(event.data);
      if (plots.length === 0) drawCharts();
      else plots.forEach((plot, index) => { plot.setData(plotData(charts[index])); describeChart(charts[index], plotElements[index]); });
      showFigures();
      panel.dataset.state = "live";
      if (endedNotice !== null) endedNotice.hidden = true;
      retries = 0;
    });
    source.addEventListener("bye", handleEnd);
    // The browser reconnects by itself after a lost connection, but not after a response that is not a stream.
    source.addEventListener("error", (event) => { if (event.target.readyState === EventSource.CLOSED) handleEnd(); });
  };

  // Keep the span in the URL, for reloads and links.
  for (const button of spanButtons) button.addEventListener("click", (event) => {
    event.preventDefault();
    spanButtons.forEach((other) => { other.ariaPressed = String(other === button); });
    const url = new URL(location.href);
    url.searchParams.set(button.name, button.value);
    history.replaceState(null, "", url);
    if (figures !== null) drawCharts();
  });

  // Browsers limit connections per host, so a hidden page closes its stream.
  document.addEventListener("visibilitychange", () => {
    source?.close();
    clearTimeout(retryTimer);
    retries = 0;
    if (!document.hidden) connect();
  });
  const redraw = () => { if (figures !== null) drawCharts(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("resize", redraw);
  if (!document.hidden) connect();
}
