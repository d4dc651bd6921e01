// Applies the chosen theme before the first paint. Without a choice the system's theme applies.
const theme = localStorage.getItem("weir-theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
