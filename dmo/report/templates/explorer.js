// Search samples by labels, show them on a map, and open single samples.
// The map uses a canvas because SVG is slow for thousands of nodes.
"use strict";
for (const section of document.querySelectorAll("section.samples")) {
  const get = selector => section.querySelector(selector);
  const data = JSON.parse(get("script").textContent), n = data.ids.length, [first] = data.given;
  const bytes = Uint8Array.from(atob(data.scores), letter => letter.charCodeAt(0));
  const steps = new Uint16Array(bytes.buffer), score = (i, j) =>
    data.low + steps[i * data.searched + j] / 65535 * (data.high - data.low);
  const has = data.has.map(row => new Set(row)), unknown = data.unknown.map(row => new Set(row));
  const given = data.given.map(model => model.rows.map(row => new Set(row)));
  const plain = text => text.toLowerCase().split(",").map(word => word.trim()).join(", ");
  const known = data.names.slice(0, data.searched).map(plain), numbers = new Map(known.map((name, j) => [name, j]));
  const percent = data.score === "probability" ? value => d3.format(".1f")(100 * value) + " %" : null;
  const shortly = percent ?? d3.format(".2~f"), exactly = percent ?? d3.format(".3~g"), form = get("form.ask"), cards = get(".cards ol"), more = get(".more");
  const dialog = get("dialog"), canvas = get("canvas");
  const all = d3.range(n);
  let asked = [], found = [], drawn = new Map(), shown = 12, at = 0, plane = data.planes[0]?.at, selected = null;

  const make = (tag, given, ...children) => {
    const element = Object.assign(document.createElement(tag), given);
    element.append(...children);
    return element;
  };
  const SIGNS = {right: "✓", wrong: "✗", missed: "○", unknown: "?"};
  const signed = (kind, name, value) => make("span", {className: kind},
    make("span", {ariaHidden: "true", textContent: SIGNS[kind] + " "}), make("span", {className: "spoken", textContent: kind + ": "}),
    name, ...value === undefined ? [] : [make("span", {className: "value", textContent: " " + shortly(value)})]);
  const kindOf = (i, j, model = 0) => unknown[i].has(j) ? "unknown" : given[model][i].has(j) ?
    (has[i].has(j) ? "right" : "wrong") : has[i].has(j) ? "missed" : "";
  const labelsOf = i => [...first.rows[i], ...data.has[i].filter(j => !given[0][i].has(j))];
  const features = i => data.features.length ? [make("span", {className: "features"}, ...data.features.flatMap(([name, cells]) => [
    make("span", {textContent: name, title: name}), make("span", {className: "cell", textContent: cells[i], title: cells[i]})]))] : [];
  const picture = (i, alt) => {
    if (!(i in data.images)) return [];
    const image = make("img", {src: data.images[i], alt});
    image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 64));
    return [image];
  };

  // --- search

  // Try the longest names first because names can contain commas. A prefix selects the first name that starts with it.
  function read(text) {
    const words = text.split(",").map(word => word.trim().toLowerCase()), labels = [], strange = [];
    for (let i = 0; i < words.length;) {
      let end = words.length, label;
      while (end > i && (label = numbers.get(words.slice(i, end).join(", "))) === undefined) end--;
      if (label === undefined) {
        end = i + 1;
        if (words[i]) label = known.findIndex(name => name.startsWith(words[i]));
        if (label === -1) label = known.findIndex(name => name.includes(words[i]));
      }
      if (label >= 0) labels.push(label);
      else if (words[i]) strange.push(words[i]);
      i = end;
    }
    return {labels: [...new Set(labels)], strange};
  }

  // Rank like dmo search: by the mean of the labels' scores, each standardized over the samples.
  function answering(labels) {
    const total = new Float64Array(n);
    for (const j of labels) {
      const values = all.map(i => score(i, j)), mean = d3.mean(values);
      const spread = Math.sqrt(d3.mean(values, value => (value - mean) ** 2)) || 1;
      values.forEach((value, i) => total[i] += (value - mean) / spread / labels.length);
    }
    return total;
  }

  function matches(i, which) {
    if (which === "all") return true;
    if (!asked.length) {
      const kinds = labelsOf(i).map(j => kindOf(i, j));
      return which === "right" ? kinds.every(kind => kind === "right") : kinds.includes(which);
    }
    const isGiven = asked.every(j => given[0][i].has(j)), isTrue = asked.every(j => has[i].has(j));
    if (asked.some(j => unknown[i].has(j))) return false;
    return which === "right" ? isGiven && isTrue : which === "wrong" ? isGiven && !isTrue : !isGiven && isTrue;
  }

  function update() {
    const {labels, strange} = read(form.elements.labels.value);
    const which = form.elements.show.value, order = form.elements.order.value;
    asked = labels;
    const value = asked.length ? answering(asked) : null;
    found = all.filter(i => matches(i, which) && (selected?.has(i) ?? true));
    if (order !== "stored") found.sort((a, b) => value ? value[b] - value[a] : data.rank[a] - data.rank[b]);
    if (order === "worst") found.reverse();
    const chosen = new Set(found), kind = i => ["right", "wrong", "missed"].find(kind => matches(i, kind)) ?? "other";
    drawn = d3.group(all, i => !chosen.has(i) ? "rest" : asked.length ? kind(i) : "found");
    shown = 12;
    const names = asked.map(j => data.names[j]).join(" + ");
    const counts = asked.length ? ["right", "wrong", "missed"].map(kind =>
      `${all.filter(i => matches(i, kind)).length} ${kind}`).join(", ") : "";
    get(".found").textContent = [
      ...strange.map(word => `no label “${word}”; `),
      names && `${names}: ${counts}; `, selected && `${selected.size.toLocaleString("en")} selected; `, `${found.length.toLocaleString("en")} of ${n.toLocaleString("en")} samples`,
    ].filter(Boolean).join("");
    get("[data-select=none]").hidden = !selected;
    for (const chip of section.querySelectorAll(".chips button")) chip.ariaPressed = asked.includes(+chip.value);
    list();
    draw();
  }

  function list() {
    cards.replaceChildren(...found.slice(0, shown).map(i => {
      const words = asked.length ? [...asked, ...labelsOf(i).filter(j => !asked.includes(j))] : labelsOf(i);
      const lines = words.slice(0, 8).map(j => {
        const kind = kindOf(i, j), value = asked.includes(j) ? score(i, j) : undefined;
        return kind ? signed(kind, data.names[j], value) : make("span", {}, "· " + data.names[j],
          make("span", {className: "value", textContent: " " + shortly(value)}));
      });
      if (words.length > 8) lines.push(make("span", {textContent: `${words.length - 8} more`}));
      const button = make("button", {type: "button", className: "card"}, ...picture(i, ""),
        make("span", {className: "name", textContent: data.ids[i]}), make("span", {className: "labels"}, ...lines), ...features(i));
      button.addEventListener("click", () => open(i));
      return make("li", {}, button);
    }));
    more.hidden = shown >= found.length;
  }

  // --- one sample

  function open(i) {
    at = found.indexOf(i);
    get("dialog h3").textContent = data.ids[i];
    const likely = d3.range(data.searched).sort((a, b) => score(i, b) - score(i, a)).slice(0, 8);
    const rows = [...new Set([...data.given.flatMap(model => model.rows[i]), ...data.has[i], ...likely, ...asked])];
    const scored = j => j < data.searched ? score(i, j) : NaN;
    rows.sort((a, b) => d3.descending(scored(a), scored(b)));
    const span = data.high - data.low || 1;
    const head = ["label", ...data.given.map(model => model.name), data.score];
    const lines = rows.map(j => {
      const kinds = data.given.map((_, model) => {
        const kind = kindOf(i, j, model);
        return make("td", {}, ...kind ? [signed(kind, kind)] : []);
      });
      const bar = make("span", {className: "bar"}), value = scored(j);
      if (j < data.searched) bar.style.setProperty("--share", `${100 * (value - data.low) / span}%`);
      return make("tr", {}, make("th", {scope: "row", textContent: data.names[j]}), ...kinds,
        make("td", {className: "n"}, bar, make("span", {className: "amount", textContent: Number.isNaN(value) ? "–" : exactly(value)})));
    });
    get(".opened").replaceChildren(...picture(i, `image of ${data.ids[i]}`), ...features(i),
      make("table", {}, make("thead", {}, make("tr", {}, ...head.map(name => make("th", {scope: "col", textContent: name})))),
        make("tbody", {}, ...lines)));
    get(".before").disabled = at <= 0;
    get(".next").disabled = at < 0 || at + 1 >= found.length;
    if (!dialog.open) dialog.showModal();
  }
  get(".before").addEventListener("click", () => open(found[at - 1]));
  get(".next").addEventListener("click", () => open(found[at + 1]));
  dialog.addEventListener("keydown", event => {
    if (event.key === "ArrowLeft" && at > 0) open(found[at - 1]);
    if (event.key === "ArrowRight" && at >= 0 && at + 1 < found.length) open(found[at + 1]);
  });

  // --- the map

  const SYMBOLS = [d3.symbolCircle, d3.symbolSquare, d3.symbolTriangle, d3.symbolDiamond, d3.symbolCross, d3.symbolStar, d3.symbolWye];
  const COLORS = ["--blue-mark", "--vermilion", "--green", "--pink", "--orange", "--sky", "--ink"];
  const counts = d3.rollup(data.has.flat().filter(j => j < data.searched), group => group.length, j => j);
  const common = [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 8).map(([j]) => j);
  // Color a sample by the rarest of its labels that have a color.
  const colored = common.slice(0, SYMBOLS.length), place = data.has.map(row => d3.max(row, j => colored.indexOf(j)) ?? -1);
  const oneEach = data.has.every(row => row.length <= 1), ofPlace = d3.group(all, i => place[i]);
  const color = name => getComputedStyle(section).getPropertyValue(name).trim();
  const loaded = new Map();
  let width = 0, height = 0, view = d3.zoomIdentity, tree = null, entered = false, selecting = false, lasso = null;
  const x = d3.scaleLinear([-1, 1], [0, 1]), y = d3.scaleLinear([-1, 1], [1, 0]);

  function dots(rows, radius, name, kind) {
    const context = canvas.getContext("2d");
    context.beginPath();
    for (const i of rows) {
      const [a, b] = view.apply([x(plane[i][0]), y(plane[i][1])]);
      if (a < -9 || b < -9 || a > width + 9 || b > height + 9) continue;
      if (kind === "cross") {
        context.moveTo(a - radius, b - radius); context.lineTo(a + radius, b + radius);
        context.moveTo(a - radius, b + radius); context.lineTo(a + radius, b - radius);
      } else if (rows.length > 5000 && !kind) {
        context.rect(a - radius, b - radius, 2 * radius, 2 * radius); // Squares are drawn many times as fast as discs.
      } else {
        context.moveTo(a + radius, b); context.arc(a, b, radius, 0, 2 * Math.PI);
      }
    }
    context.fillStyle = context.strokeStyle = color(name);
    if (kind) context.stroke(); else context.fill();
  }

  function symbols(rows) {
    const context = canvas.getContext("2d"), colors = COLORS.map(color);
    for (const i of rows) {
      const [a, b] = view.apply([x(plane[i][0]), y(plane[i][1])]);
      context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, a * devicePixelRatio, b * devicePixelRatio);
      context.beginPath();
      d3.symbol(SYMBOLS[Math.max(0, place[i])], 42).context(context)();
      context.fillStyle = colors[place[i]] ?? color("--faint");
      context.fill();
    }
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  }

  // Draw images that do not overlap, in the order of the list.
  function pictures() {
    const context = canvas.getContext("2d"), side = 44, taken = new Set();
    for (const i of found) {
      if (!(i in data.images)) continue;
      const [a, b] = view.apply([x(plane[i][0]), y(plane[i][1])]);
      const cell = `${Math.floor(a / side)} ${Math.floor(b / side)}`;
      if (taken.has(cell) || a < 0 || b < 0 || a > width || b > height) continue;
      taken.add(cell);
      if (!loaded.has(i)) {
        const image = new Image();
        image.addEventListener("load", later);
        image.src = data.images[i];
        loaded.set(i, image);
      }
      const image = loaded.get(i), longer = Math.max(image.naturalWidth, image.naturalHeight) || 1;
      const wide = (side - 6) * image.naturalWidth / longer, tall = (side - 6) * image.naturalHeight / longer;
      context.imageSmoothingEnabled = longer > 64;
      // Center the image in its cell, so that neighbors do not overlap.
      if (image.complete) context.drawImage(image, (Math.floor(a / side) + .5) * side - wide / 2, (Math.floor(b / side) + .5) * side - tall / 2, wide, tall);
    }
  }

  function draw() {
    if (!plane || !width) return;
    const context = canvas.getContext("2d"), of = kind => drawn.get(kind) ?? [];
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.lineWidth = 1.6;
    dots(of("rest"), 1.5, "--line");
    if (asked.length) {
      dots(of("other"), 1.8, "--faint");
      dots(of("missed"), 4, "--ink", "ring");
      dots(of("wrong"), 3.5, "--vermilion", "cross");
      dots(of("right"), 4, "--blue-mark");
    } else if (n <= 5000) symbols(found);
    else {
      const chosen = new Set(found);
      for (const [at, rows] of ofPlace) dots(rows.filter(i => chosen.has(i)), 1.8, COLORS[at] ?? "--faint");
    }
    if (get("[name=pictures]").checked) pictures();
    if (lasso) {
      context.beginPath();
      context.strokeStyle = color("--ink");
      context.setLineDash([5, 4]);
      d3.line().context(context)([...lasso, lasso[0]]);
      context.stroke();
      context.setLineDash([]);
    }
    context.fillStyle = color("--soft");
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "right";
    context.fillText("component 1 →", width - 6, height - 6);
    context.save();
    context.translate(14, 6);
    context.rotate(-Math.PI / 2);
    context.fillText("component 2 →", 0, 0);
    context.restore();
    get(".map figcaption").replaceChildren(...asked.length ? [signed("right", "right"), " ", signed("wrong", "wrong"), " ",
      signed("missed", "missed")] : [`${found.length.toLocaleString("en")} samples, colored by ` + (oneEach ? "label:" : "the rarest of these labels that they have:"),
      ...colored.flatMap((j, at) => [" ", make("span", {className: "key"}, swatch(at), data.names[j])]),
      ...ofPlace.has(-1) ? [" ", make("span", {className: "key"}, swatch(-1), "others")] : []]);
    const said = asked.length ? get(".found").textContent : `${found.length} samples`;
    canvas.ariaLabel = `Map of samples (${data.planes[get("[name=map]").value].name}): ${said}. The same samples are listed next to it.`;
  }
  let waiting = false;
  function later() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  function near(event) {
    const [a, b] = view.invert(d3.pointer(event, canvas));
    return tree.find(a, b, 12 / view.k);
  }

  function point(event) {
    if (lasso) {
      lasso.push(d3.pointer(event, canvas));
      return later();
    }
    const tip = get(".tip"), i = near(event);
    tip.hidden = i === undefined;
    canvas.style.cursor = i === undefined ? "grab" : "pointer";
    if (i === undefined) return;
    tip.replaceChildren(...picture(i, ""), make("b", {textContent: data.ids[i]}),
      ...labelsOf(i).slice(0, 8).map(j => signed(kindOf(i, j), data.names[j])));
    const [a, b] = d3.pointer(event, canvas);
    tip.style.left = `${Math.max(0, Math.min(a + 14, width - tip.offsetWidth))}px`;
    tip.style.top = `${b + 18 + tip.offsetHeight > height ? Math.max(0, b - tip.offsetHeight - 10) : b + 18}px`;
  }

  function release() {
    const corners = lasso;
    lasso = null;
    if (!corners) return;
    const place = i => view.apply([x(plane[i][0]), y(plane[i][1])]);
    selected = corners.length > 2 ? new Set(all.filter(i => d3.polygonContains(corners, place(i)))) : null;
    if (!selected?.size) selected = null;
    update();
  }

  function size() {
    const box = canvas.getBoundingClientRect();
    if (!box.width) return;
    [width, height] = [box.width, box.height];
    canvas.width = width * devicePixelRatio;
    canvas.height = height * devicePixelRatio;
    x.range([24, width - 14]);
    y.range([height - 24, 14]);
    tree = d3.quadtree(d3.range(n), i => x(plane[i][0]), i => y(plane[i][1]));
    draw();
  }

  if (plane) {
    const touch = () => { canvas.style.touchAction = selecting || view.k > 1 ? "none" : "pan-y"; };
    // The wheel scrolls the page until the map is clicked; one finger scrolls it until the map is zoomed in.
    const zoom = d3.zoom().scaleExtent([1, 60]).filter(event => selecting && event.type !== "wheel" ? false : event.type === "wheel" ? entered || event.ctrlKey :
      event.type !== "touchstart" || event.touches.length > 1 || view.k > 1).on("zoom", event => {
      view = event.transform;
      touch();
      get(".tip").hidden = true;
      later();
    });
    const stage = d3.select(canvas).call(zoom).on("dblclick.zoom", null).style("touch-action", "pan-y")
      .on("pointermove", point).on("pointerup pointercancel", release)
      .on("pointerdown.enter", event => {
        entered = true;
        if (!selecting) return;
        canvas.setPointerCapture(event.pointerId);
        lasso = [d3.pointer(event, canvas)];
        get(".tip").hidden = true;
      })
      .on("pointerleave", () => { entered = false; get(".tip").hidden = true; })
      .on("click", event => { const i = near(event); if (i !== undefined && !selecting) open(i); });
    get("[data-select=lasso]").addEventListener("click", event => {
      selecting = !selecting;
      event.currentTarget.ariaPressed = selecting;
      touch();
    });
    get("[name=map]").append(...data.planes.map(({name}, j) => make("option", {value: j, textContent: name})));
    get("[name=map]").addEventListener("change", event => {
      plane = data.planes[event.target.value].at;
      selected = null;
      size();
      update();
    });
    zoom.translateExtent([[0, 0], [Infinity, Infinity]]);
    for (const button of section.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => {
      if (+button.dataset.zoom) zoom.scaleBy(stage, +button.dataset.zoom);
      else zoom.transform(stage, d3.zoomIdentity);
    });
    new ResizeObserver(() => { size(); zoom.extent([[0, 0], [width, height]]).translateExtent([[0, 0], [width, height]]); }).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    get(".pictures").hidden = !Object.keys(data.images).length;
    get("[name=pictures]").addEventListener("change", draw);
  }

  // --- controls

  get(".chips").append(...common.map((j, at) => {
    const chip = make("button", {type: "button", value: j}, ...plane && at < colored.length ? [swatch(at)] : [], data.names[j],
      make("span", {className: "value", textContent: " " + counts.get(j)}));
    chip.addEventListener("click", () => {
      const on = asked.includes(j), kept = asked.filter(other => other !== j);
      form.elements.labels.value = (on ? kept : [...asked, j]).map(other => data.names[other]).join(", ");
      update();
    });
    return chip;
  }));
  function swatch(at) {
    const drawn = d3.create("svg").attr("viewBox", "-6 -6 12 12").attr("aria-hidden", "true").attr("class", "swatch");
    drawn.append("path").attr("d", d3.symbol(SYMBOLS[Math.max(0, at)], 60)()).style("fill", `var(${COLORS[at] ?? "--faint"})`);
    return drawn.node();
  }
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("input", () => {
    const text = form.elements.labels.value, end = text.lastIndexOf(",") + 1, before = text.slice(0, end) + (end ? " " : "");
    const word = text.slice(end).trim().toLowerCase();
    get("datalist").replaceChildren(...known.map((name, j) => [name, j]).filter(([name]) => name.includes(word)).slice(0, 40)
      .map(([, j]) => make("option", {value: before + data.names[j]})));
    update();
  });
  get("[data-select=none]").addEventListener("click", () => { selected = null; update(); });
  get(".save").addEventListener("click", () => {
    const cells = ["sample", ...found.map(i => data.ids[i])].map(id => `"${id.replaceAll('"', '""')}"\n`);
    const link = make("a", {href: URL.createObjectURL(new Blob(cells, {type: "text/csv"})), download: "samples.csv"});
    link.click();
    URL.revokeObjectURL(link.href);
  });
  more.addEventListener("click", () => { shown += 24; list(); });
  update();
}
