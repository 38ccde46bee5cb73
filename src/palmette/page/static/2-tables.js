const LINES = 500; // of numbers behind a chart

/**
 * Make a table that sorts by a click or a key on the head of a column.
 * columns: [{ head, value(row), show(row), text }], where `text` aligns left and `prose` is whole sentences; rows: anything.
 */
function sortable(columns, rows, { caption, sort, descending = false, most = 200, key } = {}) {
  const state = remembered(key, { at: sort ?? -1, down: descending, shown: most });
  const body = h("tbody");
  const heads = columns.map((column, at) =>
    h(
      "th",
      { scope: "col", class: column.text ? "text" : null },
      h(
        "button",
        {
          type: "button",
          onclick: () => {
            state.down = state.at === at ? !state.down : !column.text;
            state.at = at;
            fill();
          },
        },
        column.head,
      ),
    ),
  );
  const more = h("button", {
    type: "button",
    class: "quiet",
    onclick: () => {
      state.shown += 500;
      fill();
    },
  });
  function fill() {
    const order = rows.slice();
    if (state.at >= 0) {
      const value = columns[state.at].value;
      order.sort((one, other) => {
        const [a, b] = [value(one), value(other)];
        if (a === null || a === undefined) return 1;
        if (b === null || b === undefined) return -1;
        const sign = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
        return state.down ? -sign : sign;
      });
    }
    heads.forEach((head, at) =>
      head.setAttribute("aria-sort", at === state.at ? (state.down ? "descending" : "ascending") : "none"),
    );
    body.replaceChildren(
      ...order.slice(0, state.shown).map((row) =>
        h(
          "tr",
          null,
          columns.map((column, at) => {
            const shown = column.show ? column.show(row) : column.value(row);
            const words = [
              column.text ? "text" : "",
              column.prose ? "prose" : "",
              column.best?.(row) ? "best" : "",
              at === 0 && String(column.value(row)).length > 24 ? "long" : "",
            ];
            return h(
              at === 0 ? "th" : "td",
              { scope: at === 0 ? "row" : null, class: words.join(" ").trim() || null },
              shown,
            );
          }),
        ),
      ),
    );
    more.hidden = order.length <= state.shown;
    more.textContent = `Show more (${count(order.length - state.shown)} left)`;
  }
  fill();
  return h("div", null, note(caption), framed(caption || "table", h("tr", null, heads), body), more);
}

/** Put the head and the body of a table into a frame that scrolls by itself, so that the page never does sideways. */
function framed(label, head, body, kind = null) {
  const table = h("table", { class: kind }, head ? h("thead", null, head) : null, body);
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, table);
}

/** Make a plain table of text. */
function plainTable(heads, rows, caption) {
  const cell = (text, at) => h(at === 0 ? "th" : "td", { scope: at === 0 ? "row" : null, class: "text" }, text);
  const head = heads.map((text) => h("th", { scope: "col", class: "text" }, text));
  const lines = rows.map((row) => h("tr", null, row.map(cell)));
  const top = heads.some(Boolean) ? h("tr", null, head) : null;
  return h("div", null, note(caption), framed(caption || "table", top, h("tbody", null, lines)));
}

/** Make a table whose cells are coloured: rows of [name, cells of { text, colour }]. */
function heatTable(label, corner, columns, rows) {
  const cell = ({ text, colour }) => h("td", { style: `background:${colour.fill};color:${colour.ink}` }, text);
  const head = [
    h("th", { scope: "col", class: "text" }, corner),
    columns.map((name) => h("th", { scope: "col" }, name)),
  ];
  const line = ([name, cells]) => h("tr", null, h("th", { scope: "row", class: "text" }, name), cells.map(cell));
  return framed(label, h("tr", null, head), h("tbody", null, rows.map(line)), "heat");
}

/** Make a list to choose one of: options of [value, text]; `choose` is called with the value. */
function chooser(options, current, choose, id = null) {
  const entries = options.map(([value, text]) => h("option", { value, selected: value === current }, text));
  const box = h("select", { id, onchange: () => choose(box.value) }, entries);
  return box;
}

/** Make a part that opens; what `fill` returns is made only then. It stays open when a live page is drawn again. */
function folded(title, key, fill) {
  const state = remembered(key, { open: false });
  const ontoggle = () => {
    state.open = box.open;
    if (box.open && box.children.length === 1) box.append(...fill());
  };
  const box = h("details", { open: state.open, ontoggle }, h("summary", null, title));
  return box;
}

/** Show the numbers behind a chart. */
function numbersBehind(heads, rows, key) {
  return folded("Show the numbers", key && `${key}-numbers`, () => {
    const all = rows(),
      left = all.length - LINES;
    return [
      plainTable(heads, all.slice(0, LINES)),
      ...(left > 0 ? [note(`${count(left)} more are left out; metrics.parquet in the run’s folder has all.`)] : []),
    ];
  });
}
