/** Count values in bins of equal width between two ends; the last bin holds its upper end. */
function binned(values, low, high, bins) {
  const step = (high - low || 1e-9) / bins;
  const made = Array.from({ length: bins }, (_, at) => ({
    low: low + at * step,
    high: low + (at + 1) * step,
    number: 0,
  }));
  for (const value of values) made[Math.min(bins - 1, Math.floor((value - low) / step))].number += 1;
  return made.filter((bin) => bin.number);
}

/** Draw how the devices are distributed, a row for each kind of model. */
function distribution(groups, { share, label, caption, x, key }) {
  const values = groups.map((group) => group.values.filter((value) => value !== null));
  const low = values.flat().reduce((a, b) => Math.min(a, b), Infinity),
    high = values.flat().reduce((a, b) => Math.max(a, b), -Infinity);
  const bins = groups.flatMap((group, at) =>
    binned(values[at], low, high, 24).map((bin) => ({ ...bin, name: group.name, colour: group.colour })),
  );
  const draw = (width) =>
    Plot.plot({
      width,
      height: 70 + 92 * groups.length,
      marginLeft: 48,
      marginRight: 18,
      marginTop: 8,
      marginBottom: 40,
      ariaLabel: label,
      color: { type: "identity" },
      fy: { domain: groups.map((group) => group.name), axis: null, padding: 0.22 },
      x: {
        label: x,
        labelAnchor: "center",
        labelArrow: "none",
        tickFormat: share ? (value) => `${Math.round(1000 * value) / 10}%` : undefined,
      },
      y: { label: null, ticks: 3, grid: false },
      marks: [
        Plot.rectY(bins, {
          x1: "low",
          x2: "high",
          y: "number",
          fy: "name",
          fill: "colour",
          inset: 0.5,
          title: (bin) => `${many(bin.number, "device")}: ${score(bin.low, share)} to ${score(bin.high, share)}`,
          tip: true,
        }),
        Plot.ruleY([0], { stroke: "var(--soft)" }),
        Plot.ruleX(
          groups.filter((group) => group.mean !== null),
          { x: "mean", fy: "name", stroke: "currentColor", strokeWidth: 1.5, strokeDasharray: "3 3" },
        ),
        // The name of a row stands where its bars do not.
        ...["left", "right"].map((side) =>
          Plot.text(
            groups.filter((group) => group.mean > (low + high) / 2 === (side === "left")),
            {
              fy: "name",
              text: "title",
              frameAnchor: `top-${side}`,
              dy: -2,
              dx: side === "left" ? 4 : -4,
              fontWeight: 600,
            },
          ),
        ),
      ],
    });
  const box = figure(draw, { label, caption });
  box.append(
    numbersBehind(
      ["models", "from", "to", "devices"],
      () => bins.map((bin) => [bin.name, score(bin.low, share), score(bin.high, share), count(bin.number)]),
      key,
    ),
  );
  return box;
}

/** Draw mean differences with their intervals. */
function intervals(rows, { share, label, caption, x }) {
  const scaled = rows.map((row) => ({
    ...row,
    mean: share ? 100 * row.mean : row.mean,
    low: row.low === null ? null : (share ? 100 : 1) * row.low,
    high: row.high === null ? null : (share ? 100 : 1) * row.high,
  }));
  const margin = Math.min(190, 24 + 7.2 * Math.max(...rows.map((row) => row.name.length)));
  const draw = (width) =>
    Plot.plot({
      width,
      height: 60 + 34 * rows.length,
      marginLeft: margin,
      marginRight: 24,
      marginBottom: 40,
      ariaLabel: label,
      x: { label: x, labelAnchor: "center", labelArrow: "none", grid: true, nice: true },
      y: {
        label: null,
        domain: rows.map((row) => row.name),
        tickSize: 0,
        tickFormat: (name) => (name.length > 24 ? `${name.slice(0, 23)}…` : name),
      },
      marks: [
        Plot.ruleX([0], { stroke: "currentColor" }),
        Plot.link(
          scaled.filter((row) => row.low !== null),
          {
            x1: "low",
            x2: "high",
            y1: "name",
            y2: "name",
            stroke: "colour",
            strokeWidth: 4,
            strokeLinecap: "round",
            strokeOpacity: 0.55,
          },
        ),
        Plot.dot(scaled, {
          x: "mean",
          y: "name",
          fill: "colour",
          r: 5.5,
          title: (row) =>
            `${row.name}: ${row.mean.toFixed(2)}${row.low === null ? "" : `, from ${row.low.toFixed(2)} to ${row.high.toFixed(2)}`}`,
          tip: true,
        }),
      ],
      color: { type: "identity" },
    });
  return figure(draw, { label, caption });
}

/** Draw how many devices gain or lose how much. */
function gains(found, { share, label, caption, x }) {
  const by = share ? 100 : 1;
  const bins = found.counts.map((number, at) => ({
    low: by * found.edges[at],
    high: by * found.edges[at + 1],
    number,
    colour: at < found.counts.length / 2 ? "var(--bad)" : "var(--m0)",
  }));
  const side = (bins[0].high - bins[0].low) / 6;
  if (found.zero) bins.push({ low: -side, high: side, number: found.zero, colour: "var(--soft)" });
  const draw = (width) =>
    Plot.plot({
      width,
      height: 230,
      marginLeft: 44,
      marginBottom: 40,
      ariaLabel: label,
      color: { type: "identity" },
      x: { label: x, labelAnchor: "center", labelArrow: "none" },
      y: { label: "devices", labelArrow: "none", ticks: 4 },
      marks: [
        Plot.rectY(bins, {
          x1: "low",
          x2: "high",
          y: "number",
          fill: "colour",
          inset: 0.5,
          title: (bin) => `${many(bin.number, "device")}: ${bin.low.toFixed(1)} to ${bin.high.toFixed(1)}`,
          tip: true,
        }),
        Plot.ruleX([0], { stroke: "currentColor" }),
        Plot.ruleY([0], { stroke: "var(--soft)" }),
      ],
    });
  return figure(draw, { label, caption });
}
