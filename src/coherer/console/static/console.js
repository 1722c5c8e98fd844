// What htmx does not do: charts, checkboxes that select all rows, and a notice on lost connections.
(() => {
  "use strict";

  const REFRESH_MS = 10000;
  const AGAIN_MS = 2000;
  const HEIGHT = 168;
  const plots = new Map();

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const options = (width, lines) => ({
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1)] } },
    axes: [
      { stroke: color("--soft"), grid: { show: false }, ticks: { stroke: color("--line"), width: 1 }, size: 32,
        values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toISOString().slice(11, 16)) },
      { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, size: 52,
        values: (_, ticks) => ticks.map((one) => Intl.NumberFormat("en", { notation: "compact" }).format(one)) },
    ],
    series: [{}].concat(lines.map((line, index) => ({
      label: line.label, stroke: color(`--c${index % 8}`), width: 1.75, spanGaps: false,
      points: { show: line.values.length < 3 },
    }))),
  });

  // An unknown value is null, and uPlot leaves a gap there.
  const table = (body) => {
    const lines = body.lines.filter((line) => line.times.length);
    const joined = lines.length ? uPlot.join(lines.map((line) => [line.times, line.values])) : [[]];
    return { lines, joined };
  };

  const draw = async (box) => {
    let body;
    try {
      const answer = await fetch(box.dataset.chart, { headers: { "HX-Request": "true" } });
      if (!answer.ok) return;
      body = await answer.json();
    } catch {
      return; // the next refresh tries again
    }
    const { lines, joined } = table(body);
    if (!lines.length || !box.isConnected) return;
    const known = plots.get(box);
    const scale = { min: body.begin, max: body.end };
    if (known && known.lines === lines.length) {
      known.plot.setData(joined, false);
      known.plot.setScale("x", scale);
      known.plot.setScale("y", { min: 0, max: 1 });
      return;
    }
    if (known) known.plot.destroy();
    box.replaceChildren();
    const plot = new uPlot(options(box.clientWidth, lines), joined, box);
    plot.setScale("x", scale);
    plots.set(box, { plot, lines: lines.length });
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", box.closest("figure").querySelector("figcaption").textContent);
  };

  const drawAll = () => {
    for (const [box, known] of plots) {
      if (!box.isConnected) { known.plot.destroy(); plots.delete(box); }
    }
    document.querySelectorAll("[data-chart]").forEach((box) => { void draw(box); });
  };

  const redraw = () => {
    for (const [box, known] of plots) { known.plot.destroy(); plots.delete(box); box.replaceChildren(); }
    drawAll();
  };

  document.addEventListener("DOMContentLoaded", () => {
    drawAll();
    setInterval(() => { if (!document.hidden) drawAll(); }, REFRESH_MS);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return;
      width = window.innerWidth;
      for (const [box, known] of plots) known.plot.setSize({ width: box.clientWidth, height: HEIGHT });
    });
  });

  document.addEventListener("change", (event) => {
    const name = event.target.dataset ? event.target.dataset.all : undefined;
    if (!name) return;
    document.querySelectorAll(`input[type="checkbox"][name="${name}"]`).forEach((box) => { box.checked = event.target.checked; });
  });

  // A double click sends a form once.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (((event.submitter && event.submitter.formMethod) || form.method) !== "post") return;
    if (event.timeStamp - Number(form.dataset.sent || -Infinity) < AGAIN_MS) event.preventDefault();
    else form.dataset.sent = String(event.timeStamp);
  });

  // A hidden page sends no requests.
  document.addEventListener("htmx:before:request", (event) => { if (document.hidden) event.preventDefault(); });

  const say = (text) => {
    const place = document.getElementById("connection");
    if (place && place.textContent !== text) place.textContent = text;
  };
  document.addEventListener("htmx:error", () => say("The console does not answer. What you see may be out of date."));
  const trouble = { 404: "This does not exist any more.", 502: "The cluster does not answer." };
  document.addEventListener("htmx:after:request", (event) => {
    const status = event.detail.ctx.response.status;
    const why = trouble[status] || "The page cannot be refreshed: reload it to see why.";
    say(status >= 400 ? `${why} What you see may be out of date.` : "");
  });
})();
