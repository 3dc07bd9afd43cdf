// The theme's buttons that open a part of the list of pages have no name.
for (const button of document.querySelectorAll("nav details > summary:not([aria-label])")) {
  const page = button.closest("li").querySelector("a");
  button.setAttribute("aria-label", `Pages of ${page ? page.textContent.trim() : "this part"}`);
}
