const CHOICES = 12; // that are told above the settings that were tried

/** Show all methods on all populations in one table: which to use where. */
function overviewCard(data) {
  const rows = [];
  for (const group of data.groups)
    for (const one of group.methods)
      for (const kind of Object.keys(one.models))
        if (!rows.some((row) => row.method === one.method && row.kind === kind))
          rows.push({ method: one.method, kind });
  const value = (group, row) => group.methods.find((one) => one.method === row.method)?.models[row.kind]?.mean ?? null;
  const scales = data.groups.map((group) =>
    scaleOf(
      rows.map((row) => value(group, row)),
      group.lower,
    ),
  );
  const level = data.groups.map((group) => new Set(group.level.map(([method, kind]) => `${method} ${kind}`)));
  const cells = (row) =>
    data.groups.map((group, at) => {
      const star = level[at].has(`${row.method} ${row.kind}`) ? " ★" : "";
      return { text: `${score(value(group, row), group.share)}${star}`, colour: scales[at].colour(value(group, row)) };
    });
  const metrics = [...new Set(data.groups.map((group) => group.metric))].join(" or ");
  const told = `Test ${metrics}, mean over the seeds. Colours go from the worst to the best of each column; a star marks the best of each population and what is not clearly worse.`;
  const lines = rows.map((row) => [`${row.method}, ${row.kind}`, cells(row)]);
  const names = data.groups.map((group) =>
    metrics === group.metric ? group.title : `${group.title}: ${group.metric}`,
  );
  const table = heatTable("All methods on all populations", "models", names, lines);
  return card("overview", "Which method on which population", note(told), table);
}

/** Show the settings that were tried: two of a grid as a map of colours, others as a table. */
function gridCard(data) {
  const { keys, by, points, chosen, missing, map } = data.grid;
  const { share, lower } = data.groups[0];
  const scale = scaleOf(
    points.map((one) => one.mean),
    lower,
  );
  const settings = (one) =>
    Object.entries(one.settings)
      .map(([key, value]) => `${key}=${value}`)
      .join(", ");
  const told = chosen.map(
    (one) => ` ${one.method ? `${one.method}, seed` : "Seed"} ${one.seed} chose ${settings(one)}.`,
  );
  const head = note(`${by} on samples kept apart for choosing, never on test samples.${told.slice(0, CHOICES).join("")}`);
  const shown = (one) => (one?.mean === null || one === undefined ? missing : score(one.mean, share));
  const named = ["method", "seed"].filter((name) => points.some((one) => one[name] !== undefined));
  const columns = [
    ...named.map((name) => ({ head: name, text: true, value: (one) => one[name], show: (one) => String(one[name]) })),
    ...keys.map((key) => ({
      head: key,
      value: (one) => one.settings[key],
      show: (one) => String(one.settings[key] ?? "–"),
    })),
    {
      head: by,
      value: (one) => one.mean,
      show: (one) => (one.mean === null ? missing : chip(one.mean, scale, share)),
    },
  ];
  const [first, second] = keys.map((key) => [...new Set(points.map((one) => one.settings[key]))]);
  const cell = (row, column) => {
    const one = points.find((point) => point.settings[keys[0]] === row && point.settings[keys[1]] === column);
    return { text: shown(one), colour: scale.colour(one?.mean ?? null) };
  };
  const table = map
    ? heatTable(
        "Settings",
        `${keys[0]} \\ ${keys[1]}`,
        second.map(String),
        first.map((row) => [String(row), second.map((column) => cell(row, column))]),
      )
    : sortable(columns, points, { key: "grid-table", sort: columns.length - 1, descending: !lower });
  return card("grid", "Settings that were tried", head, table);
}

/** Show how far every run of a study is. */
function progressCard(data) {
  const { runs, finished, command } = data.progress;
  return card(
    "progress",
    `Progress: ${finished} of ${many(runs.length, "run")} finished`,
    command ? h("pre", null, h("code", null, command)) : null,
    sortable(
      [
        { head: "method", text: true, value: (one) => one.method },
        { head: "seed", value: (one) => one.seed },
        {
          head: "rounds",
          value: (one) => one.done / one.rounds,
          show: (one) => `${count(one.done)} of ${count(one.rounds)}`,
        },
        {
          head: "",
          text: true,
          value: (one) => one.done / one.rounds,
          show: (one) =>
            h("progress", { max: one.rounds, value: one.done, "aria-label": `${one.done} of ${one.rounds} rounds` }),
        },
        {
          head: "state",
          text: true,
          value: (one) => one.state,
          show: (one) => h("span", { class: "state" }, one.state),
        },
      ],
      runs,
      { key: "progress-table", most: 40 },
    ),
  );
}
