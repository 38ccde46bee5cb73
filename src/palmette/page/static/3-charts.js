/** Draw a chart again whenever the room for it changes. */
function figure(draw, { label, caption } = {}) {
  const place = h("div");
  const box = h(
    "figure",
    { "aria-label": label },
    place,
    caption ? h("figcaption", null, caption) : null,
  );
  let width = 0;
  const again = () => {
    const room = Math.round(place.clientWidth);
    if (room > 0 && room !== width) {
      width = room;
      const made = draw(room);
      made.setAttribute("role", "img"); // one picture with one name; its numbers stand in a table
      for (const part of made.querySelectorAll("g[aria-label]")) {
        part.dataset.mark = part.getAttribute("aria-label");
        part.removeAttribute("aria-label"); // a group without a role may have none
      }
      place.replaceChildren(made);
    }
  };
  new ResizeObserver(again).observe(place);
  box.redraw = () => {
    width = 0;
    again();
  };
  return box;
}

/** Make the legend of a chart; a click on a line hides it. */
function legend(series, hidden, redraw) {
  if (series.length < 2) return null;
  return h(
    "div",
    { class: "legend", role: "group", "aria-label": "Lines of the chart" },
    series.map((one) => {
      const button = h(
        "button",
        {
          type: "button",
          "aria-pressed": String(!hidden.has(one.name)),
          onclick: () => {
            if (hidden.has(one.name)) hidden.delete(one.name);
            else hidden.add(one.name);
            button.setAttribute("aria-pressed", String(!hidden.has(one.name)));
            redraw();
          },
        },
        h(
          "svg",
          { width: 26, height: 10, "aria-hidden": "true" },
          h("line", {
            x1: 1,
            x2: 25,
            y1: 5,
            y2: 5,
            stroke: one.colour,
            "stroke-width": 2.5,
            "stroke-dasharray": one.dash,
          }),
        ),
        one.name,
      );
      return button;
    }),
  );
}

/** Return whole numbers to mark on an axis, about so many. */
function wholeTicks(low, high, about) {
  let step = 1;
  for (let power = 1; (high - low) / step > about; power *= 10)
    for (const by of [1, 2, 5, 10]) if ((high - low) / step > about) step = by * power;
  return Array.from(
    { length: Math.floor(high / step) - Math.ceil(low / step) + 1 },
    (_, at) => (Math.ceil(low / step) + at) * step,
  );
}

/**
 * Draw lines over rounds or bytes.
 * series: [{ name, colour, dash, points: [{ x, y, low, high }] }]; numbers are shown on demand.
 */
function lines(
  series,
  { x, y, share, label, caption, log = false, format = (value) => count(value), height = 300, key, level = [], zero = false },
) {
  const hidden = remembered(key, new Set());
  const draw = (width) => {
    const shown = series.filter((one) => !hidden.has(one.name) && one.points.length);
    const at = new Map();
    for (const one of shown)
      for (const point of one.points) {
        if (point.y === null) continue;
        if (!at.has(point.x)) at.set(point.x, { x: point.x, y: point.y, text: [] });
        const spot = at.get(point.x);
        spot.y = Math.max(spot.y, point.y);
        spot.text.push(`${one.name} ${score(point.y, share)}`);
      }
    const spots = [...at.values()].map((spot) => ({
      ...spot,
      text: `${x} ${format(spot.x)}\n${spot.text.join("\n")}`,
    }));
    const xs = spots.map((spot) => spot.x),
      about = Math.max(3, Math.floor(width / 110));
    const ticks = x === "round" && xs.length ? wholeTicks(Math.min(...xs), Math.max(...xs), about) : about;
    const marks = [Plot.gridY({ stroke: "var(--line)", strokeOpacity: 1 })];
    for (const one of level)
      marks.push(Plot.ruleY([one.y], { stroke: one.colour, strokeDasharray: one.dash || "5 4" }));
    for (const one of shown) {
      const band = one.points.filter((point) => point.low !== null && point.low !== undefined);
      if (band.length > 1)
        marks.push(Plot.areaY(band, { x: "x", y1: "low", y2: "high", fill: one.colour, fillOpacity: 0.13 }));
    }
    for (const one of shown) {
      const known = one.points.filter((point) => point.y !== null);
      marks.push(Plot.line(known, { x: "x", y: "y", stroke: one.colour, strokeWidth: 2.2, strokeDasharray: one.dash }));
      if (known.length <= 40) marks.push(Plot.dot(known, { x: "x", y: "y", fill: one.colour, r: 3 }));
    }
    marks.push(Plot.ruleX(spots, Plot.pointerX({ x: "x", stroke: "currentColor", strokeOpacity: 0.25 })));
    marks.push(Plot.tip(spots, Plot.pointerX({ x: "x", y: "y", title: "text", fontSize: 13, stroke: "var(--line)" })));
    return Plot.plot({
      width,
      height: width < 500 ? Math.min(height, 240) : height,
      marginLeft: 52,
      marginBottom: 40,
      marginTop: 24,
      marginRight: 18,
      ariaLabel: label,
      x: {
        label: x,
        labelAnchor: "center",
        labelArrow: "none",
        type: log ? "log" : "linear",
        ticks,
        tickFormat: format,
        inset: 4,
      },
      y: {
        label: y,
        labelArrow: "none",
        tickFormat: share ? (value) => `${Math.round(1000 * value) / 10}%` : undefined,
        nice: true,
        zero,
      },
      marks,
    });
  };
  const box = figure(draw, { label, caption });
  const rows = () => {
    const xs = [...new Set(series.flatMap((one) => one.points.map((point) => point.x)))].sort((a, b) => a - b);
    const maps = series.map((one) => new Map(one.points.map((point) => [point.x, point.y])));
    return xs.map((value) => [
      format(value),
      ...maps.map((map) => (map.has(value) ? score(map.get(value), share) : "–")),
    ]);
  };
  const table = numbersBehind([x, ...series.map((one) => one.name)], rows, key);
  const keys = legend(series, hidden, () => box.redraw());
  if (keys) box.prepend(keys);
  box.append(table);
  return box;
}
