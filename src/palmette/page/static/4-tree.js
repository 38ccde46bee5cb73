const pickers = new Map(); // by the run shown: what picks a device in its tree
const FIRST = { devices: 200, teams: 25 }; // nodes of one parent that are shown before somebody asks for more
const HITS = 12; // devices that a search shows

/** The tree of one run: teams open to show their devices, and any device can be searched for. */
class TreeView {
  constructor(run, population, key) {
    Object.assign(this, { run, population, key, top: population.tiers.length - 1 });
    this.kinds = run.models.map((one) => one.kind).filter((kind) => run.nodes[kind][0]);
    const fresh = { kind: this.kinds[0], open: new Set(), order: "tree", picked: null, sought: "", shown: {} };
    this.state = remembered(`${key}-tree`, fresh);
    if (!this.kinds.includes(this.state.kind)) this.state.kind = this.kinds[0];
    this.list = h("ul", { class: "tree", "aria-label": "Tree of the server, its teams and their devices" });
    this.panel = h("div", { "aria-live": "polite" });
    this.matches = h("div", { class: "found" });
    this.bar = h("span", { class: "scale" });
    pickers.set(key, (device) => {
      this.pick(device);
      this.panel.scrollIntoView({ block: "center" });
    });
  }

  /** Show a device in the panel. */
  pick(device) {
    this.state.picked = device;
    this.panel.replaceChildren(devicePanel(this.run, this.population, device, this.kinds, this.scale));
  }

  valueOf(tier, at) {
    const { kind } = this.state;
    if (tier === this.top) return this.run.models.find((one) => one.kind === kind).last;
    return this.run.nodes[kind][tier]?.[at] ?? null;
  }

  /** Make the entries of a node's children, so many as are to be shown, and a button for the rest. */
  children(tier, parent) {
    const id = `${tier}-${parent}`;
    let nodes = childrenOf(this.population)[tier][parent];
    if (this.state.order === "worst") {
      const sign = this.run.lower ? -1 : 1;
      const place = (at) => (this.valueOf(tier - 1, at) === null ? Infinity : sign * this.valueOf(tier - 1, at));
      nodes = nodes.slice().sort((a, b) => place(a) - place(b));
    }
    const most = this.state.shown[id] || (tier === 1 ? FIRST.devices : FIRST.teams);
    const made = nodes.slice(0, most).map((at) => (tier === 1 ? this.leaf(at) : this.branch(tier - 1, at)));
    if (nodes.length > most) {
      const more = () => {
        this.state.shown[id] = 4 * most;
        this.fill();
      };
      const text = `Show more (${count(nodes.length - most)} left)`;
      made.push(h("li", null, h("button", { type: "button", class: "quiet", onclick: more }, text)));
    }
    return made;
  }

  leaf(at) {
    const name = this.population.tiers[0].names[at];
    const button = h("button", { type: "button", class: "pick", onclick: () => this.pick(at) }, name);
    return h("li", null, h("div", { class: "node" }, button, chip(this.valueOf(0, at), this.scale, this.run.share)));
  }

  branch(tier, at) {
    const id = `${tier}-${at}`;
    const { open } = this.state;
    const inner = h("ul", { class: tier === 1 ? "devices" : null, hidden: !open.has(id) });
    if (open.has(id)) inner.append(...this.children(tier, at));
    const turn = () => {
      if (open.has(id)) open.delete(id);
      else {
        open.add(id);
        inner.replaceChildren(...this.children(tier, at));
      }
      inner.hidden = !open.has(id);
      button.setAttribute("aria-expanded", String(open.has(id)));
    };
    const about = { type: "button", class: "open", "aria-expanded": String(open.has(id)), onclick: turn };
    const button = h("button", about, this.population.tiers[tier].names[at]);
    return h("li", null, this.line(button, tier, at), inner);
  }

  /** Make the line of an inner node: its name, its number and all devices below it. */
  line(name, tier, at) {
    const below = devicesBelow(this.population, tier, at);
    return h(
      "div",
      { class: "node" },
      h("span", null, name, h("span", { class: "under" }, many(below.length, "device"))),
      chip(this.valueOf(tier, at), this.scale, this.run.share),
      strip(this.run, this.population, below, this.state.kind, this.scale, (device) => this.pick(device)),
    );
  }

  fill() {
    const { run, top } = this;
    this.scale = scaleOf(run.nodes[this.state.kind][0], run.lower);
    const ends = [this.scale.low, this.scale.high].map((value) => score(value, run.share));
    if (run.lower) ends.reverse();
    const colours = [0, 0.2, 0.4, 0.6, 0.8, 1].map((at) => shade(at).fill).join(",");
    this.bar.replaceChildren(ends[0], h("i", { style: `background:linear-gradient(90deg,${colours})` }), ends[1]);
    if (top > 1) {
      this.list.replaceChildren(...this.children(top, 0));
      return;
    }
    const server = h("span", { class: "name" }, this.population.tiers[1].names[0]);
    const devices = h("ul", { class: "devices" }, this.children(1, 0));
    this.list.replaceChildren(h("li", null, this.line(server, 1, 0), devices));
  }

  /** Show the devices whose names hold what is typed. */
  seek() {
    const { sought } = this.state;
    const wanted = sought.trim().toLowerCase();
    const names = this.population.tiers[0].names;
    this.hits = [];
    for (let at = 0; wanted && at < names.length && this.hits.length <= HITS; at += 1)
      if (names[at].toLowerCase().includes(wanted)) this.hits.push(at);
    const buttons = this.hits
      .slice(0, HITS)
      .map((at) => h("button", { type: "button", class: "quiet", onclick: () => this.pick(at) }, names[at]));
    let told = "";
    if (wanted && !this.hits.length) told = `No device has “${sought}” in its name.`;
    if (this.hits.length > HITS) told = "and more: type more of the name";
    this.matches.replaceChildren(...buttons, h("span", { class: "hint" }, told));
  }

  chooser(name, values) {
    const choose = (value) => {
      this.state[name] = value;
      this.fill();
    };
    return chooser(values, this.state[name], choose, `${this.key}-${name}`);
  }

  searcher() {
    const box = h("input", { type: "search", id: `${this.key}-search`, placeholder: "name of a device" });
    box.value = this.state.sought;
    box.addEventListener("input", () => {
      this.state.sought = box.value;
      this.seek();
    });
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !this.hits.length) return;
      event.preventDefault();
      this.pick(this.hits[0]);
    });
    return box;
  }

  card() {
    const { run, population, state } = this;
    const words = Object.fromEntries(run.models.map((one) => [one.kind, one.words]));
    const colour = this.chooser(
      "kind",
      this.kinds.map((kind) => [kind, `${kind}: ${words[kind]}`]),
    );
    const order = this.chooser("order", [
      ["tree", "as in the tree"],
      ["worst", "worst first"],
    ]);
    const controls = h(
      "div",
      { class: "controls" },
      h("label", null, "Colour by", colour),
      h("label", null, "Order", order),
      h("label", null, "Find", this.searcher()),
      this.bar,
    );
    this.fill();
    this.seek();
    if (state.picked !== null && state.picked < population.tiers[0].names.length) this.pick(state.picked);
    const told = `Every cell is a device and every line a team, coloured by test ${run.metric} on the device’s own samples.`;
    const how = "Open a team to see its devices; pick a device to see its own curve.";
    const parts = [note(`${told} ${how}`), controls, this.matches, this.panel, this.list];
    const made = card(`${this.key}-nodes`, "The tree", ...parts);
    made.classList.add("long");
    return made;
  }
}
