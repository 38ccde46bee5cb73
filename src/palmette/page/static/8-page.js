// What a reader has opened, hidden or sorted; kept when a live page is drawn again.
const memory = new Map();

/** Return the state of a part of the page, as it was when the page was last drawn. */
function remembered(key, fresh) {
  if (!key) return fresh;
  if (!memory.has(key)) memory.set(key, fresh);
  return memory.get(key);
}

let data = JSON.parse(document.getElementById("data").textContent);
const chosen = { run: 0 };

/** Show one of the runs in detail and go there. */
function showRun(at) {
  chosen.run = at;
  drawRun();
  document.getElementById("one-run").scrollIntoView();
}

function drawRun() {
  const place = document.getElementById("one-run"),
    run = data.runs[chosen.run];
  const population = run.population === null ? null : data.populations[run.population];
  const several = data.runs.length > 1;
  const options = data.runs.map((one, at) => [String(at), `${one.label}, seed ${one.seed}`]);
  const choose = (at) => {
    chosen.run = Number(at);
    drawRun();
    document.getElementById("choose-run").focus();
  };
  const list = several ? chooser(options, String(chosen.run), choose, "choose-run") : null;
  place.replaceChildren(
    ...[
      several
        ? h(
            "div",
            null,
            h("h2", { style: "margin-top:2rem" }, "One run in detail"),
            h(
              "div",
              { class: "controls" },
              h("label", { for: "choose-run" }, "Run"),
              list,
              h("span", { class: "hint" }, `${run.folder}, ${run.state}`),
            ),
          )
        : null,
      several && run.ended
        ? h("p", { class: "alert", role: "alert" }, `This run diverged: ${run.ended}. The numbers are those before.`)
        : null,
      ...run.warnings.map((text) => h("p", { class: "alert" }, text)),
      ...(several && run.models.length ? [tiles(runTiles(run))] : []),
      ...runCards(run, population, "run"),
    ].filter(Boolean),
  );
}

const runTiles = (run) =>
  run.models.map((one) => ({
    label: one.words,
    kind: one.kind,
    value: score(one.last, run.share),
    note: `worst tenth of devices ${score(one.worst, run.share)}`,
  }));
const tiles = (list) =>
  list.length
    ? h(
        "div",
        { class: "tiles" },
        list.map((one) =>
          h(
            "div",
            { class: "tile", style: one.kind ? `--tint:${colourOf(one.kind)}` : null },
            h("div", { class: "label" }, one.kind ? `${one.kind} · ${one.label}` : one.label),
            h("div", { class: "value" }, one.value),
            h("div", { class: "small" }, one.note),
          ),
        ),
      )
    : null;

function draw() {
  chosen.run = Math.min(chosen.run, Math.max(data.runs.length - 1, 0));
  document.title = `${data.title} – Palmette`;
  const top = [
    h("h1", null, data.title),
    h(
      "div",
      { class: "lead" },
      data.sentences.map((text) => h("p", null, text)),
    ),
    tiles(data.tiles),
  ];
  const cards = [];
  if (data.progress && data.progress.finished < data.progress.runs.length) cards.push(progressCard(data));
  if (data.groups.length > 1) cards.push(overviewCard(data));
  if (data.grid) cards.push(gridCard(data));
  data.groups.forEach((group, at) => cards.push(...groupCards(data, group, at)));
  const notes = data.notes.length
    ? card(
        "notes",
        "What to know",
        h(
          "ul",
          null,
          data.notes.map((text) => h("li", null, text)),
        ),
      )
    : null;
  if (notes) cards.push(notes);
  const detail = h("div", { id: "one-run" });
  const jump = h("nav", { class: "jump", "aria-label": "Sections" });
  document.getElementById("page").replaceChildren(...top.filter(Boolean), jump, ...cards, detail);
  if (data.runs.length) drawRun();
  const links = [
    ...cards.map((one) => [one.id, one.querySelector("h2").textContent]),
    ...(data.runs.length > 1
      ? [["one-run", "One run in detail"]]
      : [...detail.querySelectorAll("section.card")].map((one) => [one.id, one.querySelector("h2").textContent])),
  ];
  jump.append(...links.map(([id, text]) => h("a", { href: `#${id}` }, text)));
  document
    .getElementById("foot")
    .replaceChildren(
      h("p", null, `Made by Palmette ${data.palmette}. This file is complete in itself and loads nothing.`),
    );
}

// Light and dark: the reader's choice, else the system's.
const dark = matchMedia("(prefers-color-scheme: dark)");
function kept(value) {
  try {
    if (value !== undefined) localStorage.setItem("palmette-theme", value);
    return localStorage.getItem("palmette-theme");
  } catch {
    return value ?? null;
  }
}
function theme(value) {
  const now = value || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = now;
  const button = document.getElementById("theme");
  button.textContent = now === "dark" ? "Light theme" : "Dark theme";
  button.onclick = () => {
    theme(kept(now === "dark" ? "light" : "dark") || (now === "dark" ? "light" : "dark"));
    redraw();
  };
}
const redraw = () => document.querySelectorAll("figure").forEach((one) => one.redraw?.());
theme(kept());
dark.addEventListener("change", () => {
  if (kept()) return;
  theme();
  redraw();
});
addEventListener("beforeprint", redraw);

draw();

/** Return what finds an element again after the page was drawn anew: by its id, or by its words in its section. */
function whereIs(element) {
  if (element?.id) return () => document.getElementById(element.id);
  const place = element?.closest("section")?.id;
  const like = (one) => one.tagName === element.tagName && one.textContent === element.textContent;
  return () => place && [...document.querySelectorAll(`#${place} ${element.tagName}`)].find(like);
}

// A page that `palmette watch` serves asks for news; a file does not.
if (document.documentElement.dataset.live === "") {
  const sign = document.getElementById("live");
  let tag = "",
    pause = 2000;
  sign.hidden = false;
  const tell = (text, lost) => {
    sign.textContent = text;
    sign.classList.toggle("lost", Boolean(lost));
  };
  const ask = async () => {
    try {
      const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      if (answer.status === 200) {
        tag = answer.headers.get("ETag") || "";
        const spot = scrollY,
          find = whereIs(document.activeElement);
        data = await answer.json();
        draw();
        scrollTo({ top: spot, behavior: "instant" });
        find()?.focus({ preventScroll: true });
      } else if (answer.status !== 304) throw new Error(await answer.text());
      const live = ["running", "waiting"].includes(data.state);
      tell(live ? `live: ${data.state}` : data.state);
      pause = live ? 2000 : 10000;
    } catch (error) {
      tell(
        error instanceof TypeError
          ? "palmette watch has ended; this is the last state"
          : String(error.message || error),
        true,
      );
      pause = 5000;
    }
    setTimeout(ask, pause);
  };
  ask();
}
