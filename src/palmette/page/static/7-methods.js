/** Make the sections that hold several methods on one population beside each other. */
function groupCards(data, group, at) {
  const key = `group${at}`,
    colours = new Map(
      group.methods.map((one, place) => [one.method, { colour: `var(--m${place % 8})`, dash: DASHES[place % 8] }]),
    );
  const first = methodsCard(data, group, key),
    made = [];
  if (!group.methods.length) return [first];
  if (group.methods.length === 1 && group.seeds.length === 1) return [first]; // the run below has the same curves
  const curves = methodCurves(group, key, colours);
  if (curves) made.push(curves);
  const paired = pairedCard(group, key, colours);
  if (paired) made.push(paired);
  const cost = costCard(group, key, colours);
  if (cost) made.push(cost);
  if (data.groups.length === 1 || !made.length) return [first, ...made];
  first.append(folded("Curves, devices one by one, and bytes", `${key}-more`, () => made));
  return [first];
}

const kindsOf = (group) =>
  [...new Set(group.methods.flatMap((one) => Object.keys(one.models)))].sort((a, b) => rank(a) - rank(b));
const rank = (kind) => (kind === "PM" ? 0 : kind === "GM" ? 99 : Number(kind.slice(2) || 1));

function methodsCard(data, group, key) {
  const kinds = kindsOf(group),
    share = group.share,
    several = group.seeds.length > 1;
  const better = (a, b) => (group.lower ? a < b : a > b);
  const best = Object.fromEntries(
    kinds.map((kind) => [
      kind,
      group.methods.reduce(
        (found, one) =>
          one.models[kind] && one.models[kind].mean !== null && (found === null || better(one.models[kind].mean, found))
            ? one.models[kind].mean
            : found,
        null,
      ),
    ]),
  );
  const some = (name) => group.methods.some((one) => one[name] !== undefined && one[name] !== null);
  const columns = [
    {
      head: "method",
      text: true,
      value: (one) => one.method,
      show: (one) =>
        one.run === undefined
          ? one.method
          : h("button", { type: "button", class: "link", onclick: () => showRun(one.run) }, one.method),
    },
    ...kinds.map((kind) => ({
      head: kind,
      value: (one) => one.models[kind]?.mean ?? null,
      best: (one) => one.models[kind] && one.models[kind].mean === best[kind],
      show: (one) =>
        one.models[kind]
          ? [
              score(one.models[kind].mean, share),
              several && one.models[kind].spread !== null
                ? h("span", { class: "sub" }, `± ${score(one.models[kind].spread, share)}`)
                : null,
            ]
          : "–",
    })),
    {
      head: "worst\ntenth",
      value: (one) => (one.models.PM || Object.values(one.models)[0])?.worst_decile ?? null,
      show: (one) => score((one.models.PM || Object.values(one.models)[0])?.worst_decile ?? null, share),
    },
  ];
  if (some("difference"))
    columns.push({
      head: `PM\nagainst\n${group.against}`,
      value: (one) => one.difference?.mean ?? null,
      show: (one) =>
        one.difference
          ? [
              signed(one.difference.mean, share),
              one.difference.low === null
                ? null
                : h(
                    "span",
                    { class: "sub" },
                    `${signed(one.difference.low, share)} to ${signed(one.difference.high, share)}`,
                  ),
            ]
          : "–",
    });
  if (some("worse"))
    columns.push({
      head: `worse\nthan\n${group.against}`,
      value: (one) => one.worse ?? null,
      show: (one) => (one.worse === undefined || one.worse === null ? "–" : `${Math.round(100 * one.worse)} %`),
    });
  if (some("hurt"))
    columns.push({
      head: "worse\nthan\nalone",
      value: (one) => one.hurt ?? null,
      show: (one) => (one.hurt === undefined || one.hurt === null ? "–" : `${Math.round(100 * one.hurt)} %`),
    });
  if (some("hurt_team"))
    columns.push({
      head: "worse\nthan\nteam’s",
      value: (one) => one.hurt_team ?? null,
      show: (one) => (one.hurt_team === undefined || one.hurt_team === null ? "–" : `${Math.round(100 * one.hurt_team)} %`),
    });
  columns.push(
    { head: "steps\nof a\ndevice", value: (one) => one.steps_per_device, show: (one) => count(one.steps_per_device) },
    { head: "sent to\nor from\nserver", value: (one) => one.sent, show: (one) => bytes(one.sent) },
  );
  if (some("time"))
    columns.push({ head: "clock", value: (one) => one.time ?? null, show: (one) => duration(one.time) });
  const units = share ? "percentage points" : `units of ${group.metric}`;
  return card(
    `${key}-methods`,
    data.groups.length > 1 ? `Methods: ${group.title}` : "Methods",
    note(group.about),
    (data.groups.length > 1 && group.sentences ? group.sentences : []).map((text) => h("p", null, text)),
    group.methods.length
      ? sortable(columns, group.methods, {
          key: `${key}-table`,
          caption: `Test ${group.metric}${several ? `, mean of up to ${group.seeds.length} seeds ± standard deviation` : ""}; PM are personal, TM team models, GM the global model. The best of a column is bold; the worst tenth is the mean of the tenth of the devices that fare worst.${some("difference") ? ` Differences are of personal models on the same device, in ${units}, with a 95 % bootstrap interval over seeds, teams and devices. “Worse than” is the share of devices whose personal model does worse than that method’s, than one trained on the device alone, or than the team’s model of the same method.` : ""}${some("time") ? " The clock is the simulated one, until the end of the run." : ""}`,
        })
      : note("No run has come to its end yet."),
  );
}

function methodCurves(group, key, colours) {
  const kinds = kindsOf(group).filter((kind) =>
    group.methods.some((one) => one.curves[kind] && one.curves[kind].rounds.length > 2),
  );
  if (!kinds.length) return null;
  const state = remembered(`${key}-kind`, { kind: kinds[0] });
  const place = h("div");
  const fill = () => {
    const series = group.methods
      .filter((one) => one.curves[state.kind]?.rounds.length)
      .map((one) => ({
        name: one.method,
        ...colours.get(one.method),
        points: one.curves[state.kind].rounds.map((x, at) => ({
          x,
          y: one.curves[state.kind].mean[at],
          low: group.seeds.length > 1 ? one.curves[state.kind].low[at] : null,
          high: one.curves[state.kind].high[at],
        })),
      }));
    place.replaceChildren(
      lines(series, {
        x: "round",
        y: `test ${group.metric}`,
        share: group.share,
        key: `${key}-curve-lines`,
        label: `Test ${group.metric} of ${state.kind} over the rounds, method by method`,
        caption: `${group.seeds.length > 1 ? "The line is the mean over the seeds, the band reaches from the worst to the best seed. " : ""}A round of one method may be more work than a round of another: see the steps in the table.${drawnFrom(group, state.kind)}`,
      }),
    );
  };
  fill();
  const options = kinds.map((kind) => [kind, kind]);
  const choose = chooser(options, state.kind, (kind) => {
    state.kind = kind;
    fill();
  });
  return card(
    `${key}-curves`,
    `Methods over the rounds: test ${group.metric}`,
    h("div", { class: "controls" }, h("label", null, "Models", choose)),
    place,
  );
}

function pairedCard(group, key, colours) {
  const found = group.methods.filter((one) => one.difference && one.difference.mean !== null);
  if (!found.length) return null;
  const units = group.share ? "points" : group.metric;
  const state = remembered(`${key}-gap`, { method: found[0].method });
  if (!found.some((one) => one.method === state.method)) state.method = found[0].method;
  const place = h("div");
  const fill = () => {
    const one = found.find((other) => other.method === state.method);
    place.replaceChildren(
      one.gaps
        ? gains(one.gaps, {
            share: group.share,
            x: `${one.method} better than ${group.against}, by ${units}`,
            label: `Differences between ${one.method} and ${group.against}, device by device`,
            caption: `${Math.round(100 * one.worse)} % of the devices fare worse with ${one.method} than with ${group.against}${one.gaps.zero ? `, ${count(one.gaps.zero)} fare exactly the same` : ""}. All seeds together.`,
          })
        : note("No device in common."),
    );
  };
  fill();
  const options = found.map((one) => [one.method, one.method]);
  const choose = chooser(options, state.method, (method) => {
    state.method = method;
    fill();
  });
  return card(
    `${key}-paired`,
    "Device by device",
    note(`Personal models of each method against those of ${group.against}, on the same device and the same seed.`),
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        null,
        h("h3", null, "On average"),
        intervals(
          found.map((one) => ({ name: one.method, ...one.difference, colour: colours.get(one.method).colour })),
          {
            share: group.share,
            x: `better than ${group.against}, by ${units}`,
            label: `Mean difference from ${group.against}`,
            caption: "The dot is the mean over devices, the bar its 95 % interval. To the right of 0 is better.",
          },
        ),
      ),
      h(
        "div",
        null,
        h("h3", null, "Who gains, who loses"),
        h("div", { class: "controls" }, h("label", null, "Method", choose)),
        place,
      ),
    ),
  );
}

function costCard(group, key, colours) {
  const kind = kindsOf(group)[0];
  const curves = group.methods.filter((one) => one.curves[kind]?.rounds.length);
  const silent = curves.filter((one) => !one.sent && one.models[kind]);
  const alone = silent.length
    ? ` ${silent.map((one) => one.method).join(", ")} sent nothing to the server: the level line.`
    : "";
  const level = silent.map((one) => ({ y: one.models[kind].mean, ...colours.get(one.method) }));
  const sent = methodCosts(group, kind, colours, "bytes", {
    what: "bytes on the link to the server",
    format: bytes,
    key: `${key}-cost-lines`,
    level,
    caption: `${kind} of each method, both ways together.${alone}${drawnFrom(group, kind)}`,
  });
  const { length, format } = inOneUnit(group.methods.map((one) => one.time || 0));
  const time = methodCosts(group, kind, colours, "seconds", {
    what: CLOCK,
    format,
    length,
    key: `${key}-time-lines`,
    caption: `${kind} of each method.${drawnFrom(group, kind)}`,
  });
  const shown = [sent, time].filter((panel) => panel !== null);
  if (!shown.length) return null;
  return card(
    `${key}-cost`,
    shown.length > 1 ? `${capital(group.metric)} for its cost` : `${capital(group.metric)} for ${shown[0].what}`,
    shown.length > 1
      ? h(
          "div",
          { class: "columns" },
          shown.map((panel) => h("div", null, h("h3", null, `For ${panel.what}`), panel.chart)),
        )
      : shown[0].chart,
  );
}

/** Draw the metric of every method against what it had cost by each round; nothing where no method has such a cost. */
function methodCosts(group, kind, colours, cost, { what, format, key, length = 1, level = [], caption }) {
  const series = group.methods
    .filter((one) => one.curves[kind]?.rounds.length && one.curves[kind][cost])
    .map((one) => ({
      name: one.method,
      ...colours.get(one.method),
      points: one.curves[kind].rounds
        .map((_, at) => ({ x: one.curves[kind][cost][at] / length, y: one.curves[kind].mean[at] }))
        .filter((point) => point.x > 0),
    }))
    .filter((one) => one.points.length);
  if (!series.length) return null;
  const last = series.map((one) => one.points.at(-1).x);
  const chart = lines(series, {
    x: what,
    y: `test ${group.metric} (${kind})`,
    share: group.share,
    format,
    log: Math.max(...last) > 20 * Math.min(...series.map((one) => one.points[0].x)),
    key,
    label: `Test ${group.metric} of ${kind} against ${what}`,
    level,
    caption,
  });
  return { what, chart };
}

/** Say that curves are of a sample of the devices, where they are of some method. */
function drawnFrom(group, kind) {
  const drawn = group.methods.some((one) => one.curves[kind]?.sampled);
  return drawn ? " Curves are of a sample of the devices, the same in every round." : "";
}
