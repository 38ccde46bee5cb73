const COLUMNS = 480; // of the picture of labels

/** Show how many samples of each class every device has, or how its targets lie. */
function populationCard(population, key) {
  const sizes = population.tiers[0].train;
  const total = sizes.reduce((sum, value) => sum + value, 0);
  const sorted = sizes.slice().sort((a, b) => a - b);
  const told = `${many(sizes.length, "device")} with ${count(total)} training samples: ${count(sorted[0])} on the smallest, ${count(sorted[Math.floor(sorted.length / 2)])} on the median device, ${count(sorted.at(-1))} on the largest.${population.unseen.length ? ` ${many(population.unseen.length, "device")} ${population.unseen.length === 1 ? "is" : "are"} kept out of training.` : ""}`;
  return card(
    `${key}-labels`,
    "The samples",
    note(told),
    population.labels
      ? labelPicture(population, key)
      : population.target
        ? targetPicture(population)
        : note("Labels were not written down for this kind of data, or there are too many devices to show them."),
  );
}

/** Return columns of counts by class: devices in the order of the tree, or teams where devices are too many. */
function labelColumns(population) {
  let { labels, labels_of: tier } = population;
  if (labels.length > COLUMNS && tier === 0 && population.tiers.length > 2) {
    const sums = population.tiers[1].names.map(() => labels[0].map(() => 0));
    labels.forEach((row, at) =>
      row.forEach((number, k) => {
        sums[population.tiers[0].parents[at]][k] += number;
      }),
    );
    [labels, tier] = [sums, 1];
  }
  const order = labels.map((_, at) => at);
  if (tier === 0) order.sort((a, b) => population.tiers[0].parents[a] - population.tiers[0].parents[b] || a - b);
  return {
    tier,
    columns: order.slice(0, COLUMNS).map((at) => ({
      at,
      name: population.tiers[tier].names[at],
      parent: population.tiers[tier].parents[at],
      counts: labels[at],
      sum: labels[at].reduce((a, b) => a + b, 0),
    })),
    left: Math.max(0, labels.length - COLUMNS),
  };
}

function labelPicture(population, key) {
  const { tier, columns, left } = labelColumns(population);
  const classes = columns[0].counts.length,
    most = Math.min(classes, 100);
  const draw = (width) => {
    const margin = Math.min(
      110,
      12 + 7 * Math.max(...Array.from({ length: most }, (_, at) => className(population, at).length)),
    );
    const wide = Math.max(1, Math.min(26, (width - margin) / columns.length)),
      high = Math.max(4, Math.min(18, 320 / most));
    const canvas = h("canvas", {
      role: "img",
      "aria-label": `Share of each of ${classes} classes on ${columns.length} ${tier === 0 ? "devices" : "teams"}`,
    });
    const ratio = window.devicePixelRatio || 1,
      size = [margin + wide * columns.length, high * most + 4];
    [canvas.width, canvas.height] = size.map((side) => Math.ceil(side * ratio));
    canvas.style.cssText = `width:${size[0]}px;height:${size[1]}px;max-width:100%`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const ink = getComputedStyle(document.documentElement);
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const every = Math.ceil(13 / high);
    for (let k = 0; k < most; k += every) {
      pen.fillStyle = ink.getPropertyValue("--soft");
      pen.fillText(className(population, k).slice(0, 14), margin - 6, high * (k + 0.5));
    }
    const base = ink.getPropertyValue("--PM");
    columns.forEach((column, at) => {
      const gap = at > 0 && tier === 0 && columns[at - 1].parent !== column.parent && wide > 3 ? 2 : 0;
      for (let k = 0; k < most; k += 1) {
        pen.globalAlpha = 1;
        pen.fillStyle = ink.getPropertyValue("--faint");
        pen.fillRect(
          margin + at * wide + gap,
          k * high,
          Math.max(wide - gap - (wide > 4 ? 1 : 0), 0.7),
          high - (high > 5 ? 1 : 0),
        );
        if (!column.counts[k]) continue;
        pen.globalAlpha = 0.12 + 0.88 * Math.sqrt(column.counts[k] / column.sum);
        pen.fillStyle = base;
        pen.fillRect(
          margin + at * wide + gap,
          k * high,
          Math.max(wide - gap - (wide > 4 ? 1 : 0), 0.7),
          high - (high > 5 ? 1 : 0),
        );
      }
    });
    canvas.addEventListener("mousemove", (event) => {
      const place = canvas.getBoundingClientRect(),
        by = size[0] / place.width;
      const column = columns[Math.floor(((event.clientX - place.left) * by - margin) / wide)],
        k = Math.floor(((event.clientY - place.top) * by) / high);
      canvas.title =
        column && k < most
          ? `${column.name}, ${className(population, k)}: ${many(column.counts[k], "sample")} of ${count(column.sum)}`
          : "";
    });
    return canvas;
  };
  const left_out = [
    left ? `${count(left)} more are left out.` : "",
    classes > most ? `${classes - most} more classes are left out.` : "",
  ].join(" ");
  const box = figure(draw, {
    label: "Labels",
    caption: `Every column is a ${tier === 0 ? "device, in the order of the teams" : "team"}, every row a class; the stronger the colour, the larger its share of the training samples. ${left_out}`,
  });
  box.append(
    numbersBehind(
      [tier === 0 ? "device" : "team", ...Array.from({ length: most }, (_, k) => className(population, k))],
      () => columns.map((column) => [column.name, ...column.counts.slice(0, most).map(count)]),
      `${key}-labels`,
    ),
  );
  return box;
}

function targetPicture(population) {
  const rows = population.target
    .map((five, at) => ({
      name: population.tiers[0].names[at],
      at,
      low: five[0],
      q1: five[1],
      middle: five[2],
      q3: five[3],
      high: five[4],
    }))
    .filter((row) => row.middle !== null);
  const left = rows.length - COLUMNS;
  rows.splice(COLUMNS);
  const draw = (width) =>
    Plot.plot({
      width,
      height: 260,
      marginLeft: 52,
      ariaLabel: "Targets of every device",
      x: { label: "device, in the order of the tree", labelAnchor: "center", labelArrow: "none", ticks: 0 },
      y: { label: "target", labelArrow: "none", grid: true },
      marks: [
        Plot.link(rows, { x1: "at", x2: "at", y1: "low", y2: "high", stroke: "var(--soft)", strokeOpacity: 0.5 }),
        Plot.link(rows, {
          x1: "at",
          x2: "at",
          y1: "q1",
          y2: "q3",
          stroke: "var(--PM)",
          strokeWidth: Math.max(1, Math.min(7, (width - 80) / rows.length - 1)),
        }),
        Plot.dot(rows, {
          x: "at",
          y: "middle",
          r: 2,
          fill: "currentColor",
          title: (row) => `${row.name}: median ${row.middle}`,
          tip: true,
        }),
      ],
    });
  return figure(draw, {
    label: "Targets",
    caption: `Training targets of every device: the thin line from the least to the largest, the thick one the middle half, the dot the median.${left > 0 ? ` ${count(left)} more devices are left out.` : ""}`,
  });
}
