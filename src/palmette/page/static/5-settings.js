function settingsCard(run, key) {
  const theorem = run.theorem;
  const conditions = theorem.conditions
    ? [
        h(
          "p",
          { class: "note" },
          theorem.holds
            ? `All conditions of ${theorem.theorem} hold.`
            : `${many(theorem.conditions.filter((one) => !one.holds).length, "condition")} of ${theorem.theorem} ${theorem.conditions.filter((one) => !one.holds).length === 1 ? "does" : "do"} not hold, so it promises nothing here; that does not mean that the run fails.`,
        ),
        sortable(
          [
            { head: "condition on", text: true, value: (one) => one.what },
            { head: "yours", text: true, value: (one) => one.yours },
            { head: "allowed", text: true, value: (one) => one.allowed },
            {
              head: "holds",
              text: true,
              value: (one) => String(one.holds),
              show: (one) => h("span", { class: one.holds ? "yes" : "no" }, one.holds ? "yes" : "no"),
            },
            { head: "source", text: true, value: (one) => one.source },
          ],
          theorem.conditions,
          { key: `${key}-conditions` },
        ),
        theorem.promise
          ? note(
              `If all held, the theorem would promise: ${theorem.promise}`.replace(
                "If all held, the theorem would promise",
                theorem.holds ? "The theorem promises" : "If all held, the theorem would promise",
              ),
            )
          : null,
        folded("Constants and notes", `${key}-constants`, () => [
          note(
            Object.entries(theorem.constants)
              .map(([name, value]) => `${name} = ${value}`)
              .join(", "),
          ),
          ...theorem.notes.map(note),
        ]),
      ]
    : note(theorem.reason);
  return card(
    `${key}-settings`,
    "Settings",
    sortable(
      [
        { head: "setting", text: true, value: (one) => one.name, show: (one) => h("code", null, one.name) },
        { head: "value", text: true, value: (one) => one.value, show: (one) => h("code", null, one.value) },
        { head: "what it is", text: true, prose: true, value: (one) => one.about },
      ],
      run.settings,
      {
        key: `${key}-setting-table`,
        caption: "All settings of the algorithm, then those of data, model and links that were given or taken.",
      },
    ),
    h("h3", null, "The theorem behind the algorithm"),
    conditions,
  );
}

function againCard(run, key) {
  return card(
    `${key}-again`,
    "Run it again",
    run.commands.map((one) => [
      h("p", { class: "note", style: "margin-bottom:0" }, `${one.what}:`),
      h("pre", null, h("code", null, one.command)),
    ]),
    run.facts.length
      ? plainTable(
          ["", ""],
          run.facts.map(([name, value]) => [name, value]),
        )
      : null,
    note(
      `Folder ${run.folder}; ${Object.entries(run.versions)
        .map(([name, value]) => `${name} ${value}`)
        .join(", ")}.`,
    ),
  );
}
