const KIND_WORDS = { PM: "device’s own model", TM: "team’s model", GM: "global model" };

/** Make all sections about one run. */
function runCards(run, population, key) {
  const made = [];
  if (run.models.length) made.push(curvesCard(run, key));
  const nodes = run.nodes && population && run.models.some((one) => run.nodes[one.kind][0]);
  if (nodes) made.push(new TreeView(run, population, key).card(), devicesCard(run, population, key));
  if (nodes && population.tiers.length > 2) made.push(teamsCard(run, population, key));
  if (population) made.push(populationCard(population, key));
  if (Object.keys(run.distances).length) made.push(distanceCard(run, key));
  if (run.traffic.links.length) made.push(trafficCard(run, key));
  if (run.absences) made.push(absentCard(run, key));
  if (run.measures.length || Object.keys(run.reports).length) made.push(measuresCard(run, key));
  made.push(settingsCard(run, key), againCard(run, key));
  return made;
}

function curvesCard(run, key) {
  const series = run.models.map(({ kind }) => {
    const curve = run.curves.kinds[kind];
    return {
      name: kind,
      colour: colourOf(kind),
      dash: { TM: "7 3", GM: "2 3" }[kind],
      points: curve.rounds.map((x, at) => ({ x, y: curve.mean[at], low: curve.low[at], high: curve.high[at] })),
    };
  });
  const trained = run.on.endsWith("trained") ? " Devices that are kept out of training do not count." : "";
  const sampled = run.sampled
    ? " Lines and the best are of a sample of the devices, the same in every round; the last numbers of a finished run are of all."
    : "";
  const who = trained + sampled;
  return card(
    `${key}-curves`,
    `Test ${run.metric} over the rounds`,
    lines(series, {
      x: "round",
      y: `test ${run.metric}`,
      share: run.share,
      key: `${key}-curve-lines`,
      label: `Test ${run.metric} of every kind of model over the rounds`,
      caption: `The line is the mean over all test samples, after each round; the band holds ${run.curves.band}.${who}`,
    }),
    sortable(
      [
        {
          head: "models",
          text: true,
          value: (one) => one.kind,
          show: (one) => `${one.kind}, the ${KIND_WORDS[one.kind] || one.words}`,
        },
        { head: "last", value: (one) => one.last, show: (one) => score(one.last, run.share) },
        { head: run.sampled ? "best (sampled)" : "best", value: (one) => one.best, show: (one) => score(one.best, run.share) },
        { head: "in round", value: (one) => one.best_round, show: (one) => count(one.best_round) },
        { head: "mean of\ndevices", value: (one) => one.devices, show: (one) => score(one.devices, run.share) },
        { head: "spread of\ndevices", value: (one) => one.spread, show: (one) => score(one.spread, run.share) },
        { head: "worst\ntenth", value: (one) => one.worst, show: (one) => score(one.worst, run.share) },
        ...(run.models.some((one) => one.unseen !== null)
          ? [{ head: "unseen\ndevices", value: (one) => one.unseen, show: (one) => score(one.unseen, run.share) }]
          : []),
      ],
      run.models,
      {
        key: `${key}-models`,
        caption:
          "“Last” and “best” weigh every test sample the same, the other columns every device. “Best” is the best round on test samples unless the run held out training samples to choose it.",
      },
    ),
  );
}

function distanceCard(run, key) {
  const kinds = run.models.map((one) => one.kind);
  const names = Object.keys(run.distances).map((kind) => [kind, kinds[kinds.indexOf(kind) + 1]]);
  const series = names.map(([kind, over]) => ({
    name: `${kind} to ${over || "the model above"}`,
    colour: colourOf(kind),
    dash: { TM: "7 3" }[kind],
    points: run.distances[kind].rounds.map((x, at) => ({ x, y: run.distances[kind].mean[at] })),
  }));
  return card(
    `${key}-distance`,
    "How personal the models are",
    lines(series, {
      x: "round",
      y: series.length > 1 ? "distance" : `distance, ${series[0].name}`,
      zero: true,
      share: false,
      height: 240,
      key: `${key}-distance-lines`,
      label: "Distance between models of neighbouring tiers over the rounds",
      caption:
        "Euclidean distance of a model from the one above it in the tree, on average over the nodes: 0 would mean that both are the same model.",
    }),
  );
}

function trafficCard(run, key) {
  const missing = (link) => Object.values(link.missing || {}).reduce((sum, number) => sum + number, 0);
  const upper = run.traffic.upper,
    clock = run.traffic.clock;
  const some = upper.bytes.at(-1) > 0;
  const panels = [];
  if (some)
    panels.push(costPanel(run, upper.rounds, upper.bytes, `${key}-bytes-lines`, "bytes on the link to the server", bytes));
  if (clock) {
    const { length, format } = inOneUnit(clock.seconds);
    const time = clock.seconds.map((value) => value === null ? null : value / length);
    panels.push(costPanel(run, clock.rounds, time, `${key}-time-lines`, CLOCK, format));
  }
  const shown = panels.filter((panel) => panel !== null);
  return card(
    `${key}-traffic`,
    "What it cost",
    sortable(
      [
        { head: "link", text: true, value: (link) => link.name },
        { head: "exchanges", value: (link) => link.exchanges, show: (link) => count(link.exchanges) },
        { head: "up", value: (link) => link.bytes_up, show: (link) => bytes(link.bytes_up) },
        { head: "down", value: (link) => link.bytes_down, show: (link) => bytes(link.bytes_down) },
        ...(run.absences
          ? [{ head: "missing\nreplies", value: missing, show: (link) => count(missing(link)) }]
          : []),
      ],
      run.traffic.links,
      {
        key: `${key}-links`,
        caption:
          "An exchange is one question of a parent to its children with their answers. Bytes are models and what goes with them, as encoded; evaluation is not counted.",
      },
    ),
    shown.length > 1 ? h("div", { class: "columns" }, shown) : shown,
    some ? null : note("Nothing went over the link to the server."),
  );
}

/** Draw the metric of every kind of model against what it cost by each round; nothing where there is one point only. */
function costPanel(run, rounds, cost, key, what, format) {
  const spent = new Map(rounds.map((round, at) => [round, cost[at]]));
  const series = run.models.map(({ kind }) => ({
    name: kind,
    colour: colourOf(kind),
    dash: { TM: "7 3", GM: "2 3" }[kind],
    points: run.curves.kinds[kind].rounds
      .map((round, at) => ({ x: spent.get(round) ?? null, y: run.curves.kinds[kind].mean[at] }))
      .filter((point) => point.x !== null),
  }));
  if (!series.some((one) => one.points.length > 1)) return null;
  return h(
    "div",
    null,
    h("h3", null, `${capital(run.metric)} for ${what}`),
    lines(series, {
      x: what,
      y: `test ${run.metric}`,
      share: run.share,
      height: 240,
      format,
      key,
      label: `Test ${run.metric} against ${what}`,
    }),
  );
}

function measuresCard(run, key) {
  const kinds = run.models.map((one) => one.kind);
  const rows = run.measures.map((one) => [
    one.metric,
    ...kinds.map((kind) =>
      one.models[kind] ? `${score(one.models[kind][0], false)} (${score(one.models[kind][1], false)})` : "–",
    ),
  ]);
  const told = Object.entries(run.reports).map(([name, by]) => [
    name.replaceAll("_", " "),
    ...kinds.map((kind) => (kind in by ? score(by[kind], false) : "–")),
  ]);
  return card(
    `${key}-measures`,
    "What else was measured",
    rows.length
      ? plainTable(["metric", ...kinds], rows, "On all test samples together; in brackets the mean over devices.")
      : null,
    told.length ? plainTable([`${run.algorithm} reports`, ...kinds], told) : null,
  );
}
