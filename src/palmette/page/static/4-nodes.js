const CELLS = 4000; // devices of one strip

/** Return for every node of every tier the numbers of its children in the tier below. */
function childrenOf(population) {
  if (!population.children) {
    const made = population.tiers.map((tier) => tier.names.map(() => []));
    for (let tier = 0; tier < population.tiers.length - 1; tier += 1)
      population.tiers[tier].parents.forEach((parent, at) => made[tier + 1][parent].push(at));
    Object.defineProperty(population, "children", { value: made });
  }
  return population.children;
}

/** Return the devices below a node. */
function devicesBelow(population, tier, at) {
  if (tier === 0) return [at];
  const children = childrenOf(population)[tier][at];
  return tier === 1 ? children : children.flatMap((child) => devicesBelow(population, tier - 1, child));
}

/** Return the names of the nodes above a device, from its team up to below the server. */
function above(population, device) {
  const names = [];
  for (let tier = 0, at = device; tier < population.tiers.length - 2; tier += 1) {
    at = population.tiers[tier].parents[at];
    names.push(population.tiers[tier + 1].names[at]);
  }
  return names;
}

/** Draw devices as coloured cells; a click on one picks it. */
function strip(run, population, devices, kind, scale, pick) {
  const values = run.nodes[kind][0];
  const shown = devices.slice(0, CELLS);
  const size = shown.length <= 20 ? 24 : shown.length <= 120 ? 14 : shown.length <= 500 ? 9 : 6;
  const canvas = h("canvas", {
    class: "strip",
    role: "img",
    "aria-label": `${many(devices.length, "device")}, coloured by ${run.metric}`,
  });
  const left = devices.length - shown.length;
  const box = h("div", { class: "stripbox" }, canvas, left > 0 ? note(`${count(left)} more are not drawn here.`) : null);
  let columns = 1;
  const deviceAt = (event) => {
    const place = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - place.left) / (size + 1));
    return column < columns
      ? shown[column + columns * Math.floor((event.clientY - place.top) / (size + 1))]
      : undefined;
  };
  canvas.addEventListener("mousemove", (event) => {
    const device = deviceAt(event);
    canvas.title =
      device === undefined ? "" : `${population.tiers[0].names[device]}: ${score(values[device], run.share)}`;
  });
  canvas.addEventListener("click", (event) => {
    const device = deviceAt(event);
    if (device !== undefined) pick(device);
  });
  const draw = () => {
    const room = Math.max(size + 1, box.clientWidth);
    columns = Math.max(1, Math.min(shown.length, Math.floor(room / (size + 1))));
    const rows = Math.ceil(shown.length / columns),
      ratio = window.devicePixelRatio || 1;
    canvas.width = columns * (size + 1) * ratio;
    canvas.height = rows * (size + 1) * ratio;
    canvas.style.width = `${columns * (size + 1)}px`;
    canvas.style.height = `${rows * (size + 1)}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    shown.forEach((device, at) => {
      const value = values[device];
      pen.fillStyle = value === null ? "#8885" : scale.colour(value).fill;
      pen.fillRect((at % columns) * (size + 1), Math.floor(at / columns) * (size + 1), size, size);
    });
  };
  new ResizeObserver(draw).observe(box);
  return box;
}

/** Name a class of labels. */
const className = (population, at) => (population.classes ? String(population.classes[at]) : `class ${at}`);
