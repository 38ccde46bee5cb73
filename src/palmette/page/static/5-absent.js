/** Show whose replies did not enter, and when: a row for each team, a column for each round. */
function absentCard(run, key) {
  const { told, columns, rows, left, nodes } = run.absences;
  const most = Math.max(1, ...rows.flatMap((row) => row.below));
  const teams = rows.some((row) => row.tier > 0);
  const which = teams
    ? "A number counts replies of the team’s devices that did not enter in that round; a word says that a reply of the team itself did not, or that it was away: what its devices did for that reply did not happen and is not counted."
    : "A word says why a reply of the device did not enter in that round.";
  return card(
    `${key}-absent`,
    "Who was absent when",
    h("p", null, told),
    rows.length
      ? heatTable(
          "Replies that did not enter, by round",
          teams ? "team, by round" : "device, by round",
          columns,
          rows.map((row) => [row.name, row.below.map((number, at) => absentCell(number, row.own[at], most))]),
        )
      : note("Who was absent is written down when the run ends."),
    rows.length ? note(`${which}${left ? ` ${count(left)} more were absent less often and are left out.` : ""}`) : null,
    nodes.length && teams
      ? [
          h("h3", null, "The devices that were absent most often"),
          sortable(
            [
              { head: "device", text: true, value: (one) => one.name },
              { head: "team", text: true, value: (one) => one.team },
              { head: "times", value: (one) => one.times, show: (one) => count(one.times) },
              { head: "why", text: true, value: (one) => one.why },
            ],
            nodes,
            { key: `${key}-absent-nodes` },
          ),
        ]
      : null,
    rows.length ? note("absences.parquet in the run’s folder lists every absence; a run with the setting replay repeats them.") : null,
  );
}

/** Write what was missing of a node in a round: the number of its devices’ replies, and why its own did not enter. */
function absentCell(below, own, most) {
  const words = Object.entries(own).map(([word, number]) => (number > 1 ? `${count(number)} ${word}` : word));
  const text = [...(below ? [count(below)] : []), ...words].join(", ");
  if (words.length) return { text, colour: { fill: "var(--bad)", ink: "var(--card)" } };
  const strength = Math.round(8 + 32 * (below / most));
  const fill = below ? `color-mix(in srgb, var(--bad) ${strength}%, var(--card))` : "var(--card)";
  return { text, colour: { fill, ink: "var(--ink)" } };
}
