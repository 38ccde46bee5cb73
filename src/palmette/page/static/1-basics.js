"use strict";
// Elements are made from text only, so that no name of a node, a file or a setting can become markup.

const SVG = new Set(["svg", "path", "line", "circle", "rect"]);

/** Make an element: its attributes, handlers that begin with "on", and what is in it. */
function h(tag, attributes, ...children) {
  const element = SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** Write a number of bytes with three digits. */
function bytes(count) {
  if (count === null || count === undefined) return "–";
  let power = 0;
  while (count >= 999.5 && power < UNITS.length - 1) {
    count /= 1000;
    power += 1;
  }
  return `${power === 0 ? Math.round(count) : Number(count.toPrecision(3))} ${UNITS[power]}`;
}

const SPANS = [
  ["ms", 1e-3, 0.1],
  ["s", 1, 120],
  ["min", 60, 7200],
  ["h", 3600, 172800],
  ["days", 86400, Infinity],
];
const CLOCK = "time on the simulated clock";

/** Write seconds with three digits, or as minutes, hours or days. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (!seconds) return "0 s";
  const [unit, length] = SPANS.find(([, , most]) => seconds < most);
  return `${Number((seconds / length).toPrecision(3)).toLocaleString("en-US")} ${unit}`;
}

/** Return seconds in the unit that fits the largest of them, so that an axis has one unit, and how to write them. */
function inOneUnit(seconds) {
  const [unit, length] = SPANS.find(([, , most]) => Math.max(0, ...seconds) < most);
  const format = (value) => `${Number(value.toPrecision(3)).toLocaleString("en-US")} ${unit}`;
  return { length, format };
}

/** Write a count with commas. */
const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US"));

/** Write a word as the first of a title. */
const capital = (word) => word[0].toUpperCase() + word.slice(1);

/** Write a noun with its number. */
const many = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

const SHARE = new Intl.NumberFormat("en-US", {
  minimumFractionDigits: 1,
  maximumFractionDigits: 1,
  roundingMode: "halfEven", // as Python does, which wrote the sentences and what palmette show says
  useGrouping: false,
});

/** Write a metric: an accuracy as a percentage, others with four digits. */
function score(value, share) {
  if (value === null || value === undefined) return "–";
  return share ? `${SHARE.format(100 * value)} %` : Number(value.toPrecision(4)).toString();
}

/** Write a difference of metrics with its sign. */
function signed(value, share) {
  if (value === null || value === undefined) return "–";
  const number = share ? 100 * value : value;
  const text = share ? SHARE.format(Math.abs(number)) : Number(Math.abs(number).toPrecision(3)).toString();
  return `${number < 0 ? "−" : "+"}${text}`;
}

const colourOf = (kind) => (["PM", "TM", "GM"].includes(kind) ? `var(--${kind})` : "var(--OTHER)");
const DASHES = [null, "7 3", "2 3", "9 3 2 3", "4 4", "12 3", "1 4", "6 2 1 2"];

// Viridis: every step is lighter than the one before, so it can be read without colours, too.
const STOPS = [
  [68, 1, 84],
  [68, 57, 131],
  [49, 104, 142],
  [33, 145, 140],
  [53, 183, 121],
  [144, 215, 67],
  [253, 231, 37],
];

/** Return the colour of a share between 0 (worst) and 1 (best), and an ink that is readable on it. */
function shade(share) {
  const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const low = Math.min(Math.floor(at), STOPS.length - 2);
  const rgb = STOPS[low].map((part, i) => Math.round(part + (at - low) * (STOPS[low + 1][i] - part)));
  return { fill: `rgb(${rgb.join(",")})`, ink: share > 0.43 ? "#000000" : "#ffffff" };
}

/** Return a function from values to colours; a low value is good where `lower`. */
function scaleOf(values, lower) {
  let low = Infinity,
    high = -Infinity;
  for (const value of values)
    if (value !== null) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  const place = (value) => (high > low ? (value - low) / (high - low) : 1);
  const colour = (value) =>
    value === null || value === undefined
      ? { fill: "var(--faint)", ink: "var(--soft)" }
      : shade(lower ? 1 - place(value) : place(value));
  return { low, high, colour };
}

/** Show a value on its colour. */
function chip(value, scale, share) {
  const { fill, ink } = scale.colour(value);
  return h("span", { class: "chip", style: `background:${fill};color:${ink}` }, score(value, share));
}

/** Make a section of the page; the title becomes its place in the list of sections. */
function card(id, title, ...children) {
  return h(
    "section",
    { class: "card", id, "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, title),
    children,
  );
}

const note = (text) => (text ? h("p", { class: "note" }, text) : null);
