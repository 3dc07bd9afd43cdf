// Sorting of tables (numbers before text, largest first; a second click reverses the order) and filtering of rows.
"use strict";
for (const section of document.querySelectorAll("section.sorts")) {
  const body = section.querySelector("tbody"), rows = [...body.rows];
  const heads = [...section.querySelectorAll("th")], input = section.querySelector("input");
  const count = section.querySelector("output");
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim(), number = Number(text.replaceAll(",", ""));
    return text !== "" && Number.isFinite(number) ? number : text;
  };
  const compare = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const numbers = rows.some(row => typeof value(row, column) === "number");
    const first = numbers ? "descending" : "ascending", other = numbers ? "ascending" : "descending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    heads.forEach(each => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const sorted = rows.map((row, place) => [value(row, column), place, row]);
    sorted.sort((a, b) => typeof a[0] !== typeof b[0] ? compare(a[0], b[0]) : sign * compare(a[0], b[0]) || a[1] - b[1]);
    body.append(...sorted.map(entry => entry[2]));
  }));
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown + " of " + rows.length;
  };
  input.addEventListener("input", filter);
  filter();
}
