// Send files one request at a time, show the answers, record corrections, and download them as CSV.
// Insert all text as text, never as markup, because names of files and labels are untrusted.
"use strict";

const FEW = 20; // number of columns up to which the form and the values of a sample are open
const byId = (id) => document.getElementById(id);
const known = new Map(); // id -> {id, labels: [{name, value, given, on}], checked, element}
let model = null;
let saved = true;
let entered = 0; // number of rows that were entered in the form
let waiting = Promise.resolve();

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch {
    throw new Error("no answer from the server; check that dmo serve is still running");
  }
  if (response.ok) return response;
  const found = await response.json().catch(() => ({}));
  throw new Error(found.error || `the server failed (${response.status}); see its terminal for details`);
}

const ending = (name) => (name.match(/\.[^.]+$/) || [""])[0].toLowerCase();
const isRows = (file) => !model.images || model.endings.includes(ending(file.name));

function inSentences(about) {
  const views = Object.entries(about.views);
  const columns = views.map(([name, view]) => `${name} (${view.columns} columns)`).join(", ");
  const kinds = `${about.endings.slice(0, 2).join(", ")}, .npy, .npz and others`;
  const several = views.length > 1 ? "; use one file per view, named like the view, or one file for all views" : "";
  const size = `${Math.round(about.limits.bytes / 1048576) || "<1"} MiB and ${about.limits.rows} rows per request`;
  return about.images
    ? `Images, whose features are computed as for the training images, or rows of the model's views as ${kinds}. At most ${size}.`
    : model.fields.length
      ? `Tables with the ${model.fields.length} columns of the example row, or arrays of features: ${kinds}. At most ${size}.`
      : `Rows of ${columns} as ${kinds}${several}. At most ${size}.`;
}

// Sentence about the outputs of the model, with the names of some of them.
function task(about) {
  const n = about.labels.length;
  const what = {
    labels: `predicts which of ${n} labels a sample has`,
    classes: `predicts one of ${n} classes`,
    targets: n === 1 ? "predicts a number" : `predicts ${n} numbers`,
  }[about.task];
  const more = n > 8 ? `, and ${n - 8} more` : "";
  return `${about.model} model that ${what}: ${about.labels.slice(0, 8).join(", ")}${more}.`;
}

const meaning = () =>
  `Cosine similarity ${model.space === "embedding" ? "in the embedding" : "of the scores"} of the model: ` +
  "1 is most similar, 0 unrelated, \u22121 opposite.";

// Form with one control per column of the training table, which contains the example row.
function showForm() {
  if (!model.fields.length) return;
  byId("enter").hidden = false;
  byId("enter").open = model.fields.length <= FEW;
  for (const field of model.fields) {
    const label = element("label", field.name);
    label.append(control(field));
    byId("fields").append(label);
  }
  if (model.fields.every((field) => field.example === null)) return;
  const empty = model.fields.some((field) => field.missing) ? " Missing values can be left empty." : "";
  byId("origin").textContent = `The values are those of the first known sample.${empty}`;
  byId("example").hidden = false;
  byId("example").querySelector("pre").textContent = inCsv(model.fields.map((field) => [field, field.example || ""]));
}

function control(field) {
  const levels = field.kind === "boolean" ? ["true", "false"] : field.levels;
  const made = element(field.kind === "text" ? "textarea" : levels.length ? "select" : "input");
  if (levels.length) made.append(...["", ...levels].map((level) => element("option", level)));
  if (field.kind === "number") Object.assign(made, { type: "number", step: "any" });
  if (field.kind === "date") made.placeholder = "2026-01-31";
  made.required = !field.missing;
  made.value = field.example || "";
  return made;
}

// CSV with a header; numbers use the decimal separator of the training table.
function inCsv(cells) {
  const quoted = (text) => (/^[\w.+-]*$/.test(text) ? text : `"${text.replaceAll('"', '""')}"`);
  const written = ([field, text]) => quoted(field.kind === "number" ? text.replace(".", field.decimal) : text);
  return `${cells.map(([field]) => quoted(field.name)).join(",")}\n${cells.map(written).join(",")}\n`;
}

function enterRow(event) {
  event.preventDefault();
  entered += 1;
  const names = model.fields.map((field) => field.name.toLowerCase());
  const id = { name: ["id", "sample", "image"].find((name) => !names.includes(name)), kind: "identifier" };
  const controls = [...byId("fields").querySelectorAll("input, select, textarea")];
  const cells = controls.map((made, place) => [model.fields[place], made.value]);
  take([new File([inCsv([[id, `Row ${entered}`], ...cells])], `row ${entered}.csv`)]);
  waiting.then(() => byId("status").scrollIntoView());
}

async function start() {
  try {
    model = await (await answer(fetch("model.json"))).json();
  } catch (error) {
    byId("status").textContent = error.message;
    return;
  }
  document.title = `${model.title}: dmo`;
  byId("title").textContent = model.title;
  const near = model.samples === null ? "" : ` Neighbors are searched among ${model.samples} known samples.`;
  byId("about").textContent = `${task(model)}${near} dmo ${model.version}.`;
  byId("takes").textContent = inSentences(model);
  byId("labels").append(...model.labels.map((name) => Object.assign(element("option"), { value: name })));
  showForm();
}

const isView = (file) => isRows(file) && file.name.replace(/\..*$/, "") in model.views;

// Files named like views belong together; every other file contains separate samples.
function groups(files) {
  const views = Object.keys(model.views).length > 1 ? files.filter(isView) : [];
  return [...(views.length ? [views] : []), ...files.filter((file) => !views.includes(file)).map((file) => [file])];
}

async function describe(group, query) {
  const form = new FormData();
  for (const file of group) form.append("file", file, file.name);
  return (await answer(fetch(`describe${query}`, { method: "POST", body: form }))).json();
}

async function send(files) {
  const errors = byId("errors");
  let refused = 0;
  errors.replaceChildren();
  const all = groups(files);
  const older = byId("samples").firstElementChild; // Insert new samples above it, in their order.
  for (const [place, group] of all.entries()) {
    byId("status").textContent = all.length > 1 ? `Describing ${place + 1} of ${all.length} ...` : "Describing ...";
    try {
      const found = await describe(group, "");
      errors.append(...found.notes.map((note) => element("li", note)));
      for (const [number, sample] of found.samples.entries()) add(sample, group, number, older);
    } catch (error) {
      refused += 1;
      errors.append(element("li", error.message.includes(group[0].name) ? error.message : `${group[0].name}: ${error.message}`));
    }
    errors.hidden = !errors.children.length;
  }
  byId("status").textContent = refused
    ? `${refused} of ${all.length} rejected.`
    : `${all.length === 1 ? "Done" : `All ${all.length} done`}.`;
}

function add(found, group, number, older) {
  const image = isRows(group[0]) ? null : group[0];
  const sample = { id: found.id, labels: found.labels.map((label) => ({ ...label, on: label.given })), checked: false };
  const made = byId("sample").content.cloneNode(true).firstElementChild;
  sample.element = made;
  made.querySelector("h3").textContent = sample.id;
  if (image) {
    const shown = made.querySelector(".what img");
    shown.src = URL.createObjectURL(image);
    shown.alt = `Image of ${sample.id}`;
    shown.hidden = false;
  }
  const numbers = model.values === "numbers";
  made.querySelector("legend").textContent = `${numbers ? "Predicted values" : "Labels"} of ${sample.id}`;
  if (numbers) for (const part of ["form", ".checked label"]) made.querySelector(part).remove();
  made.querySelector("form")?.addEventListener("submit", (event) => {
    event.preventDefault();
    addLabel(sample, event.target.querySelector("input"));
  });
  const checked = made.querySelector(".checked input");
  checked?.addEventListener("change", () => mark(sample, checked.checked));
  const remove = made.querySelector(".remove");
  remove.setAttribute("aria-label", `Remove ${sample.id}`);
  remove.addEventListener("click", () => {
    forget(sample);
    byId("files").focus();
  });
  showFeatures(made.querySelector(".features"), found.features);
  const every = made.querySelector(".every");
  every.hidden = numbers || found.labels.length >= model.labels.length;
  every.textContent = `Show all ${model.labels.length} labels`;
  every.addEventListener("click", () => showEvery(sample, group, number, every));
  showLabels(sample);
  showNeighbors(made.querySelector(".near"), found.neighbors);
  if (known.has(sample.id)) forget(known.get(sample.id)); // Replace a sample that is sent again.
  known.set(sample.id, sample);
  byId("samples").insertBefore(made, older && older.isConnected ? older : null);
  count();
}

function showFeatures(section, features) {
  const cells = Object.entries(features);
  section.hidden = !cells.length;
  section.open = cells.length <= FEW;
  section.querySelector("summary").textContent = `Values of ${cells.length} columns`;
  for (const [name, value] of cells) {
    const row = element("tr");
    row.append(Object.assign(element("th", name), { scope: "row" }), element("td", value === null ? "missing" : value));
    section.querySelector("tbody").append(row);
  }
}

// Request all labels of a sample by sending its files again, and keep the ticks of the user.
async function showEvery(sample, group, number, button) {
  button.disabled = true;
  try {
    const found = (await describe(group, `?all=${number}`)).samples[0].labels;
    const ticks = new Map(sample.labels.map((label) => [label.name, label.on]));
    const names = new Set(found.map((label) => label.name));
    const added = sample.labels.filter((label) => !names.has(label.name));
    sample.labels = [...found.map((label) => ({ ...label, on: ticks.get(label.name) ?? label.given })), ...added];
    showLabels(sample);
    button.hidden = true;
    sample.element.querySelector(".labels").focus();
    byId("status").textContent = `All ${found.length} labels of ${sample.id} are shown.`;
  } catch (error) {
    byId("status").textContent = error.message;
    button.disabled = false;
  }
}

function forget(sample) {
  const image = sample.element.querySelector(".what img");
  if (image.src) URL.revokeObjectURL(image.src);
  sample.element.remove();
  known.delete(sample.id);
  count();
}

const inWords = (label) => {
  if (label.value === undefined) return "new";
  if (model.values === "numbers") return String(Number(label.value.toPrecision(5)));
  return model.values === "probabilities" ? `${(100 * label.value).toFixed(label.value < 0.1 ? 1 : 0)} %` : label.value.toFixed(2);
};

function showLabels(sample) {
  const rows = sample.labels.map((label) => {
    const row = element("li");
    const line = element(model.values === "numbers" ? "p" : "label");
    const box = Object.assign(element("input"), { type: "checkbox", checked: label.on });
    box.addEventListener("change", () => {
      label.on = box.checked;
      mark(sample, true);
    });
    const bar = element("span", undefined, "bar");
    bar.setAttribute("aria-hidden", "true");
    if (model.values === "probabilities" && label.value !== undefined) {
      const filled = element("i");
      filled.style.width = `${100 * Math.min(1, Math.max(0, label.value))}%`;
      bar.append(filled);
    } else bar.hidden = true;
    if (model.values !== "numbers") line.append(box);
    line.append(element("span", label.name), element("span", inWords(label), "value"), bar);
    row.append(line);
    return row;
  });
  sample.element.querySelector(".labels").replaceChildren(...rows);
}

function addLabel(sample, input) {
  const name = input.value.trim();
  if (!name) return;
  const there = sample.labels.find((label) => label.name === name);
  if (there) there.on = true;
  else sample.labels.push({ name, given: false, on: true });
  input.value = "";
  showLabels(sample);
  mark(sample, true);
  byId("status").textContent = model.labels.includes(name)
    ? `${name} was added to ${sample.id}.`
    : `${name} was added to ${sample.id}; the model does not know this label yet.`;
}

function showNeighbors(section, neighbors) {
  if (!neighbors.length) return;
  section.hidden = false;
  section.querySelector(".meaning").textContent = meaning();
  const list = section.querySelector("ol");
  for (const one of neighbors) {
    const entry = element("li");
    const picture = element("img");
    picture.alt = "";
    picture.loading = "lazy";
    if (model.images) {
      picture.src = `thumbnail/${one.row}`;
      picture.addEventListener("load", () => section.classList.add("pictures"));
      picture.addEventListener("error", () => picture.remove());
      entry.append(picture);
    }
    const values = Object.entries(one.values || {}).map(([name, value]) => `${name} ${Number(value.toPrecision(6))}`);
    const its = one.labels === undefined ? values.join(", ") : one.labels.join(", ") || "no label";
    entry.append(element("b", one.sample), ` ${one.value.toFixed(2)} `, element("span", its, "its"));
    list.append(entry);
  }
}

function mark(sample, checked) {
  sample.checked = checked;
  sample.element.classList.toggle("is-checked", checked);
  sample.element.querySelector(".checked input").checked = checked;
  saved = false;
  count();
}

const checkedSamples = () => [...known.values()].filter((sample) => sample.checked);

function count() {
  const done = checkedSamples();
  const changed = done.filter((sample) => sample.labels.some((label) => label.on !== label.given)).length;
  byId("heading").hidden = known.size === 0;
  document.querySelector("footer").hidden = known.size === 0 || model.values === "numbers"; // Predicted numbers cannot be corrected.
  byId("count").textContent = `${done.length} of ${known.size} checked, ${changed} corrected`;
  byId("download").disabled = done.length === 0;
}

async function download() {
  const samples = checkedSamples().map((sample) => ({
    id: sample.id,
    labels: sample.labels.filter((label) => label.on).map((label) => label.name),
  }));
  try {
    const request = { method: "POST", body: JSON.stringify({ samples }), headers: { "content-type": "application/json" } };
    const table = await (await answer(fetch("corrections.csv", request))).blob();
    const link = Object.assign(element("a"), { href: URL.createObjectURL(table), download: "corrections.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    saved = true;
    byId("status").textContent = `corrections.csv contains ${samples.length} samples. To learn from it, run dmo update with --new and the file that you dropped.`;
  } catch (error) {
    byId("status").textContent = error.message;
  }
}

function take(list) {
  const files = [...list]; // Copy the list, because it is emptied with its input field.
  if (model && files.length) waiting = waiting.then(() => send(files));
}

const drop = byId("drop");
byId("files").addEventListener("change", (event) => {
  take(event.target.files);
  event.target.value = ""; // Allow choosing the same file again.
});
for (const name of ["dragover", "dragleave", "drop"])
  document.addEventListener(name, (event) => {
    event.preventDefault(); // Prevent the browser from opening a file that is dropped outside the field.
    drop.classList.toggle("over", name === "dragover");
    if (name === "drop") take(event.dataTransfer.files);
  });
byId("row").addEventListener("submit", enterRow);
byId("clear").addEventListener("click", () => {
  for (const made of byId("fields").querySelectorAll("input, select, textarea")) made.value = "";
});
byId("all").addEventListener("click", () => known.forEach((sample) => mark(sample, true)));
byId("download").addEventListener("click", download);
window.addEventListener("beforeunload", (event) => {
  if (!saved && checkedSamples().length) event.preventDefault();
});
start();
