/** Return a line of numbers for each device. */
function deviceRows(run, population) {
  const kinds = run.models.map((one) => one.kind).filter((kind) => run.nodes[kind][0]);
  const rows = population.tiers[0].names.map((name, at) => ({
    at,
    name,
    team: above(population, at)[0],
    train: population.tiers[0].train[at],
    values: Object.fromEntries(kinds.map((kind) => [kind, run.nodes[kind][0][at]])),
  }));
  return { kinds, rows };
}

function devicesCard(run, population, key) {
  const { kinds, rows } = deviceRows(run, population),
    unseen = new Set(population.unseen);
  const trained = rows.filter((row) => !unseen.has(row.at) && row.values[kinds[0]] !== null);
  const sign = run.lower ? -1 : 1;
  const worst = trained
    .slice()
    .sort((a, b) => sign * (a.values[kinds[0]] - b.values[kinds[0]]))
    .slice(0, 10);
  const scale = scaleOf(
    trained.map((row) => row.values[kinds[0]]),
    run.lower,
  );
  const groups = run.models
    .filter((one) => kinds.includes(one.kind))
    .map((one) => ({
      name: one.kind,
      title: `${one.kind}: ${one.words}`,
      colour: colourOf(one.kind),
      mean: one.devices,
      values: trained.map((row) => row.values[one.kind]),
    }));
  const teams = population.tiers.length > 2;
  return card(
    `${key}-devices`,
    "The devices",
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        null,
        h("h3", null, "How many devices fare how well"),
        distribution(groups, {
          share: run.share,
          key: `${key}-distribution`,
          x: `test ${run.metric} of a device`,
          label: `Distribution of test ${run.metric} over the devices`,
          caption: "The height is the number of devices; the dashed line is their mean.",
        }),
      ),
      h(
        "div",
        null,
        h("h3", null, `${trained.length > 10 ? "The ten that fare worst" : "From the worst to the best"}, by ${kinds[0]}`),
        sortable(
          [
            {
              head: "device",
              text: true,
              value: (row) => row.name,
              show: (row) =>
                h("button", { type: "button", class: "link", onclick: () => pickers.get(key)(row.at) }, row.name),
            },
            ...(teams ? [{ head: "team", text: true, value: (row) => row.team }] : []),
            ...kinds.map((kind) => ({
              head: kind,
              value: (row) => row.values[kind],
              show: (row) =>
                kind === kinds[0] ? chip(row.values[kind], scale, run.share) : score(row.values[kind], run.share),
            })),
            { head: "training\nsamples", value: (row) => row.train, show: (row) => count(row.train) },
          ],
          worst,
          { key: `${key}-worst` },
        ),
      ),
    ),
  );
}

function teamsCard(run, population, key) {
  const kinds = run.models.map((one) => one.kind).filter((kind) => run.nodes[kind][1]);
  if (!kinds.length) return null;
  const own = run.nodes[kinds[0]][0],
    tier = population.tiers[1],
    unseen = new Set(population.unseen);
  const rows = tier.names.map((name, at) => {
    const devices = childrenOf(population)[1][at].filter((device) => !unseen.has(device) && own[device] !== null);
    const worst = devices.reduce(
      (found, device) =>
        found === null || (run.lower ? own[device] > own[found] : own[device] < own[found]) ? device : found,
      null,
    );
    return {
      name,
      devices: childrenOf(population)[1][at].length,
      train: tier.train[at],
      values: Object.fromEntries(kinds.map((kind) => [kind, run.nodes[kind][1][at]])),
      worst,
    };
  });
  return card(
    `${key}-teams`,
    "Team by team",
    sortable(
      [
        { head: "team", text: true, value: (row) => row.name },
        { head: "devices", value: (row) => row.devices, show: (row) => count(row.devices) },
        { head: "training\nsamples", value: (row) => row.train, show: (row) => count(row.train) },
        ...kinds.map((kind) => ({
          head: kind,
          value: (row) => row.values[kind],
          show: (row) => score(row.values[kind], run.share),
        })),
        {
          head: "worst device",
          text: true,
          value: (row) => (row.worst === null ? null : own[row.worst]),
          show: (row) =>
            row.worst === null ? "–" : `${population.tiers[0].names[row.worst]} (${score(own[row.worst], run.share)})`,
        },
      ],
      rows,
      { key: `${key}-team-table`, most: 50, caption: `Test ${run.metric} over the test samples of each team.` },
    ),
  );
}

/** Show one device: its numbers, its own curve and its labels. */
function devicePanel(run, population, device, kinds, scale) {
  const tier = population.tiers[0],
    over = above(population, device);
  const own = run.nodes;
  const series = run.devices
    ? kinds
        .filter((kind) => run.devices.values[kind])
        .map((kind) => ({
          name: kind,
          colour: colourOf(kind),
          points: run.devices.rounds.map((x, at) => ({ x, y: run.devices.values[kind][device][at] })),
        }))
    : [];
  const facts = [`${count(tier.train[device])} training samples, ${count(tier.test[device])} test samples`];
  if (over.length) facts.unshift(`in ${over.join(", in ")}`);
  if (population.unseen.includes(device)) facts.push("kept out of training");
  return h(
    "div",
    { class: "panel" },
    h("h3", { style: "margin-top:0" }, tier.names[device]),
    h("p", { class: "note" }, `${facts.join("; ")}.`),
    h(
      "p",
      null,
      kinds.map((kind) => [`${kind} `, chip(own[kind][0][device], scale, run.share), "  "]),
    ),
    series.length
      ? lines(series, {
          x: "round",
          y: `test ${run.metric}`,
          share: run.share,
          height: 210,
          key: "device-lines",
          label: `${run.metric} of ${tier.names[device]} over the rounds`,
          caption: run.devices.thinned ? "Some rounds are left out so that the page stays small." : null,
        })
      : note("Single devices of this run were written down after the last round only, so there is no curve."),
    population.labels_of === 0 && population.labels
      ? h(
          "p",
          { class: "note" },
          `Training samples by class: ${population.labels[device]
            .map((number, at) => [number, at])
            .filter(([number]) => number)
            .map(([number, at]) => `${className(population, at)}: ${count(number)}`)
            .join(", ")}.`,
        )
      : null,
  );
}
