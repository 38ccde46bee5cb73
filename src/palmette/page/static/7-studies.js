/** Show all methods on all populations in one table: which to use where. */
function overviewCard(data) {
  const share = data.groups[0].share,
    lower = data.groups[0].lower;
  const rows = [];
  for (const group of data.groups)
    for (const one of group.methods)
      for (const kind of Object.keys(one.models))
        if (!rows.some((row) => row.method === one.method && row.kind === kind))
          rows.push({ method: one.method, kind });
  const cell = (group, row) => group.methods.find((one) => one.method === row.method)?.models[row.kind]?.mean ?? null;
  const scales = data.groups.map((group) =>
    scaleOf(
      rows.map((row) => cell(group, row)),
      lower,
    ),
  );
  const level = data.groups.map((group) => new Set(group.level.map(([method, kind]) => `${method} ${kind}`)));
  return card(
    "overview",
    "Which method on which population",
    note(
      "Test accuracy, mean over the seeds. Colours go from the worst to the best of each column; a star marks the best of each population and what is not clearly worse.",
    ),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "group", "aria-label": "All methods on all populations" },
      h(
        "table",
        { class: "heat" },
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            h("th", { scope: "col", class: "text" }, "models"),
            data.groups.map((group) => h("th", { scope: "col" }, group.title)),
          ),
        ),
        h(
          "tbody",
          null,
          rows.map((row) =>
            h(
              "tr",
              null,
              h("th", { scope: "row", class: "text" }, `${row.method}, ${row.kind}`),
              data.groups.map((group, at) => {
                const value = cell(group, row),
                  { fill, ink } = scales[at].colour(value);
                return h(
                  "td",
                  { style: `background:${fill};color:${ink}` },
                  `${score(value, share)}${level[at].has(`${row.method} ${row.kind}`) ? " ★" : ""}`,
                );
              }),
            ),
          ),
        ),
      ),
    ),
  );
}

/** Show the settings that a sweep tried: two of them as a map of colours, others as a table. */
function gridCard(data) {
  const { keys, by, points, chosen } = data.grid,
    group = data.groups[0],
    share = group.share;
  const scale = scaleOf(
    points.map((one) => one.mean),
    group.lower,
  );
  const told = note(
    `${by} on samples kept apart for choosing, never on test samples.${chosen
      .map(
        (one) =>
          ` Seed ${one.seed} chose ${Object.entries(one.settings)
            .map(([key, value]) => `${key}=${value}`)
            .join(", ")}.`,
      )
      .join("")}`,
  );
  if (keys.length === 2) {
    const values = keys.map((key) => [...new Set(points.map((one) => one.settings[key]))]);
    return card(
      "grid",
      "Settings that were tried",
      told,
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "group", "aria-label": "Settings" },
        h(
          "table",
          { class: "heat" },
          h(
            "thead",
            null,
            h(
              "tr",
              null,
              h("th", { class: "text", scope: "col" }, `${keys[0]} \\ ${keys[1]}`),
              values[1].map((value) => h("th", { scope: "col" }, String(value))),
            ),
          ),
          h(
            "tbody",
            null,
            values[0].map((row) =>
              h(
                "tr",
                null,
                h("th", { scope: "row", class: "text" }, String(row)),
                values[1].map((column) => {
                  const one = points.find(
                    (point) => point.settings[keys[0]] === row && point.settings[keys[1]] === column,
                  );
                  const { fill, ink } = scale.colour(one?.mean ?? null);
                  return h(
                    "td",
                    { style: `background:${fill};color:${ink}` },
                    one ? score(one.mean, share) : "diverged",
                  );
                }),
              ),
            ),
          ),
        ),
      ),
    );
  }
  return card(
    "grid",
    "Settings that were tried",
    told,
    sortable(
      [
        ...keys.map((key) => ({
          head: key,
          value: (one) => one.settings[key],
          show: (one) => String(one.settings[key]),
        })),
        { head: by, value: (one) => one.mean, show: (one) => chip(one.mean, scale, share) },
      ],
      points,
      { key: "grid-table", sort: keys.length, descending: !group.lower },
    ),
  );
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
