"use strict";
/* No module: it runs before anything is drawn, so that nothing flashes. */
(() => {
  const NEXT = {auto: "light", light: "dark", dark: "auto"};
  const SIGN = {auto: "◐", light: "☀", dark: "☾"};
  const root = document.documentElement;

  function kept() {
    try {
      return localStorage.getItem("sluice.theme") ?? "auto";
    } catch {
      return "auto";
    }
  }

  function dress(theme) {
    if (!(theme in NEXT)) theme = "auto";
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (!button) return;
    button.textContent = SIGN[theme];
    button.setAttribute("aria-label", `Colours: ${theme === "auto" ? "as the system has them" : theme}`);
    button.title = button.getAttribute("aria-label");
  }

  dress(kept());
  document.addEventListener("DOMContentLoaded", () => {
    dress(root.dataset.theme);
    document.getElementById("theme").onclick = () => {
      const theme = NEXT[root.dataset.theme];
      dress(theme);
      try {
        localStorage.setItem("sluice.theme", theme);
      } catch {
        /* A browser that keeps nothing forgets it. */
      }
    };
  });
})();
