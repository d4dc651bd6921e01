// Fates of messages: names, explanations, and the marks that stand for them besides colour.

/** Fates in the order of the legend: `[label, meaning, letter, pattern]`. */
export const FATES = {
  pinned: ["Pinned", "sent as received, because it must stay or was recent", "P", "edge"],
  kept: ["Kept", "sent as received; there was room", "K", "plain"],
  note: ["In a note", "not sent; a note quotes the parts that are likely to matter", "N", "lines"],
  masked: ["Masked", "a placeholder stands for it", "M", "dots"],
  summarised: ["Summarised", "not sent; a model's summary covers it", "S", "cross"],
  clipped: ["Clipped", "sent without its middle", "C", "gap"],
  gone: ["Left out", "not sent, and nothing of it is quoted", "–", "hollow"],
};

/** Whether a message with this fate has a place of its own in the sent request. */
export function isSent(fate) {
  return fate === "pinned" || fate === "kept" || fate === "masked" || fate === "clipped";
}

/** Colours by their names, as the current theme has them. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const names = [...Object.keys(FATES), "fg", "muted", "line", "strong-line", "surface", "raised",
    "accent", "bg", "series-3", "series-4", "bad"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Fills the current path with the pattern of a fate; `colour` is solid, `soft` its tint. */
export function fillBar(context, fate, box, colours) {
  const { x, y, width, height } = box;
  const colour = colours[fate] ?? colours.muted;
  const pattern = FATES[fate]?.[3] ?? "plain";
  if (height < 7) return fillSmall(context, pattern, box, [colour, colours.surface]);
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  if (pattern !== "hollow") {
    context.fillStyle = colours.surface;
    context.fillRect(x, y, width, height);
    context.globalAlpha = 0.24;
    context.fillStyle = colour;
    context.fillRect(x, y, width, height);
  }
  context.globalAlpha = 0.5;
  context.strokeStyle = colour;
  context.fillStyle = colour;
  context.lineWidth = 1;
  if (pattern === "lines" || pattern === "cross") stripes(context, box, 7, 1);
  if (pattern === "cross") stripes(context, box, 7, -1);
  if (pattern === "dots") dots(context, box);
  if (pattern === "gap" && height >= 6) {
    context.globalAlpha = 1;
    context.fillStyle = colours.surface;
    context.fillRect(x, y + height / 2 - 1, width, 2);
  }
  context.globalAlpha = 1;
  context.fillStyle = colour;
  if (pattern === "hollow") {
    context.setLineDash([3, 3]);
    context.strokeRect(x + 0.5, y + 0.5, width - 1, Math.max(height - 1, 1));
  } else {
    context.fillRect(x, y, pattern === "edge" ? 6 : 3, height);
  }
  context.restore();
}

/** Fills a bar that is too low for a pattern. */
function fillSmall(context, pattern, { x, y, width, height }, [colour, surface]) {
  const alpha = context.globalAlpha;
  if (pattern !== "hollow") {
    context.fillStyle = surface;
    context.fillRect(x, y, width, height);
  }
  context.fillStyle = colour;
  context.globalAlpha = alpha * (pattern === "hollow" ? 0.1 : 0.28);
  context.fillRect(x, y, width, height);
  context.globalAlpha = alpha;
  context.fillRect(x, y, pattern === "edge" ? 6 : pattern === "hollow" ? 1 : 3, height);
  if (height >= 3) {
    context.fillStyle = surface;
    context.fillRect(x, y, width, 0.5);
  }
}

function stripes(context, { x, y, width, height }, step, direction) {
  context.beginPath();
  // Stripes keep their place while the page scrolls by whole bars.
  for (let at = -height; at < width + height; at += step) {
    const from = direction > 0 ? x + at : x + width - at;
    context.moveTo(from, y + height);
    context.lineTo(from + direction * height, y);
  }
  context.stroke();
}

function dots(context, { x, y, width, height }) {
  for (let row = 3; row < height; row += 6) {
    for (let at = 8 + (row % 12 === 3 ? 0 : 3); at < width; at += 6) {
      context.fillRect(x + at, y + row - 0.5, 1.5, 1.5);
    }
  }
}
